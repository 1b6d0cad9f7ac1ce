"""One turn: two processes of one contestant, alone, pinned, watched."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from harness.cases import POOL_BYTES, Case
from harness.watch import ForeignCpu

_PEERS = Path(__file__).resolve().parent.parent / "peers"
_MEMORIES = ("initiator_source", "initiator_sink", "target_source", "target_sink")
_BLOCK = 4096


@dataclass(frozen=True)
class Contestant:
    """One of those that take turns: a script, its interpreter, and the setting it runs in."""

    name: str
    script: str
    python: Path
    medium: str  # the bytes' way, to be proven
    wait: str
    settings: dict[str, str] = field(default_factory=dict)
    variant: str = ""  # which cases it runs: "", "threads" or "leave"

    @property
    def label(self) -> str:
        return f"{self.name} {self.medium} {self.wait} {self.variant}".rstrip()


@dataclass
class Turn:
    """What one turn brought. `error` says why there are no (or too few) results."""

    label: str
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    foreign: float = 0.0
    error: str = ""


class Memories:
    """The buffers of all turns of all contestants: four shared memory files, the sources filled with a pattern."""

    def __init__(self) -> None:
        self.fds: dict[str, int] = {}
        noise = random.Random(20261130).randbytes(_BLOCK)
        for name in _MEMORIES:
            fd = os.memfd_create(f"bench-{name}")
            os.ftruncate(fd, POOL_BYTES)
            self.fds[name] = fd
            with mmap.mmap(fd, POOL_BYTES) as memory:
                if "sink" in name:
                    memory[:] = bytes(POOL_BYTES)
                    continue
                # Every block says at both ends which one it is, so that a block in the wrong place is seen.
                for at in range(0, POOL_BYTES, _BLOCK):
                    mark = (at // _BLOCK + (1 << 40)).to_bytes(8, "little")
                    memory[at : at + _BLOCK] = mark + noise[8:-8] + mark

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)


@contextlib.contextmanager
def _channel() -> Iterator[tuple[socket.socket, socket.socket, int]]:
    here, there = socket.socketpair()
    board = os.memfd_create("bench-board")
    os.ftruncate(board, mmap.PAGESIZE)
    try:
        yield here, there, board
    finally:
        here.close()
        there.close()
        os.close(board)


def _start(c: Contestant, role: str, plan: dict[str, Any], fds: list[int], said: IO[bytes]) -> subprocess.Popen[str]:
    settings = [f"{name}={value}" for name, value in c.settings.items()]
    command = ["env", *settings, str(c.python), str(_PEERS / c.script), json.dumps({**plan, "role": role})]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, pass_fds=fds, text=True)


def kill_all(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()


def run_turn(c: Contestant, cases: list[Case], memories: Memories, limit_s: float) -> Turn:
    """Starts target and initiator, reads what the initiator reports, and stops both whatever happens."""
    turn = Turn(c.label)
    with _channel() as (here, there, board), tempfile.TemporaryFile() as said:
        plan: dict[str, Any] = {"medium": c.medium, "wait": c.wait, "variant": c.variant}
        plan.update(cases=[case.plan() for case in cases], pool=POOL_BYTES, memory=memories.fds, board=board)
        fds = [*memories.fds.values(), board]
        processes = []
        for role, end, core in (("target", there, 1), ("initiator", here, 0)):
            mine = {**plan, "control": end.fileno(), "core": core % (os.cpu_count() or 1)}
            processes.append(_start(c, role, mine, [*fds, end.fileno()], said))
        here.close()
        there.close()
        alarm = threading.Timer(limit_s, kill_all, (processes,))
        alarm.start()
        try:
            _read(turn, processes[1], {os.getpid(), *(process.pid for process in processes)})
        finally:
            alarm.cancel()
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(2)
                process.kill()
                process.wait()
        if turn.error:
            said.seek(0)
            turn.error += ": " + said.read()[-1500:].decode(errors="replace").strip()
    return turn


def _read(turn: Turn, initiator: subprocess.Popen[str], own: set[int]) -> None:
    assert initiator.stdout is not None
    watch = None
    for line in initiator.stdout:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # a library that talks on standard output
        if event["event"] == "start":
            turn.versions = event["versions"]
            watch = ForeignCpu(own)
        elif event["event"] == "case":
            turn.cases[event.pop("case")] = event
        elif event["event"] == "end" and watch is not None:
            turn.foreign = watch.share()
            return
    turn.error = f"ended after {len(turn.cases)} cases"
