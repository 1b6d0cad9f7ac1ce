"""A contestant for the tests: copies between the memory files, both of which its initiator has mapped.

The plan's variant says what is wrong with it: "early" says done before the bytes are there, "corrupt" spoils one of
them, "landing" writes into memory that its target has made itself.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "peers"))

from side import Contestant, Entry, Memory, main


class Copying(Contestant):
    name = "copying"

    def __init__(self, plan: dict[str, Any], source: Memory, sink: Memory) -> None:
        self._fault = plan["variant"]
        self._here = {"read": sink, "write": source}
        self._there = {op: Memory(plan["memory"][f"target_{kind}"], plan["pool"]) for op, kind in _KINDS.items()}

        if self._fault == "landing" and plan["role"] == "target":
            self._own = os.memfd_create("landing")
            os.ftruncate(self._own, plan["pool"])

    def landing(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._own}" if self._fault == "landing" else ""

    def connect(self, other: dict[str, Any]) -> None:
        if other.get("landing"):
            fd = os.open(other["landing"], os.O_RDWR)
            self._there["write"] = Memory(fd, self._there["write"].nbytes)
            os.close(fd)

    def prepare(self, op: str, entries: Sequence[Entry]) -> Callable[[], None]:
        here, there = self._here[op].view, self._there[op].view

        def copy() -> None:
            for near, far, length in entries:
                if op == "read":
                    here[near : near + length] = there[far : far + length]
                else:
                    there[far : far + length] = here[near : near + length]
            if self._fault == "corrupt":
                near, far, length = entries[0]
                memory, at = (here, near) if op == "read" else (there, far)
                memory[at + length // 2] ^= 1

        if self._fault == "early":
            return lambda: threading.Timer(0.002, copy).start()
        return copy


_KINDS = {"read": "source", "write": "sink"}
main(Copying)
