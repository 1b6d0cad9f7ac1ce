"""Mooncake's store over TCP, as its documentation sets it up: its master, a client that lends, a client that asks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mooncake.store import MooncakeDistributedStore
from store_side import Buffer, StoreContestant, main

_THREADS_MAX = 8  # of calls at once: with more of them on one core it gets slower
_LOCAL_BYTES = 256 << 20  # what a client puts from and gets into where the caller's memory is not registered


def _connected(plan: dict[str, Any], lend: int) -> Any:
    store = MooncakeDistributedStore()
    master = f"127.0.0.1:{plan['port']}"
    if store.setup("127.0.0.1", "P2PHANDSHAKE", lend, _LOCAL_BYTES, "tcp", "", master) != 0:
        raise RuntimeError("Mooncake's store did not start")
    return store


def _done(codes: Sequence[int], what: str) -> None:
    if any(code < 0 for code in codes):
        raise RuntimeError(f"Mooncake's {what} failed with {min(codes)}")


class Mooncake(StoreContestant):
    def __init__(self, plan: dict[str, Any]) -> None:
        self._store = _connected(plan, 0)
        self.source, self.sink = Buffer.make(plan["buffer"]), Buffer.make(plan["buffer"])
        for buffer in (self.source, self.sink):
            _done([self._store.register_buffer(buffer.address, buffer.nbytes)], "register_buffer")
        self._threads: ThreadPoolExecutor | None = None

    @staticmethod
    def serve_master(plan: dict[str, Any]) -> None:
        program = Path(sys.executable).parent / "mooncake_master"
        options = [f"--rpc_port={plan['port']}", "--rpc_address=127.0.0.1", "--metrics_port=0", "--logtostderr=false"]
        os.execv(program, [str(program), *options])

    @staticmethod
    def lend(plan: dict[str, Any]) -> Callable[[], None]:
        store = _connected(plan, plan["lend"])

        def wait() -> None:
            sys.stdin.read()
            store.close()

        return wait

    def exists(self, key: str) -> bool:
        return bool(self._store.is_exist(key) == 1)

    def get(self, key: str) -> bytes:
        value: bytes = self._store.get(key)
        return value

    def put(self, key: str, value: bytes) -> None:
        _done([self._store.put(key, value)], "put")

    def exists_many(self, keys: list[str]) -> list[bool]:
        return [code == 1 for code in self._store.batch_is_exist(keys)]

    def get_many(self, keys: list[str]) -> list[bytes]:
        values: list[bytes] = self._store.get_batch(keys)
        return values

    def put_many(self, keys: list[str], values: list[bytes]) -> None:
        _done([self._store.put_batch(keys, values)], "put_batch")

    def remove_many(self, keys: list[str]) -> None:
        _done(self._store.batch_remove(keys, True), "batch_remove")

    def at_once(self, op: str, keys: Sequence[str], values: Sequence[bytes], depth: int) -> list[Any]:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(min(depth, _THREADS_MAX))
        if op == "put":
            return list(self._threads.map(self.put, keys, values))
        return list(self._threads.map(self.get if op == "get" else self.exists, keys))

    def _places(self, buffer: Buffer, keys: list[str], size: int) -> tuple[list[int], list[int]]:
        return [buffer.address + i * size for i in range(len(keys))], [size] * len(keys)

    def put_from(self, keys: list[str], size: int) -> None:
        _done(self._store.batch_put_from(keys, *self._places(self.source, keys, size)), "batch_put_from")

    def get_into(self, keys: list[str], size: int) -> None:
        _done(self._store.batch_get_into(keys, *self._places(self.sink, keys, size)), "batch_get_into")

    def versions(self) -> dict[str, str]:
        return {"mooncake-transfer-engine-non-cuda": version("mooncake-transfer-engine-non-cuda")}


main(Mooncake)
