"""One turn of a contestant's pool: master, lender and client, each a process, alone, pinned, watched."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from harness.store_cases import BUFFER_BYTES, POOL_BYTES, Stage
from harness.turns import kill_all
from harness.watch import ForeignCpu

_PEERS = Path(__file__).resolve().parent.parent / "peers"
_START_S = 30.0
_SERVER_CORE, _CLIENT_CORE = 1, 0


@dataclass(frozen=True)
class StoreContestant:
    """One of those that take turns: a script, its interpreter, and the setting it runs in."""

    name: str
    script: str
    python: Path
    medium: str  # the bytes' way: "tcp", or "memory" for the best one within a host
    wait: str
    part: str  # which stages it runs: "metadata", "data", "views" or "growth"
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.name} {self.part} {self.medium} {self.wait}"


@dataclass
class StoreTurn:
    """What one turn brought, by (objects in the pool, case). `error` says why there are no (or too few) results."""

    label: str
    cases: dict[tuple[int, str], dict[str, Any]] = field(default_factory=dict)
    memory: dict[int, float] = field(default_factory=dict)  # objects → the master's bytes for each
    versions: dict[str, str] = field(default_factory=dict)
    foreign: float = 0.0
    error: str = ""


class SetupFailed(Exception):
    """Why the pool of a turn did not come up."""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int, process: subprocess.Popen[str]) -> None:
    """Waits until somebody listens there."""
    deadline = time.monotonic() + _START_S
    while True:
        if process.poll() is not None:
            raise SetupFailed("the master has ended")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        if time.monotonic() > deadline:
            raise SetupFailed("the master does not listen")
        time.sleep(0.01)


def _ready(process: subprocess.Popen[str]) -> None:
    """Waits until the process says so; what else it prints is passed over."""
    assert process.stdout is not None
    deadline = time.monotonic() + _START_S
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
            raise SetupFailed("the lender does not come up")
        line = process.stdout.readline()
        if not line:
            raise SetupFailed("the lender has ended")
        if '"ready"' in line:
            return


@contextlib.contextmanager
def _processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    try:
        yield started
    finally:
        # The client's own end comes first, so that nobody waits for servers that are gone.
        for process in reversed(started):
            process.kill()
            process.wait()


def run_store_turn(c: StoreContestant, stages: list[Stage], limit_s: float) -> StoreTurn:
    """Starts the three processes, reads what the client reports, and stops all whatever happens."""
    turn = StoreTurn(c.label)
    most = max(stage.keys for stage in stages)
    plan: dict[str, Any] = {"port": _free_port(), "medium": c.medium, "wait": c.wait, "buffer": BUFFER_BYTES}
    plan.update(lend=max(POOL_BYTES, 512 * most), most=2 * most + 1000, stages=[stage.plan() for stage in stages])
    with tempfile.TemporaryFile() as said, _processes() as processes:

        def start(role: str, core: int, **more: Any) -> subprocess.Popen[str]:
            mine = {**plan, **more, "role": role, "core": core % (os.cpu_count() or 1)}
            settings = [f"{name}={value}" for name, value in c.settings.items()]
            command = ["env", *settings, str(c.python), str(_PEERS / c.script), json.dumps(mine)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=_out(role), stderr=said, text=True)
            processes.append(process)
            return process

        alarm = threading.Timer(limit_s, kill_all, (processes,))
        alarm.start()
        try:
            master = start("master", _SERVER_CORE)
            _answers(plan["port"], master)
            node = start("node", _SERVER_CORE)
            _ready(node)
            client = start("client", _CLIENT_CORE, master_pid=master.pid, node_pid=node.pid)
            _read(turn, client, {os.getpid(), *(process.pid for process in processes)})
        except SetupFailed as error:
            turn.error = str(error)
        finally:
            alarm.cancel()
        if turn.error:
            said.seek(0)
            turn.error += ": " + said.read()[-1500:].decode(errors="replace").strip()
    return turn


def _out(role: str) -> int:
    # Nobody reads what a master prints.
    return subprocess.DEVNULL if role == "master" else subprocess.PIPE


def _read(turn: StoreTurn, client: subprocess.Popen[str], own: set[int]) -> None:
    stdout: IO[str] | None = client.stdout
    assert stdout is not None
    watch = None
    for line in stdout:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # a library that talks on standard output
        if event["event"] == "start":
            turn.versions = event["versions"]
            watch = ForeignCpu(own)
        elif event["event"] == "filled":
            turn.memory[event["keys"]] = event["bytes_per_object"]
        elif event["event"] == "case":
            turn.cases[event.pop("keys"), event.pop("case")] = event
        elif event["event"] == "end" and watch is not None:
            turn.foreign = watch.share()
            return
    turn.error = f"ended after {len(turn.cases)} cases"
