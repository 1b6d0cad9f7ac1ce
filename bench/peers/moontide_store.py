"""The project's pool through its Python surface: `moontide master`, `moontide node`, and a client.

Within a host the client's memory is lent, so that the node reads what is put through a mapping, as the client reads
what it gets. In the rows over TCP both sides are told not to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from store_side import Buffer, StoreContestant, main

import moontide
from moontide.config import Config
from moontide.errors import MoontideError

_POLL_US = 10_000  # longer than any answer takes


def _local_reads(plan: dict[str, Any]) -> str:
    return "off" if plan["medium"] == "tcp" else "auto"


def _serve(plan: dict[str, Any], *arguments: str) -> None:
    from moontide.cli.main import main as command

    polls = plan["wait"] == "poll"
    command(args=[*arguments, "--server-spin-us", str(_POLL_US if polls else 0)])


def _done(results: Sequence[object]) -> None:
    failed = [result for result in results if isinstance(result, MoontideError)]
    if failed:
        raise failed[0]


class Moontide(StoreContestant):
    def __init__(self, plan: dict[str, Any]) -> None:
        # The client polls in both waits.
        self._engine = moontide.Engine(config=Config(local_reads=_local_reads(plan), spin_us=_POLL_US))
        master = f"127.0.0.1:{plan['port']}"
        self._store = moontide.Store(master, engine=self._engine)
        self._async = moontide.AsyncStore(master, engine=self._engine)
        self._loop = asyncio.new_event_loop()
        self.source, self.sink = (self._buffer(plan) for _ in range(2))

    def _buffer(self, plan: dict[str, Any]) -> Buffer:
        if plan["medium"] == "tcp":
            buffer = Buffer.make(plan["buffer"])
            self._engine.register((buffer.address, buffer.nbytes), writable=True)
            return buffer
        arena = self._engine.allocate(plan["buffer"])
        return Buffer(arena.buffer.cast("B"), arena.address)

    @staticmethod
    def serve_master(plan: dict[str, Any]) -> None:
        _serve(plan, "master", "--listen", f"127.0.0.1:{plan['port']}", "--max-objects", str(max(plan["most"], 10_000)))

    @staticmethod
    def lend(plan: dict[str, Any]) -> Callable[[], None]:
        master = f"127.0.0.1:{plan['port']}"
        options = ["--lend", str(plan["lend"]), "--local-reads", _local_reads(plan)]
        return lambda: _serve(plan, "node", "--master", master, *options)

    def exists(self, key: str) -> bool:
        return self._store.exists(key)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def put(self, key: str, value: bytes) -> None:
        self._store.put(key, value)

    def exists_many(self, keys: list[str]) -> list[bool]:
        return self._store.exists_many(keys)

    def get_many(self, keys: list[str]) -> list[bytes]:
        found = self._store.get_many(keys)
        _done(found)
        return found  # type: ignore[return-value]

    def put_many(self, keys: list[str], values: list[bytes]) -> None:
        _done(self._store.put_many(list(zip(keys, values, strict=True))))

    def remove_many(self, keys: list[str]) -> None:
        _done(self._store.remove_many(keys))

    def at_once(self, op: str, keys: Sequence[str], values: Sequence[bytes], depth: int) -> list[Any]:
        return self._loop.run_until_complete(self._at_once(op, keys, values, depth))

    async def _at_once(self, op: str, keys: Sequence[str], values: Sequence[bytes], depth: int) -> list[Any]:
        answers: list[Any] = [None] * len(keys)
        numbers = iter(range(len(keys)))
        store = self._async

        async def go() -> None:
            for i in numbers:
                if op == "put":
                    await store.put(keys[i], values[i])
                else:
                    answers[i] = await (store.get(keys[i]) if op == "get" else store.exists(keys[i]))

        await asyncio.gather(*(go() for _ in range(depth)))
        return answers

    def _places(self, buffer: Buffer, keys: list[str], size: int) -> list[list[tuple[int, int]]]:
        return [[(buffer.address + i * size, size)] for i in range(len(keys))]

    def put_from(self, keys: list[str], size: int) -> None:
        _done(self._store.put_parts(keys, self._places(self.source, keys, size)).wait())

    def get_into(self, keys: list[str], size: int) -> None:
        _done(self._store.get_parts(keys, self._places(self.sink, keys, size)).wait())

    def look(self, key: str) -> Callable[[], bytes]:
        view = self._store.view(key)

        def end() -> bytes:
            if not view.in_place:
                raise ValueError("the view is a copy")
            last = view.data[-8:].tobytes()
            view.close()
            return last

        return end

    def versions(self) -> dict[str, str]:
        return {"moontide": moontide.__version__}


main(Moontide)
