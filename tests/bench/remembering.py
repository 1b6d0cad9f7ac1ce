"""A contestant for the tests: a pool in the client's own process. Its master only listens, its lender does nothing.

The environment's FAULT says what is wrong with it: "corrupt" spoils a byte of each object that is
read into memory, "forgets" finds nothing, "no master" has one that ends, "no lender" a lender that does.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "peers"))

from store_side import Buffer, StoreContestant, main

_FAULT = os.environ.get("FAULT", "")


def _wait() -> None:
    sys.stdin.read()


class Remembering(StoreContestant):
    def __init__(self, plan: dict[str, Any]) -> None:
        self.source, self.sink = Buffer.make(plan["buffer"]), Buffer.make(plan["buffer"])
        self._objects: dict[str, bytes] = {}

    @staticmethod
    def serve_master(plan: dict[str, Any]) -> None:
        if _FAULT != "no master":
            listener = socket.create_server(("127.0.0.1", plan["port"]))
            _wait()
            listener.close()

    @staticmethod
    def lend(plan: dict[str, Any]) -> Callable[[], None]:
        if _FAULT == "no lender":
            sys.exit("no memory to lend")
        return _wait

    def exists(self, key: str) -> bool:
        return self.exists_many([key])[0]

    def get(self, key: str) -> bytes:
        return self._objects[key]

    def put(self, key: str, value: bytes) -> None:
        until = time.perf_counter() + 0.0005
        while time.perf_counter() < until:
            pass
        self._objects[key] = value

    def exists_many(self, keys: list[str]) -> list[bool]:
        return [key in self._objects and _FAULT != "forgets" for key in keys]

    def get_many(self, keys: list[str]) -> list[bytes]:
        return [self._objects[key] for key in keys]

    def put_many(self, keys: list[str], values: list[bytes]) -> None:
        self._objects.update(zip(keys, values, strict=True))

    def remove_many(self, keys: list[str]) -> None:
        for key in keys:
            del self._objects[key]

    def at_once(self, op: str, keys: Sequence[str], values: Sequence[bytes], depth: int) -> list[Any]:
        if op == "put":
            self.put_many(list(keys), list(values))
            return []
        return self.get_many(list(keys)) if op == "get" else self.exists_many(list(keys))

    def put_from(self, keys: list[str], size: int) -> None:
        for i, key in enumerate(keys):
            self._objects[key] = bytes(self.source.view[i * size : (i + 1) * size])

    def get_into(self, keys: list[str], size: int) -> None:
        for i, key in enumerate(keys):
            self.sink.view[i * size : (i + 1) * size] = self._objects[key]
        if _FAULT == "corrupt":
            self.sink.view[size // 2] ^= 1

    def versions(self) -> dict[str, str]:
        return {"remembering": "1"}


main(Remembering)
