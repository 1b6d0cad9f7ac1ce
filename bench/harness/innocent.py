"""How much slower an innocent peer's 4 KiB writes become while another peer of the same engine misbehaves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import IO, Any

from harness.rows import on_medium, plain_row
from harness.watch import ForeignCpu

MEDIA = ("tcp", "shm")
TARGET = 5.0  # times the baseline's p99
_PROGRAM = Path(__file__).resolve().parent.parent / "peers" / "moontide_innocent.py"
_OFTEN = 10  # of what happens often: fewer times prove nothing


class Part:
    """One process: takes commands, answers each with a line."""

    def __init__(self, python: Path, said: IO[bytes], plan: dict[str, Any]) -> None:
        command = [str(python), str(_PROGRAM), json.dumps(plan)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True)
        try:
            self.hello = self._read()
        except BaseException:
            self.end()
            raise

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise ConnectionError(f"{self.process.args!r} has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        """SIGSTOP, and it has stopped when this returns."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class InnocentTurn:
    """What one turn brought: misbehaviour → p99 over that of the baseline."""

    medium: str
    baseline_us: float = 0.0
    ratios: dict[str, float] = field(default_factory=dict)
    foreign: float = 0.0
    error: str = ""


def _often(bad: Part) -> None:
    times = bad.ask("done")["times"]
    if times < _OFTEN:
        raise ValueError(f"it misbehaved only {times} times")


def _garbage(bad: Part, server: Part) -> Callable[[], None]:
    bad.ask("garbage")
    return lambda: _often(bad)


def _half_open(bad: Part, server: Part) -> Callable[[], None]:
    bad.ask("half_open")
    return lambda: _often(bad)


def _stopped_writer(bad: Part, server: Part) -> Callable[[], None]:
    bad.ask("write")
    bad.stop()
    return lambda: None


def _stopped_source(bad: Part, server: Part) -> Callable[[], None]:
    server.ask("read_from", address=bad.ask("lend")["address"])
    bad.stop()

    def gave_up() -> None:
        if not server.ask("reading")["error"]:
            raise ValueError("the server reads on from a peer that is stopped")

    return gave_up


# What the third peer does → starts it, and returns what has to hold when the writer was measured. Bytes that lie in
# memory of this host are read without their owner, whether it is stopped or not.
_MISBEHAVIOUR = {
    "garbage on the port": (_garbage, MEDIA),
    "half-open connections": (_half_open, MEDIA),
    "a peer stopped while it writes": (_stopped_writer, MEDIA),
    "a peer stopped while it is read": (_stopped_source, ("tcp",)),
}


def misbehaviours(medium: str) -> list[str]:
    return [name for name, (_, media) in _MISBEHAVIOUR.items() if medium in media]


class _Scene:
    """Server and writer, and a third process for as long as it is needed."""

    def __init__(self, python: Path, medium: str, seconds: float, said: IO[bytes], parts: list[Part]) -> None:
        self._python, self._said, self._seconds, self._parts = python, said, seconds, parts
        self._plan = {"medium": medium, "progress_timeout": 2.0, "core": None}
        cores = os.cpu_count() or 1
        # It gives up a peer that is stopped while the writer is being measured.
        self.server = self._start(role="server", core=1 % cores, progress_timeout=seconds / 2)
        self._plan["server"] = self.server.hello["address"]
        self.writer = self._start(role="writer", core=0)
        if self.writer.hello["path"] != "ok":
            raise ValueError(f"no {medium} between the two: {self.writer.hello['path']}")

    def _start(self, **more: Any) -> Part:
        part = Part(self._python, self._said, {**self._plan, **more})
        self._parts.append(part)
        return part

    def measure(self) -> dict[str, Any]:
        measured = self.writer.ask("measure", seconds=self._seconds)
        if measured["crc"] != self.server.ask("digest")["crc"]:
            raise ValueError("the bytes that the server has are not those that were written")
        return measured

    def beside(self, name: str) -> float:
        """p99 of the writes while the third process misbehaves, microseconds."""
        bad = self._start(role="misbehaving")
        check = _MISBEHAVIOUR[name][0](bad, self.server)
        measured = self.measure()
        check()
        bad.end()
        return float(measured["p99_us"])


@contextlib.contextmanager
def _ended_after(limit_s: float) -> Iterator[list[Part]]:
    """Processes that end with the block, or when the time is up."""
    parts: list[Part] = []

    def kill() -> None:
        for part in parts:
            part.process.kill()

    alarm = threading.Timer(limit_s, kill)
    alarm.start()
    try:
        yield parts
    finally:
        alarm.cancel()
        for part in parts:
            part.end()


def innocent_turn(python: Path, medium: str, seconds: float, limit_s: float) -> InnocentTurn:
    """Measures for so many seconds without a misbehaving peer, beside each kind of one, and without once more."""
    turn = InnocentTurn(medium)
    with tempfile.TemporaryFile() as said, _ended_after(limit_s) as parts:
        own = {os.getpid()}
        watch = ForeignCpu(own)
        try:
            scene = _Scene(python, medium, seconds, said, parts)
            first = scene.measure()
            beside = {name: scene.beside(name) for name in misbehaviours(medium)}
            last = scene.measure()
            if not all(on_medium(medium, measured) for measured in (first, last)):
                raise ValueError(f"not on {medium}, as lo's counter shows")
            turn.baseline_us = mean(measured["p99_us"] for measured in (first, last))
            turn.ratios = {name: p99 / turn.baseline_us for name, p99 in beside.items()}
        except (OSError, ValueError) as error:
            said.seek(0)
            turn.error = f"{error}: {said.read()[-1500:].decode(errors='replace').strip()}"
        own.update(part.process.pid for part in parts)
        turn.foreign = watch.share()
    return turn


def innocent_rows(turns: list[InnocentTurn]) -> list[dict[str, Any]]:
    """p99 of the innocent peer's writes over that without the other one: per medium and misbehaviour, medians."""
    out = []
    for medium in MEDIA:
        complete = [turn for turn in turns if turn.medium == medium and not turn.error]
        for name in misbehaviours(medium):
            ratios = [turn.ratios[name] for turn in complete]
            value = float(f"{median(ratios):.3g}") if ratios else None
            row = plain_row(f"innocent peer, {name}", "p99", "x alone", value, TARGET, {}, medium)
            row["turns"] = {"moontide": len(ratios)}
            if complete:
                baseline = median(turn.baseline_us for turn in complete)
                row["baseline_p99_us"] = float(f"{baseline:.4g}")
            out.append(row)
    return out
