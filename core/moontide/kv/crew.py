"""A few threads for calls that wait on the network, so that the engine's step never does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from moontide.errors import Overloaded

__all__ = ["Crew"]


class Crew:
    """Runs callables on daemon threads, which start with the first one. Bounded: `submit` raises Overloaded when full.

    The threads die with the process: nothing relies on `close`.
    """

    def __init__(self, name: str, threads: int, limit: int) -> None:
        self._name = name
        self._threads = threads
        self._limit = limit
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._pending = 0
        self._started = 0

    def submit(self, call: Callable[[], None]) -> None:
        """``call`` must not raise. Raises Overloaded."""
        with self._lock:
            if self._pending >= self._limit:
                raise Overloaded(f"{self._pending} calls are under way, the limit is {self._limit}")
            self._pending += 1
            start = self._started < min(self._threads, self._pending)
            self._started += start
        if start:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        self._work.put(call)

    def close(self) -> None:
        """Lets the threads end after what is queued."""
        with self._lock:
            started, self._started = self._started, 0
        for _ in range(started):
            self._work.put(None)

    def _run(self) -> None:
        while (call := self._work.get()) is not None:
            try:
                call()
            finally:
                with self._lock:
                    self._pending -= 1
