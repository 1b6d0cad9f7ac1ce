"""What a store does, once: procedures that wait for native operations without saying how.

`Store` drives them by blocking, `AsyncStore` by awaiting; see `run_blocking` and `run_awaiting`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from moontide import _core
from moontide._waiting import completion
from moontide.engine import Operation, _memory_range
from moontide.errors import Invalid, MoontideError, NotFound, TooLarge

__all__ = [
    "Key",
    "Native",
    "ObjectInfo",
    "Procedures",
    "encode_key",
    "operation_of",
    "run_awaiting",
    "run_blocking",
]

T = TypeVar("T")
Key = str | bytes
"""An object's name: a text, or 1 to 1024 bytes."""
_KEY_BYTES_MAX = 1024
_LIST_PAGE = 1000
# A key may be removed and put again with another length between asking for the length and reading.
_GET_TRIES = 4


class ObjectInfo(NamedTuple):
    """One committed object: its key, and its length in bytes."""

    key: bytes
    length: int


class Native(Protocol):
    """An operation or a batch of the native core."""

    def wait(self, timeout: float | None = None) -> Any: ...
    def watch(self, notifier: _core.Notifier, token: int) -> None: ...


class _Wait:
    """What a procedure awaits: one native operation."""

    def __init__(self, operation: Native) -> None:
        self.operation = operation

    def __await__(self) -> Generator[Native, Any, Any]:
        return (yield self.operation)


def run_blocking(procedure: Coroutine[Native, Any, T], timeout: float | None = None) -> T:
    """Runs a procedure in this thread; the native waits release the interpreter lock."""
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            operation = procedure.throw(failure) if failure is not None else procedure.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer, failure = None, None
        try:
            answer = operation.wait(timeout)
        except BaseException as error:
            failure = error


async def run_awaiting(procedure: Coroutine[Native, Any, T]) -> T:
    """Runs a procedure in the running event loop."""
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            operation = procedure.throw(failure) if failure is not None else procedure.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer, failure = None, None
        try:
            answer = await _Native(operation)
        except BaseException as error:
            failure = error


class _Native:
    def __init__(self, operation: Native) -> None:
        self._operation = operation

    def __await__(self) -> Generator[Any, None, Any]:
        yield from completion(self._operation)
        return self._operation.wait(0)


def encode_key(key: Key) -> bytes:
    """The key's bytes. Invalid: empty, too long, of another type."""
    raw = key.encode() if isinstance(key, str) else key
    if not isinstance(raw, bytes):
        raise Invalid(f"a key is str or bytes, not {type(key).__name__}")
    if not 0 < len(raw) <= _KEY_BYTES_MAX:
        raise Invalid(f"a key has 1 to {_KEY_BYTES_MAX} bytes, not {len(raw)}")
    return raw


class Procedures:
    """Put, get and the rest over one native client. Any thread."""

    def __init__(self, client: _core.StoreClient) -> None:
        self._client = client
        self._unquiet: list[tuple[_core.Batch, object]] = []

    async def _finish(self, batch: _core.Batch, memory: object) -> list[Any]:
        """The batch's results, once nothing touches `memory` any more.

        Left early (a cancelled task, a signal) the batch is cancelled and the memory kept until it is quiet.
        """
        self._unquiet = [item for item in self._unquiet if not item[0].quiet]
        try:
            results: list[Any] = await _Wait(batch)
            await _Wait(batch.quieted())
        except BaseException:
            batch.cancel()
            self._unquiet.append((batch, memory))
            raise
        return results

    async def put_many(self, items: Sequence[tuple[Key, object]], trace: str = "") -> list[MoontideError | None]:
        results: list[MoontideError | None] = [None] * len(items)
        accepted: list[tuple[int, bytes, tuple[int, int], object]] = []
        for index, (key, value) in enumerate(items):
            try:
                address, length, keep = _memory_range(_readable(value))
                accepted.append((index, encode_key(key), (address, length), keep))
            except MoontideError as error:
                results[index] = error
        if not accepted:
            return results
        parts = [_as_parts(item[2]) for item in accepted]
        batch = self._client.put([item[1] for item in accepted], parts, False, trace=trace)
        outcome = await self._finish(batch, accepted)
        for (index, *_), result in zip(accepted, outcome, strict=True):
            results[index] = result if isinstance(result, MoontideError) else None
        return results

    async def get_into(self, key: Key, buffer: object) -> int:
        address, room, keep = _memory_range(buffer, writable=True)
        batch = self._client.get([encode_key(key)], [_as_parts((address, room))])
        result = (await self._finish(batch, keep))[0]
        if isinstance(result, Invalid):
            raise TooLarge(result.message)
        if isinstance(result, MoontideError):
            raise result
        length: int = result
        return length

    async def get(self, key: Key, trace: str = "") -> bytes:
        found = await self.get_many([key], trace)
        if isinstance(found[0], MoontideError):
            raise found[0]
        return found[0]

    async def get_many(self, keys: Sequence[Key], trace: str = "") -> list[bytes | MoontideError]:
        results: list[bytes | MoontideError] = [NotFound("")] * len(keys)
        asked: list[tuple[int, bytes]] = []
        for index, key in enumerate(keys):
            try:
                asked.append((index, encode_key(key)))
            except MoontideError as error:
                results[index] = error
        for _ in range(_GET_TRIES):
            asked = await self._get_round(asked, results, trace)
            if not asked:
                break
        return results

    async def _get_round(
        self, asked: list[tuple[int, bytes]], results: list[bytes | MoontideError], trace: str
    ) -> list[tuple[int, bytes]]:
        """Reads what can be read; returns those whose length changed under way."""
        if not asked:
            return []
        try:
            lengths = await _Wait(self._client.stat([key for _, key in asked]))
        except MoontideError as error:
            for index, _ in asked:
                results[index] = error
            return []
        wanted: list[tuple[int, bytes, bytearray]] = []
        for (index, key), length in zip(asked, lengths, strict=True):
            if isinstance(length, MoontideError):
                results[index] = length
            else:
                wanted.append((index, key, bytearray(length)))
        again: list[tuple[int, bytes]] = []
        if not wanted:
            return again
        parts = [_as_parts(_memory_range(target)[:2]) for _, _, target in wanted]
        batch = self._client.get([key for _, key, _ in wanted], parts, trace=trace)
        outcome = await self._finish(batch, wanted)
        for (index, key, target), result in zip(wanted, outcome, strict=True):
            if isinstance(result, Invalid):
                again.append((index, key))
                results[index] = result
            else:
                results[index] = result if isinstance(result, MoontideError) else bytes(target)
        return again

    async def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        found = await _Wait(self._client.exists([encode_key(key) for key in keys]))
        for result in found:
            if isinstance(result, MoontideError) and not isinstance(result, NotFound):
                raise result
        return [not isinstance(result, MoontideError) for result in found]

    async def remove_many(self, keys: Sequence[Key]) -> list[MoontideError | None]:
        outcome = await _Wait(self._client.remove([encode_key(key) for key in keys]))
        return [result if isinstance(result, MoontideError) else None for result in outcome]

    async def list(self, prefix: Key = b"") -> list[ObjectInfo]:
        raw = prefix.encode() if isinstance(prefix, str) else prefix
        found: list[ObjectInfo] = []
        after = b""
        while True:
            page, after = await _Wait(self._client.list(raw, after, _LIST_PAGE))
            found += (ObjectInfo(key, length) for key, length in page)
            if not after:
                return found

    async def stats(self) -> dict[str, int]:
        numbers: dict[str, int] = await _Wait(self._client.pool_stats())
        return numbers


def _readable(value: object) -> object:
    if isinstance(value, str):
        raise Invalid("a value is bytes or another contiguous buffer; encode the text")
    return value


def _as_parts(place: tuple[int, int]) -> list[tuple[int, int]]:
    return [place] if place[1] else []


def operation_of(native: _core.Batch) -> Operation[list[MoontideError | None]]:
    """The batch as the caller sees it: one error or None per key."""
    return Operation(native, lambda found: [item if isinstance(item, MoontideError) else None for item in found])
