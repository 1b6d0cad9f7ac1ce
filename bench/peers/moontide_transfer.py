"""The project itself, through its Python surface. The path is forced, so that a row's medium is what its name says.

Over shared memory the source lies in an arena that its owner lends (`Engine.allocate`); on the other two paths both
ends are ordinary memory that is registered in place. In the turns "by leave" the target's sink may be written by the
initiator itself; over shared memory it is an arena then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from side import Contestant, Entry, Memory, Submission, main

import moontide
from moontide.config import Config

_LOCAL_READS = {"shm": "shm", "cma": "cma", "tcp": "off"}
# A waiter that polls longer than any batch here takes, and one that goes to sleep at once.
_SPIN_US = {"poll": 10_000, "sleep": 0}


_LANDING = "sink"


def _file_of(name: str) -> str:
    """The memory file of that name as another process can open it."""
    for entry in Path("/proc/self/fd").iterdir():
        if str(entry.readlink()).startswith(f"/memfd:{name} "):
            return f"/proc/{os.getpid()}/fd/{entry.name}"
    raise RuntimeError(f"this process has no memory file {name!r}")


class Moontide(Contestant):
    name = "moontide"

    def __init__(self, plan: dict[str, Any], source: Memory, sink: Memory) -> None:
        # The initiator polls in both waits; where its threads share a core, who waits leaves it to the other.
        mine = "sleep" if plan["variant"] == "threads" else "poll"
        spin_us = _SPIN_US[mine if plan["role"] == "initiator" else plan["wait"]]
        self._medium = plan["medium"]
        self._engine = moontide.Engine(config=Config(local_reads=_LOCAL_READS[self._medium], spin_us=spin_us))
        if self._medium == "shm":
            arena = self._engine.allocate(source.nbytes, name="source")
            arena.buffer.cast("B")[:] = source.view
            self._arena, self._source = arena, arena.region
        else:
            self._source = self._engine.register((source.address, source.nbytes), name="source")
        self._landing = ""
        leave = plan["variant"] == "leave" and plan["role"] == "target"
        if leave and self._medium == "shm":
            landing = self._engine.allocate(sink.nbytes, name=_LANDING, writable=True, direct_write=True)
            self._sink, self._landing = landing.region, _file_of(_LANDING)
        else:
            at = (sink.address, sink.nbytes)
            self._sink = self._engine.register(at, name=_LANDING, writable=True, direct_write=leave)

    def landing(self) -> str:
        return self._landing

    def hello(self) -> dict[str, Any]:
        return {"address": self._engine.address}

    def connect(self, other: dict[str, Any]) -> None:
        if "address" in other and not hasattr(self, "_peer"):
            self._peer = self._engine.open(other["address"])
            self._remote = {name: self._peer.region(name) for name in ("source", "sink")}

    def _entries(self, op: str, entries: Sequence[Entry]) -> list[Any]:
        local, remote = (self._sink, self._remote["source"]) if op == "read" else (self._source, self._remote["sink"])
        return [((local, at), remote, there, length) for at, there, length in entries]

    def prepare(self, op: str, entries: Sequence[Entry]) -> Callable[[], None]:
        prepared = self._engine.prepare("read" if op == "read" else "write", self._entries(op, entries))
        return lambda: prepared.post().wait()

    def submission(self, entries: Sequence[Entry]) -> Submission:
        engine, batch = self._engine, self._entries("read", entries)
        prepared = engine.prepare("read", batch)
        return lambda: engine.read(batch), prepared.post, lambda transfer: transfer.wait()

    def progress(self) -> None:
        self._engine.drive(0.002)

    def versions(self) -> dict[str, str]:
        return {"moontide": moontide.__version__}


main(Moontide)
