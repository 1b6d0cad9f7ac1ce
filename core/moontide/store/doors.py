"""`Store` blocks, `AsyncStore` awaits; both are the same procedures over the same native client."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

from moontide.errors import MoontideError
from moontide.observe.traces import Trace, trace_text
from moontide.store.base import StoreBase
from moontide.store.options import placement, retained
from moontide.store.procedures import DrainStatus, Key, Native, ObjectInfo, run_awaiting, run_blocking
from moontide.store.views import View

__all__ = ["AsyncStore", "Store"]

T = TypeVar("T")


class Store(StoreBase):
    """The pool, blocking. Any thread; waits release the interpreter lock.

    `master` ("host:port"): the pool that the master keeps; without it a pool of this process alone, in `lend` bytes of
    memory (default: the configuration's `lend`, else 256 MiB). With both, this process also lends `lend` bytes to the
    master's pool. `engine`: one to share; without it the store makes its own and closes it. A master that does not
    answer is an error of the calls, not of this one. Invalid: an option's value. Unavailable: the master's name cannot
    be resolved. NoSpace: so much memory cannot be lent.

    A key is a text or bytes, 1 to 1024 bytes long. Every call may raise Unavailable (no connection to the master),
    TimedOut, Invalid (a key) and Closed; those that mean more are named below.
    """

    def put(
        self,
        key: Key,
        value: object,
        *,
        pin: str = "none",
        ttl: float | None = None,
        replicas: int = 1,
        prefer: Sequence[str] = (),
        avoid: Sequence[str] = (),
        trace: Trace = "",
    ) -> None:
        """Stores the bytes of a contiguous buffer. After it returns every client sees the object.

        `pin`: "soft": evicted only where objects that are not pinned do not make room enough; "hard": never evicted
        (a pool full of such objects takes nothing more). `ttl`: seconds from now, after which it is gone, pinned or
        not; None: no end. Both outlive a restart of the master, not the loss of every node that has the object.
        `replicas`: copies on as many nodes, 1 to 8. Where fewer nodes have room, or some fail, it is stored with fewer
        (`stat` shows where), at least one. `prefer`: ids of nodes that are tried first, in this order; "own" is the
        node of this very store. `avoid`: ids of nodes that are never used. Ids are in `ObjectInfo.places`.
        AlreadyExists: the key has an object (or an unfinished put); NoSpace, TooLarge, Unavailable, TimedOut.
        """
        where = placement(replicas, prefer, avoid)
        error = run_blocking(self._procedures.put_many([(key, value)], trace_text(trace), retained(pin, ttl), where))[0]
        if error is not None:
            raise error

    def put_many(
        self,
        items: Sequence[tuple[Key, object]],
        *,
        pin: str = "none",
        ttl: float | None = None,
        replicas: int = 1,
        prefer: Sequence[str] = (),
        avoid: Sequence[str] = (),
        prefix: bool = False,
        trace: Trace = "",
    ) -> list[MoontideError | None]:
        """Stores several (key, contiguous buffer); one result per item, in order: None, or the error of `put`.

        `prefix`: they are one group, the blocks of a prefix: each is worthless without the one before it, so the pool
        gives up the last ones first.
        """
        where = placement(replicas, prefer, avoid)
        return run_blocking(self._procedures.put_many(items, trace_text(trace), retained(pin, ttl), where, prefix))

    def upsert(
        self,
        key: Key,
        value: object,
        *,
        version: str | None = None,
        pin: str = "none",
        ttl: float | None = None,
        replicas: int = 1,
        prefer: Sequence[str] = (),
        avoid: Sequence[str] = (),
        trace: Trace = "",
    ) -> str:
        """Stores the bytes in the place of whatever the key has, and returns the version of the new object.

        With `version` (of `upsert` or `stat`) only where that very object is still there: of several who read one
        version, one succeeds. Readers see the old object or the new one, and in between perhaps a miss, never a mix.
        Other options as for `put`. Stale: the key does not have that version (any more); TimedOut: also while another
        put of the key is under way; NoSpace, TooLarge, Unavailable.
        """
        where = placement(replicas, prefer, avoid)
        text, kept = trace_text(trace), retained(pin, ttl)
        found = run_blocking(self._procedures.upsert_many([(key, value)], [version], text, kept, where))[0]
        if isinstance(found, MoontideError):
            raise found
        return found

    def upsert_many(
        self,
        items: Sequence[tuple[Key, object]],
        *,
        versions: Sequence[str | None] | None = None,
        pin: str = "none",
        ttl: float | None = None,
        replicas: int = 1,
        prefer: Sequence[str] = (),
        avoid: Sequence[str] = (),
        trace: Trace = "",
    ) -> list[str | MoontideError]:
        """As `upsert`, for several (key, contiguous buffer); the version or the error per item, in order."""
        where = placement(replicas, prefer, avoid)
        text = trace_text(trace)
        return run_blocking(self._procedures.upsert_many(items, versions, text, retained(pin, ttl), where))

    def keep(self, key: Key, *, pin: str = "none", ttl: float | None = None) -> None:
        """Says anew how long an object is kept, as for `put`, the ttl from now on; without options: like any other.

        NotFound; Unavailable: its node is away. Clients that know its place may read it for one lease more after a
        shorter ttl.
        """
        error = self.keep_many([key], pin=pin, ttl=ttl)[0]
        if error is not None:
            raise error

    def keep_many(
        self, keys: Sequence[Key], *, pin: str = "none", ttl: float | None = None
    ) -> list[MoontideError | None]:
        """As `keep`, for several; one result per key, in order: None, or NotFound."""
        return run_blocking(self._procedures.keep_many(keys, retained(pin, ttl)))

    def get(self, key: Key, *, trace: Trace = "") -> bytes:
        """The object's bytes, exactly as they were put. NotFound: a miss."""
        return run_blocking(self._procedures.get(key, trace_text(trace)))

    def get_into(self, key: Key, buffer: object, *, offset: int | None = None, length: int | None = None) -> int:
        """Reads the object into a writable buffer and returns its length in bytes.

        With `offset` or `length` only a part, as `get_range`: from the offset (0) on, at most so many bytes (as the
        buffer has); returns how many were read. NotFound; TooLarge: the buffer is smaller; Invalid: it is read-only
        or not contiguous, or the offset is past the object's end.
        """
        return run_blocking(self._procedures.get_into(key, buffer, offset, length))

    def get_range(self, key: Key, offset: int, length: int, *, trace: Trace = "") -> bytes:
        """The object's bytes from `offset` on: `length` of them, fewer where it ends before; none at its very end.

        They are all of one put. Unlike a whole object's, their checksum is not compared (see docs/design/pool.md).
        NotFound: a miss. Invalid: the offset is past the object's end (says both).
        """
        return run_blocking(self._procedures.get_range(key, offset, length, trace_text(trace)))

    def get_range_many(
        self, parts: Sequence[tuple[Key, int, int]], *, trace: Trace = ""
    ) -> list[bytes | MoontideError]:
        """Reads several (key, offset, length); bytes or the error of `get_range` per item, in order."""
        return run_blocking(self._procedures.get_range_many(parts, trace_text(trace)))

    def get_many(self, keys: Sequence[Key], *, trace: Trace = "") -> list[bytes | MoontideError]:
        """Reads several; bytes or the error of `get` per key, in order."""
        return run_blocking(self._procedures.get_many(keys, trace_text(trace)))

    def view(self, key: Key) -> View:
        """The object's bytes where they lie, read-only and without a copy where a node of this host has it; see `View`.

        It costs the same for every length. Raises as `get`.
        """
        return run_blocking(self._procedures.view(key))

    def view_many(self, keys: Sequence[Key]) -> list[View | MoontideError]:
        """Views of several; a `View` or the error of `view` per key, in order."""
        return run_blocking(self._procedures.view_many(keys))

    def put_tensors(
        self,
        key: Key,
        tree: object,
        *,
        pin: str = "none",
        ttl: float | None = None,
        replicas: int = 1,
        prefer: Sequence[str] = (),
        avoid: Sequence[str] = (),
        trace: Trace = "",
    ) -> None:
        """Stores a tree of tensors as one object: an array, or dicts (of text keys), lists and tuples of arrays.

        An array is numpy's or torch's; one on a device or not contiguous is copied first, others are read in place.
        The object is a safetensors value, to be read by whatever reads that format. Errors: as `put`. Invalid: a leaf
        that is no array of numbers, a tree of more than 100 levels or 65,535 arrays.
        """
        where = placement(replicas, prefer, avoid)
        run_blocking(self._procedures.put_tensors(key, tree, trace_text(trace), retained(pin, ttl), where))

    def get_tensors(self, key: Key, *, framework: str = "numpy", trace: Trace = "") -> Any:
        """The tree that `put_tensors` stored, dtypes and shapes kept; its arrays share one new piece of memory.

        `framework`: what the arrays are, "numpy" or "torch" (on the CPU), whatever they were. Other safetensors values
        come as a dict by name. NotFound: a miss. Invalid: no safetensors value, or a type that the framework lacks
        (bfloat16 and float8 in numpy without ml_dtypes).
        """
        return run_blocking(self._procedures.get_tensors(key, framework, trace_text(trace)))

    def get_tensors_into(self, key: Key, tree: object, *, trace: Trace = "") -> None:
        """Reads what `put_tensors` stored into the arrays of `tree`, which has the same names, dtypes and shapes.

        Where the whole tree looks the same, the bytes go straight to their places. NotFound: a miss. Invalid: a tensor
        differs or is missing, an array is read-only, not contiguous or on a device. After an error the arrays hold
        anything.
        """
        run_blocking(self._procedures.get_tensors_into(key, tree, trace_text(trace)))

    def exists(self, key: Key) -> bool:
        """True when a get would find the object now."""
        return self.exists_many([key])[0]

    def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        """As `exists`, for several, in one request."""
        return run_blocking(self._procedures.exists_many(keys))

    def stat(self, key: Key) -> ObjectInfo:
        """The object's key, length and places. NotFound."""
        found = self.stat_many([key])[0]
        if isinstance(found, MoontideError):
            raise found
        return found

    def stat_many(self, keys: Sequence[Key]) -> list[ObjectInfo | MoontideError]:
        """As `stat`, for several; one result per key, in order: its info, or NotFound."""
        return run_blocking(self._procedures.stat_many(keys))

    def remove(self, key: Key) -> None:
        """Removes the object; no get finds it from now on. NotFound."""
        error = self.remove_many([key])[0]
        if error is not None:
            raise error

    def remove_many(self, keys: Sequence[Key]) -> list[MoontideError | None]:
        """Removes several; one result per key, in order: None, or NotFound."""
        return run_blocking(self._procedures.remove_many(keys))

    def list(self, prefix: Key = b"", *, start_after: Key = b"", limit: int | None = None) -> list[ObjectInfo]:
        """Committed objects whose key starts with `prefix`, by key; those that come or go meanwhile may be missing.

        At most `limit` of them, behind the key `start_after`; that of the last one found goes on there.
        """
        return run_blocking(self._procedures.list(prefix, start_after=start_after, limit=limit))

    def drain(self, node: str, *, cancel: bool = False) -> DrainStatus:
        """Has a node's objects go to other nodes, so that it may be stopped; returns what still lies there.

        `node`: its id, as `stat` tells. It takes no new objects, and gives up what lies elsewhere as often as was asked
        for. Returns at once; ask again until there are no objects left. What no other node has room for stays, and can
        be read. `cancel=True`: it takes objects again; what has gone stays where it is. NotFound: the pool has no such
        node. A master that restarts has forgotten it: drain again.
        """
        return run_blocking(self._procedures.drain(node, cancel))

    def stats(self) -> dict[str, int]:
        """The pool as its master sees it: bytes (names that end so), objects, nodes."""
        return run_blocking(self._procedures.stats())

    def close(self) -> None:
        """Leaves the pool. Memory that this process lent goes with it. Idempotent."""
        self._close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncStore(StoreBase):
    """The pool for asyncio: the methods of `Store` as coroutines, with the same arguments, results and errors.

    A cancelled call is cancelled in the pool as well; its memory is kept until nothing touches it. What tasks begin
    in one turn of their loop goes to the master together.
    """

    _gathers = True

    async def _run(self, procedure: Coroutine[Native, Any, T]) -> T:
        return await run_awaiting(procedure, self._let_go.soon)

    async def put(
        self,
        key: Key,
        value: object,
        *,
        pin: str = "none",
        ttl: float | None = None,
        replicas: int = 1,
        prefer: Sequence[str] = (),
        avoid: Sequence[str] = (),
        trace: Trace = "",
    ) -> None:
        """See `Store.put`."""
        where = placement(replicas, prefer, avoid)
        putting = self._procedures.put_many([(key, value)], trace_text(trace), retained(pin, ttl), where)
        error = (await self._run(putting))[0]
        if error is not None:
            raise error

    async def put_many(
        self,
        items: Sequence[tuple[Key, object]],
        *,
        pin: str = "none",
        ttl: float | None = None,
        replicas: int = 1,
        prefer: Sequence[str] = (),
        avoid: Sequence[str] = (),
        prefix: bool = False,
        trace: Trace = "",
    ) -> list[MoontideError | None]:
        """See `Store.put_many`."""
        where = placement(replicas, prefer, avoid)
        return await self._run(self._procedures.put_many(items, trace_text(trace), retained(pin, ttl), where, prefix))

    async def upsert(
        self,
        key: Key,
        value: object,
        *,
        version: str | None = None,
        pin: str = "none",
        ttl: float | None = None,
        replicas: int = 1,
        prefer: Sequence[str] = (),
        avoid: Sequence[str] = (),
        trace: Trace = "",
    ) -> str:
        """See `Store.upsert`."""
        where = placement(replicas, prefer, avoid)
        text, kept = trace_text(trace), retained(pin, ttl)
        found = (await self._run(self._procedures.upsert_many([(key, value)], [version], text, kept, where)))[0]
        if isinstance(found, MoontideError):
            raise found
        return found

    async def upsert_many(
        self,
        items: Sequence[tuple[Key, object]],
        *,
        versions: Sequence[str | None] | None = None,
        pin: str = "none",
        ttl: float | None = None,
        replicas: int = 1,
        prefer: Sequence[str] = (),
        avoid: Sequence[str] = (),
        trace: Trace = "",
    ) -> list[str | MoontideError]:
        """See `Store.upsert_many`."""
        where = placement(replicas, prefer, avoid)
        text = trace_text(trace)
        return await self._run(self._procedures.upsert_many(items, versions, text, retained(pin, ttl), where))

    async def keep(self, key: Key, *, pin: str = "none", ttl: float | None = None) -> None:
        """See `Store.keep`."""
        error = (await self.keep_many([key], pin=pin, ttl=ttl))[0]
        if error is not None:
            raise error

    async def keep_many(
        self, keys: Sequence[Key], *, pin: str = "none", ttl: float | None = None
    ) -> list[MoontideError | None]:
        """See `Store.keep_many`."""
        return await self._run(self._procedures.keep_many(keys, retained(pin, ttl)))

    async def get(self, key: Key, *, trace: Trace = "") -> bytes:
        """See `Store.get`."""
        return await self._run(self._procedures.get(key, trace_text(trace)))

    async def get_into(self, key: Key, buffer: object, *, offset: int | None = None, length: int | None = None) -> int:
        """See `Store.get_into`."""
        return await self._run(self._procedures.get_into(key, buffer, offset, length))

    async def get_range(self, key: Key, offset: int, length: int, *, trace: Trace = "") -> bytes:
        """See `Store.get_range`."""
        return await self._run(self._procedures.get_range(key, offset, length, trace_text(trace)))

    async def get_range_many(
        self, parts: Sequence[tuple[Key, int, int]], *, trace: Trace = ""
    ) -> list[bytes | MoontideError]:
        """See `Store.get_range_many`."""
        return await self._run(self._procedures.get_range_many(parts, trace_text(trace)))

    async def get_many(self, keys: Sequence[Key], *, trace: Trace = "") -> list[bytes | MoontideError]:
        """See `Store.get_many`."""
        return await self._run(self._procedures.get_many(keys, trace_text(trace)))

    async def view(self, key: Key) -> View:
        """See `Store.view`."""
        return await self._run(self._procedures.view(key))

    async def view_many(self, keys: Sequence[Key]) -> list[View | MoontideError]:
        """See `Store.view_many`."""
        return await self._run(self._procedures.view_many(keys))

    async def put_tensors(
        self,
        key: Key,
        tree: object,
        *,
        pin: str = "none",
        ttl: float | None = None,
        replicas: int = 1,
        prefer: Sequence[str] = (),
        avoid: Sequence[str] = (),
        trace: Trace = "",
    ) -> None:
        """See `Store.put_tensors`."""
        where = placement(replicas, prefer, avoid)
        await self._run(self._procedures.put_tensors(key, tree, trace_text(trace), retained(pin, ttl), where))

    async def get_tensors(self, key: Key, *, framework: str = "numpy", trace: Trace = "") -> Any:
        """See `Store.get_tensors`."""
        return await self._run(self._procedures.get_tensors(key, framework, trace_text(trace)))

    async def get_tensors_into(self, key: Key, tree: object, *, trace: Trace = "") -> None:
        """See `Store.get_tensors_into`."""
        await self._run(self._procedures.get_tensors_into(key, tree, trace_text(trace)))

    async def exists(self, key: Key) -> bool:
        """See `Store.exists`."""
        return (await self.exists_many([key]))[0]

    async def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        """See `Store.exists_many`."""
        return await self._run(self._procedures.exists_many(keys))

    async def stat(self, key: Key) -> ObjectInfo:
        """See `Store.stat`."""
        found = (await self.stat_many([key]))[0]
        if isinstance(found, MoontideError):
            raise found
        return found

    async def stat_many(self, keys: Sequence[Key]) -> list[ObjectInfo | MoontideError]:
        """See `Store.stat_many`."""
        return await self._run(self._procedures.stat_many(keys))

    async def remove(self, key: Key) -> None:
        """See `Store.remove`."""
        error = (await self.remove_many([key]))[0]
        if error is not None:
            raise error

    async def remove_many(self, keys: Sequence[Key]) -> list[MoontideError | None]:
        """See `Store.remove_many`."""
        return await self._run(self._procedures.remove_many(keys))

    async def list(self, prefix: Key = b"", *, start_after: Key = b"", limit: int | None = None) -> list[ObjectInfo]:
        """See `Store.list`."""
        return await self._run(self._procedures.list(prefix, start_after=start_after, limit=limit))

    async def drain(self, node: str, *, cancel: bool = False) -> DrainStatus:
        """See `Store.drain`."""
        return await self._run(self._procedures.drain(node, cancel))

    async def stats(self) -> dict[str, int]:
        """See `Store.stats`."""
        return await self._run(self._procedures.stats())

    async def close(self) -> None:
        """See `Store.close`."""
        self._close()

    async def __aenter__(self) -> AsyncStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
