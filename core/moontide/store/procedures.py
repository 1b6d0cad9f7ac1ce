"""What a store does, once: procedures that wait for native operations without saying how.

`Store` drives them by blocking, `AsyncStore` by awaiting; see `run_blocking` and `run_awaiting`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from moontide import _core
from moontide._waiting import completion
from moontide.engine import Operation, _memory_range
from moontide.errors import Invalid, MoontideError, NoSpace, NotFound, TooLarge, Unsupported
from moontide.store.options import ANYWHERE, NOT_RETAINED, Placement, Retained, is_node_id
from moontide.store.ranges import PartOf, get_into_range, get_ranges, object_range
from moontide.store.tensors import FRAMEWORKS, fill_tree, pack_tree, unpack_tree
from moontide.store.views import View

__all__ = [
    "DrainStatus",
    "Key",
    "LetGo",
    "Native",
    "ObjectInfo",
    "Place",
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


class Place(NamedTuple):
    """Where a replica lies: the id of the node, and the address of its engine."""

    node: str
    address: str


class ObjectInfo(NamedTuple):
    """One committed object: its key, and its length in bytes.

    From `stat` also where it lies, the nearest first, and its version, which tells it from any other that the key has
    had or will have.
    """

    key: bytes
    length: int
    places: tuple[Place, ...] = ()
    version: str = ""


class DrainStatus(NamedTuple):
    """What still lies on a node that is drained: objects, and bytes with headers and alignment."""

    objects: int
    nbytes: int


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


async def run_awaiting(procedure: Coroutine[Native, Any, T], begun: Callable[[], None]) -> T:
    """Runs a procedure in the running event loop. `begun` is called where something began that is waited for."""
    answer: Any = None
    failure: BaseException | None = None
    while True:
        try:
            operation = procedure.throw(failure) if failure is not None else procedure.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        answer, failure = None, None
        begun()
        try:
            answer = await _Native(operation)
        except BaseException as error:
            failure = error


class LetGo:
    """Lets what a client gathered go once per turn of the event loop: what tasks begin in it goes out together."""

    def __init__(self, client: _core.StoreClient) -> None:
        self._client = client
        self._coming: object = None  # the event loop that will; one that ended in between never does

    def soon(self) -> None:
        import asyncio  # see moontide._waiting

        loop = asyncio.get_running_loop()
        if self._coming is not loop:
            loop.call_soon(self._now)
            self._coming = loop

    def _now(self) -> None:
        self._coming = None
        self._client.let_go()


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
        self._unquiet_lock = threading.Lock()

    async def _finish(self, batch: _core.Batch, memory: object) -> list[Any]:
        """The batch's results, once nothing touches `memory` any more.

        Left early (a cancelled task, a signal) the batch is cancelled and the memory kept until it is quiet.
        """
        if self._unquiet:
            with self._unquiet_lock:
                self._unquiet[:] = [item for item in self._unquiet if not item[0].quiet]
        try:
            results: list[Any] = await _Wait(batch.finished())
        except BaseException:
            batch.cancel()
            with self._unquiet_lock:
                self._unquiet.append((batch, memory))
            raise
        return results

    async def put_many(
        self,
        items: Sequence[tuple[Key, object]],
        trace: str = "",
        retained: Retained = NOT_RETAINED,
        placement: Placement = ANYWHERE,
        prefix: bool = False,
    ) -> list[MoontideError | None]:
        found = await self._put(items, (), trace, retained, placement, prefix)
        return [item if isinstance(item, MoontideError) else None for item in found]

    async def upsert_many(
        self,
        items: Sequence[tuple[Key, object]],
        versions: Sequence[str | None] | None,
        trace: str = "",
        retained: Retained = NOT_RETAINED,
        placement: Placement = ANYWHERE,
    ) -> list[str | MoontideError]:
        if versions is not None and len(versions) != len(items):
            raise Invalid(f"{len(items)} items, {len(versions)} versions")
        wanted = ["" if version is None else version for version in versions or [None] * len(items)]
        return await self._put(items, wanted, trace, retained, placement, prefix=False)

    async def _put(
        self,
        items: Sequence[tuple[Key, object]],
        replaces: Sequence[str],
        trace: str,
        retained: Retained,
        placement: Placement,
        prefix: bool,
    ) -> list[Any]:
        results: list[Any] = [None] * len(items)
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
        raw = [item[1] for item in accepted]
        batch = self._client.put(
            raw,
            parts,
            False,
            trace=trace,
            prefix=prefix,
            retained=retained,
            placement=placement,
            replaces=[replaces[item[0]] for item in accepted] if replaces else [],
        )
        outcome = await self._finish(batch, accepted)
        for (index, *_), result in zip(accepted, outcome, strict=True):
            results[index] = result
        return results

    async def read(
        self,
        keys: list[bytes],
        places: list[tuple[int, int]],
        ranges: list[tuple[int, int]],
        memory: object,
        trace: str,
    ) -> list[int | MoontideError]:
        """Ranges (offset, length) of objects into places of `memory`; per key the bytes read."""
        batch = self._client.get(keys, [_as_parts(place) for place in places], trace=trace, ranges=ranges)
        return await self._finish(batch, memory)

    async def lengths(self, keys: list[bytes]) -> list[int | MoontideError]:
        found: list[int | MoontideError] = await _Wait(self._client.stat(keys))
        return found

    async def get_into(self, key: Key, buffer: object, offset: int | None = None, length: int | None = None) -> int:
        if offset is not None or length is not None:
            return await get_into_range(self, encode_key(key), buffer, offset, length)
        address, room, keep = _memory_range(buffer, writable=True)
        batch = self._client.get([encode_key(key)], [_as_parts((address, room))])
        result = (await self._finish(batch, keep))[0]
        if isinstance(result, Invalid):
            raise TooLarge(result.message)
        if isinstance(result, MoontideError):
            raise result
        read: int = result
        return read

    async def get(self, key: Key, trace: str = "") -> bytes:
        return bytes(await self.get_buffer(key, trace))

    async def get_many(self, keys: Sequence[Key], trace: str = "") -> list[bytes | MoontideError]:
        found = await self.get_buffers(keys, trace)
        return [bytes(item) if isinstance(item, bytearray) else item for item in found]

    async def get_range_many(
        self, parts: Sequence[tuple[Key, int, int]], trace: str = ""
    ) -> list[bytes | MoontideError]:
        return await get_ranges(self, [_part_of(*part) for part in parts], trace)

    async def get_range(self, key: Key, offset: int, length: int, trace: str = "") -> bytes:
        found = (await self.get_range_many([(key, offset, length)], trace))[0]
        if isinstance(found, MoontideError):
            raise found
        return found

    async def get_buffer(self, key: Key, trace: str = "") -> bytearray:
        """As `get`, without the last copy."""
        found = (await self.get_buffers([key], trace))[0]
        if isinstance(found, MoontideError):
            raise found
        return found

    async def get_buffers(self, keys: Sequence[Key], trace: str = "") -> list[bytearray | MoontideError]:
        """As `get_many`, without the last copy."""
        results: list[bytearray | MoontideError] = [NotFound("")] * len(keys)
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
        self, asked: list[tuple[int, bytes]], results: list[bytearray | MoontideError], trace: str
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
                results[index] = result if isinstance(result, MoontideError) else target
        return again

    async def view_many(self, keys: Sequence[Key]) -> list[View | MoontideError]:
        raw = [encode_key(key) for key in keys]
        results: list[View | MoontideError] = []
        for key, found in zip(raw, await _Wait(self._client.view(raw)), strict=True):
            results.append(View(key, found) if isinstance(found, _core.View) else found)
        copied = [i for i, one in enumerate(results) if isinstance(one, NoSpace | Unsupported)]
        if copied:
            for i, found in zip(copied, await self.get_buffers([raw[i] for i in copied]), strict=True):
                results[i] = found if isinstance(found, MoontideError) else View(raw[i], found)
        return results

    async def view(self, key: Key) -> View:
        found = (await self.view_many([key]))[0]
        if isinstance(found, MoontideError):
            raise found
        return found

    async def put_tensors(
        self,
        key: Key,
        tree: object,
        trace: str = "",
        retained: Retained = NOT_RETAINED,
        placement: Placement = ANYWHERE,
    ) -> None:
        packed = pack_tree(tree)
        parts = _without_empty([_memory_range(memory)[:2] for memory in (packed.header, *packed.buffers)])
        batch = self._client.put([encode_key(key)], [parts], False, trace=trace, retained=retained, placement=placement)
        result = (await self._finish(batch, packed))[0]
        if isinstance(result, MoontideError):
            raise result

    async def get_tensors(self, key: Key, framework: str, trace: str = "") -> Any:
        if framework not in FRAMEWORKS:
            raise Invalid(f"framework = {framework!r}: allowed are {', '.join(FRAMEWORKS)}")
        return unpack_tree(await self.get_buffer(key, trace), framework)

    async def get_tensors_into(self, key: Key, tree: object, trace: str = "") -> None:
        packed = pack_tree(tree, into=True)
        places = [_memory_range(memory, writable=True)[:2] for memory in packed.buffers]
        header = bytearray(len(packed.header))
        # Most objects were put from a tree that looks the same: then all is in its place at once.
        parts = _without_empty([_memory_range(header, writable=True)[:2], *places])
        batch = self._client.get([encode_key(key)], [parts], trace=trace)
        result = (await self._finish(batch, (header, packed)))[0]
        if isinstance(result, MoontideError) and not isinstance(result, Invalid):
            raise result
        if result != packed.nbytes or header != packed.header:
            fill_tree(await self.get_buffer(key, trace), packed, places)

    async def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        found: list[bool] = await _Wait(self._client.exists(keys))
        return found

    async def stat_many(self, keys: Sequence[Key]) -> list[ObjectInfo | MoontideError]:
        raw = [encode_key(key) for key in keys]
        found = await _Wait(self._client.places(raw))
        return [
            item
            if isinstance(item, MoontideError)
            else ObjectInfo(key, item[0], tuple(Place(*place) for place in item[2]), version=item[1])
            for key, item in zip(raw, found, strict=True)
        ]

    async def remove_many(self, keys: Sequence[Key]) -> list[MoontideError | None]:
        outcome = await _Wait(self._client.remove(keys))
        return [result if isinstance(result, MoontideError) else None for result in outcome]

    async def keep_many(self, keys: Sequence[Key], retained: Retained) -> list[MoontideError | None]:
        outcome = await _Wait(self._client.keep(keys, retained))
        return [result if isinstance(result, MoontideError) else None for result in outcome]

    async def list(self, prefix: Key = b"", *, start_after: Key = b"", limit: int | None = None) -> list[ObjectInfo]:
        raw, after = (key.encode() if isinstance(key, str) else key for key in (prefix, start_after))
        if limit is not None and limit < 1:
            raise Invalid(f"limit = {limit}: at least 1; None is no limit")
        found: list[ObjectInfo] = []
        while True:
            left = _LIST_PAGE if limit is None else min(limit - len(found), _LIST_PAGE)
            page, after = await _Wait(self._client.list(raw, after, left))
            found += (ObjectInfo(key, length) for key, length in page)
            if not after or len(found) == limit:
                return found

    async def drain(self, node: str, cancel: bool) -> DrainStatus:
        if not is_node_id(node):
            raise Invalid(f"node = {node!r}: the id of a node is 32 hexadecimal digits")
        return DrainStatus(*await _Wait(self._client.drain(node, not cancel)))

    async def stats(self) -> dict[str, int]:
        numbers: dict[str, int] = await _Wait(self._client.pool_stats())
        return numbers


def _readable(value: object) -> object:
    if isinstance(value, str):
        raise Invalid("a value is bytes or another contiguous buffer; encode the text")
    return value


def _part_of(key: Key, offset: int, length: int) -> PartOf | MoontideError:
    try:
        return PartOf(encode_key(key), *object_range(offset, length))
    except MoontideError as error:
        return error


def _as_parts(place: tuple[int, int]) -> list[tuple[int, int]]:
    return [place] if place[1] else []


def _without_empty(parts: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [part for part in parts if part[1]]


def operation_of(native: _core.Batch) -> Operation[list[MoontideError | None]]:
    """The batch as the caller sees it: one error or None per key."""
    return Operation(native, lambda found: [item if isinstance(item, MoontideError) else None for item in found])
