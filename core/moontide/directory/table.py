"""The records that a master serves: in its memory only, since those who published renew them."""

from __future__ import annotations

import bisect
import heapq
import threading
from collections.abc import Callable

from moontide.directory.record import Record, check_name, check_prefix, check_record, check_ttl, successor
from moontide.errors import NoSpace, NotFound

__all__ = ["SegmentTable"]

_OVERHEAD_BYTES = 400  # of a record's objects and its places in the containers, about


class SegmentTable:
    """Names → records with an end. Any thread; does no I/O.

    `clock` gives seconds and never goes back. `wall_us` gives microseconds since 1970: it makes the floor of new
    epochs, so that a table that has lost its records still numbers a claim above those it has forgotten. Where the
    records are there, they count, and the wall clock may say what it likes.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        wall_us: Callable[[], int],
        *,
        count_max: int = 65_536,
        bytes_max: int = 64 << 20,
    ) -> None:
        self._lock = threading.Lock()  # never held for longer than a look-up: a reader of metrics is in a thread
        self._clock = clock
        self._wall_us = wall_us
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.nbytes = 0
        self.expired = 0
        """Records whose time was over, since the start."""
        self._entries: dict[str, tuple[Record, float]] = {}
        self._names: list[str] = []  # sorted
        self._ends: list[tuple[float, str]] = []  # a heap; entries that were renewed are found out when they come up

    def __len__(self) -> int:
        with self._lock:
            self._expire()
            return len(self._entries)

    def publish(self, record: Record, ttl: float) -> Record:
        """See `Directory.publish`. NoSpace: the table is full."""
        check_record(record)
        check_ttl(ttl)
        with self._lock:
            return self._publish(record, ttl)

    def _publish(self, record: Record, ttl: float) -> Record:
        self._expire()
        entry = self._entries.get(record.name)
        stored = successor(entry[0] if entry else None, record, self._wall_us())
        growth = _size(stored) - (_size(entry[0]) if entry else 0)
        if entry is None and len(self._entries) >= self.count_max:
            raise NoSpace(f"the directory has {self.count_max} segments, its bound")
        if growth > 0 and self.nbytes + growth > self.bytes_max:
            raise NoSpace(f"the directory's records have {self.nbytes} bytes, its bound is {self.bytes_max}")
        if entry is None:
            bisect.insort(self._names, record.name)
        end = self._clock() + ttl
        if entry is None or end < entry[1]:
            heapq.heappush(self._ends, (end, record.name))
        self._entries[record.name] = (stored, end)
        self.nbytes += growth
        if len(self._ends) > 2 * len(self._entries) + 64:  # withdrawn and published again, over and over
            self._ends = [(end, name) for name, (_, end) in self._entries.items()]
            heapq.heapify(self._ends)
        return stored

    def withdraw(self, name: str, instance: str) -> bool:
        """Whether the record was this instance's, and is gone."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None or entry[0].instance != instance:
                return False
            self._remove(name)
            return True

    def lookup(self, name: str) -> Record:
        """NotFound, Invalid."""
        check_name(name)
        with self._lock:
            self._expire()
            entry = self._entries.get(name)
        if entry is None:
            raise NotFound(f"no segment {name!r}")
        return entry[0]

    def list(self, prefix: str, start_after: str, limit: int) -> list[Record]:
        """By name, at most `limit`."""
        check_prefix(prefix)
        check_prefix(start_after)
        with self._lock:
            self._expire()
            after = bisect.bisect_right(self._names, start_after) if start_after else 0
            first = max(bisect.bisect_left(self._names, prefix), after)
            found = []
            for name in self._names[first : first + limit]:
                if not name.startswith(prefix):
                    break
                found.append(self._entries[name][0])
            return found

    def _remove(self, name: str) -> None:
        self.nbytes -= _size(self._entries.pop(name)[0])
        del self._names[bisect.bisect_left(self._names, name)]

    def _expire(self) -> None:
        now = self._clock()
        while self._ends and self._ends[0][0] <= now:
            _, name = heapq.heappop(self._ends)
            entry = self._entries.get(name)
            if entry is None:
                continue
            if entry[1] <= now:
                self._remove(name)
                self.expired += 1
            else:
                heapq.heappush(self._ends, (entry[1], name))


def _size(record: Record) -> int:
    return _OVERHEAD_BYTES + 2 * len(record.name) + len(record.address) + len(record.instance)
