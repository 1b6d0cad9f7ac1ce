"""Whether a pool can be used: by trying it, not by asking its counters."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping

import msgspec

from moontide.errors import MoontideError, NotFound
from moontide.store import AsyncStore

__all__ = ["Health", "SelfTest", "Tried", "judge"]

_VALUE_BYTES = 64
_LEFT_BEHIND_S = 60.0  # an object of a test that was broken off is gone after that


class Tried(msgspec.Struct, frozen=True):
    """One self-test: an object put, read back, compared and removed over the whole path."""

    seconds: float
    error: str = ""
    """Why it failed; empty: it did not."""


class Health(msgspec.Struct, frozen=True):
    """`state`: "ready" (a self-test held, every known node takes objects), "degraded" (a self-test held, some nodes do
    not take any), "unready" (objects cannot be put and read now)."""

    state: str
    reasons: tuple[str, ...]
    """What keeps it from being ready."""
    tried: Tried

    @property
    def usable(self) -> bool:
        return self.state != "unready"


def judge(tried: Tried, counts: Mapping[str, int]) -> Health:
    """`counts`: the master's `stats`."""
    reasons = []
    missing = counts["nodes"] - counts["nodes_ready"]
    if counts["nodes"] == 0:
        reasons.append("no node has joined")
    elif missing > 0:
        reasons.append(f"{missing} of {counts['nodes']} nodes away or joining")
    if tried.error:
        return Health("unready", (f"self-test: {tried.error}", *reasons), tried)
    return Health("degraded" if reasons else "ready", tuple(reasons), tried)


class SelfTest:
    """Puts an object, reads it, compares, removes it; what came of that holds for `fresh` seconds.

    One test at a time, whoever asks meanwhile waits for it; after `limit` seconds it has failed. Event loop's thread.
    """

    def __init__(
        self,
        store: Callable[[], AsyncStore],
        *,
        fresh: float = 1.0,
        limit: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._fresh, self._limit, self._clock = fresh, limit, clock
        self._latest: Tried | None = None
        self._ended = 0.0
        self._running: asyncio.Task[Tried] | None = None

    async def tried(self) -> Tried:
        if self._latest is not None and self._clock() - self._ended < self._fresh:
            return self._latest
        if self._running is None:
            self._running = asyncio.create_task(self._try())
        return await asyncio.shield(self._running)

    async def _try(self) -> Tried:
        began = self._clock()
        error = ""
        try:
            await asyncio.wait_for(self._round_trip(), self._limit)
        except asyncio.TimeoutError:
            error = f"not done within {self._limit:g} s"
        except MoontideError as failure:
            error = str(failure)
        finally:
            self._running = None
        self._ended = self._clock()
        self._latest = Tried(self._ended - began, error)
        return self._latest

    async def _round_trip(self) -> None:
        store = self._store()
        key, value = b"moontide/self-test/" + os.urandom(16).hex().encode(), os.urandom(_VALUE_BYTES)
        await store.put(key, value, ttl=_LEFT_BEHIND_S)
        found = await store.get(key)
        if found != value:
            raise NotFound("what was read is not what was put")
        await store.remove(key)
