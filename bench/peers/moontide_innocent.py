"""The processes of the row about an innocent peer: a server, a peer that writes into it, and one that misbehaves.

Each takes commands as JSON lines on standard input and answers each with one line. The server and the writer are
pinned; the third, unless it is to be stopped, runs only where a core is idle, so that the CPU time that it takes for
itself is not what is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

from side import loopback_bytes, percentiles

import moontide
from moontide.config import Config

BLOCK = 4096
_BULK = 64 << 20
_SAMPLES_MIN = 200
_HALF_OPEN = 1000
_HALF_A_HEADER = b"MTM1" + bytes(8)

Answer = Callable[..., dict[str, Any]]


def _engine(plan: dict[str, Any]) -> moontide.Engine:
    local_reads = "off" if plan["medium"] == "tcp" else plan["medium"]
    return moontide.Engine(config=Config(local_reads=local_reads, progress_timeout=plan["progress_timeout"]))


class Server:
    """Has memory that others write into; reads from a peer, over and over, when it is told to."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._engine = _engine(plan)
        self._block = self._engine.allocate(BLOCK, name="block", writable=True)
        self._bulk = self._engine.allocate(_BULK, name="bulk", writable=True)
        self._batches, self._error = 0, ""

    def hello(self) -> dict[str, Any]:
        return {"address": self._engine.address}

    def digest(self) -> dict[str, Any]:
        return {"crc": zlib.crc32(self._block.buffer)}

    def read_from(self, address: str) -> dict[str, Any]:
        """Answers when the first batch is there and the next one is under way."""
        remote = self._engine.open(address).region("bulk")
        batch = self._engine.prepare("read", [(self._bulk, remote, 0, _BULK)])
        batch.post().wait()
        threading.Thread(target=self._read, args=(batch,), daemon=True).start()
        return {}

    def _read(self, batch: moontide.Prepared) -> None:
        try:
            while True:
                batch.post().wait()
        except moontide.errors.MoontideError as error:
            self._error = error.code

    def reading(self) -> dict[str, Any]:
        """How the reading ended; empty: it goes on."""
        return {"error": self._error}


class Writer:
    """The innocent one: 4 KiB into the server, again and again, each with other bytes."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._engine, self._medium = _engine(plan), plan["medium"]
        self._block = self._engine.allocate(BLOCK, name="mine")
        self._peer = self._engine.open(plan["server"])
        target = self._peer.region("block")
        self._batch = self._engine.prepare("write", [(self._block, target, 0, BLOCK)])
        self._number = 0

    def hello(self) -> dict[str, Any]:
        return {"path": self._peer.paths.get(self._medium, "no such path")}

    def measure(self, seconds: float) -> dict[str, Any]:
        samples: list[int] = []
        memory, last = self._block.buffer, BLOCK - 8
        before, until = loopback_bytes(), time.perf_counter() + seconds
        while len(samples) < _SAMPLES_MIN or time.perf_counter() < until:
            self._number += 1
            for at in (0, last):
                struct.pack_into("<Q", memory, at, self._number)
            start = time.perf_counter_ns()
            self._batch.post().wait()
            samples.append(time.perf_counter_ns() - start)
        payload, lo = len(samples) * BLOCK, loopback_bytes() - before
        return {**percentiles(samples), "crc": zlib.crc32(memory), "payload_bytes": payload, "lo_bytes": lo}


class Misbehaving:
    """Does one thing wrong until it is killed; a stopped peer is this one, stopped from outside."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        host, _, port = plan["server"].rpartition(":")
        self._server = (host, int(port))
        self._done = 0

    def hello(self) -> dict[str, Any]:
        return {}

    def _step_back(self) -> None:
        """Runs only where a core is idle from now on."""
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    def _until_killed(self, what: Callable[[], None]) -> None:
        def go() -> None:
            while True:
                with contextlib.suppress(OSError):
                    what()
                self._done += 1

        threading.Thread(target=go, daemon=True).start()

    def garbage(self) -> dict[str, Any]:
        self._step_back()
        noise = os.urandom(BLOCK)

        def once() -> None:
            with socket.create_connection(self._server, timeout=5) as connection:
                connection.sendall(noise)
                connection.recv(1)

        self._until_killed(once)
        return {}

    def half_open(self) -> dict[str, Any]:
        """So many connections that say nothing or half a header; those that the server ends are opened again."""
        self._step_back()
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        held: list[socket.socket] = []

        def once() -> None:
            if len(held) == _HALF_OPEN:
                held.pop(0).close()
            held.append(socket.create_connection(self._server, timeout=5))
            if len(held) % 2:
                held[-1].sendall(_HALF_A_HEADER)

        self._until_killed(once)
        return {}

    def write(self) -> dict[str, Any]:
        """Batches into the server; answers when the first has arrived and the next one is under way."""
        self._engine = _engine(self._plan)
        mine = self._engine.allocate(_BULK, name="bulk")
        target = self._engine.open(self._plan["server"]).region("bulk")
        batch = self._engine.prepare("write", [(mine, target, 0, _BULK)])
        batch.post().wait()
        self._until_killed(lambda: batch.post().wait())
        return {}

    def lend(self) -> dict[str, Any]:
        """Memory for the server to read."""
        self._engine = _engine(self._plan)
        self._mine = self._engine.allocate(_BULK, name="bulk")
        return {"address": self._engine.address}

    def done(self) -> dict[str, Any]:
        """How often it did it."""
        return {"times": self._done}


def main() -> None:
    plan = json.loads(sys.argv[1])
    if plan["core"] is not None:
        os.sched_setaffinity(0, {plan["core"]})
    roles: dict[str, Any] = {"server": Server, "writer": Writer, "misbehaving": Misbehaving}
    part = roles[plan["role"]](plan)
    print(json.dumps(part.hello()), flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        command: Answer = getattr(part, message.pop("do"))
        print(json.dumps(command(**message)), flush=True)
    os._exit(0)


main()
