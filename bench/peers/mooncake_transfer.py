"""Mooncake's transfer engine over TCP, as its documentation sets it up: peer-to-peer handshake, connection pool on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from mooncake.engine import TransferEngine
from side import Contestant, Entry, Memory, Submission, main


class Mooncake(Contestant):
    name = "mooncake"

    def __init__(self, plan: dict[str, Any], source: Memory, sink: Memory) -> None:
        self._source, self._sink = source, sink
        self._engine = TransferEngine()
        if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
            raise RuntimeError("Mooncake did not start")
        for memory in (source, sink):
            if self._engine.register_memory(memory.address, memory.nbytes) != 0:
                raise RuntimeError("Mooncake did not register the memory")

    def hello(self) -> dict[str, Any]:
        return {
            "address": f"127.0.0.1:{self._engine.get_rpc_port()}",
            "source": self._source.address,
            "sink": self._sink.address,
        }

    def connect(self, other: dict[str, Any]) -> None:
        self._other = other

    def _lists(self, op: str, entries: Sequence[Entry]) -> tuple[list[int], list[int], list[int]]:
        local, remote = (self._sink, "source") if op == "read" else (self._source, "sink")
        return (
            [local.address + at for at, _, _ in entries],
            [self._other[remote] + at for _, at, _ in entries],
            [length for _, _, length in entries],
        )

    def prepare(self, op: str, entries: Sequence[Entry]) -> Callable[[], None]:
        engine, peer = self._engine, self._other["address"]
        call = engine.batch_transfer_sync_read if op == "read" else engine.batch_transfer_sync_write
        lists = self._lists(op, entries)

        def move() -> None:
            if call(peer, *lists) != 0:
                raise RuntimeError("Mooncake's transfer failed")

        return move

    def submission(self, entries: Sequence[Entry]) -> Submission:
        engine, peer = self._engine, self._other["address"]
        lists = self._lists("read", entries)

        def submit() -> Any:
            return engine.batch_transfer_async_read(peer, *lists)

        def wait(batch: Any) -> None:
            if engine.get_batch_transfer_status([batch]) != 0:
                raise RuntimeError("Mooncake's transfer failed")

        return submit, submit, wait

    def versions(self) -> dict[str, str]:
        return {"mooncake-transfer-engine-non-cuda": version("mooncake-transfer-engine-non-cuda")}


main(Mooncake)
