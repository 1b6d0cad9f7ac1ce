"""How native operations meet asyncio: one descriptor per event loop tells it what is over."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol

from moontide import _core

if TYPE_CHECKING:
    import asyncio  # a third of what `import moontide` costs, for those who never await

__all__ = ["completion"]


class Watchable(Protocol):
    """Whatever can tell a notifier that it is over."""

    def watch(self, notifier: _core.Notifier, token: int) -> None: ...


class _LoopWatch:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.notifier = _core.Notifier()
        self.futures: dict[int, asyncio.Future[None]] = {}
        self.tokens = itertools.count(1)
        loop.add_reader(self.notifier.fileno(), self._drain)

    def _drain(self) -> None:
        for token in self.notifier.drain():
            future = self.futures.pop(token, None)
            if future is not None and not future.done():
                future.set_result(None)


_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWatch] = weakref.WeakKeyDictionary()


def completion(operation: Watchable) -> Generator[Any, None, None]:
    """Awaits the end of `operation` in the running loop. A cancelled await leaves the operation as it is."""
    import asyncio

    loop = asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None:
        watch = _watches.setdefault(loop, _LoopWatch(loop))
    token = next(watch.tokens)
    future: asyncio.Future[None] = loop.create_future()
    watch.futures[token] = future
    operation.watch(watch.notifier, token)
    try:
        yield from future
    finally:
        watch.futures.pop(token, None)
