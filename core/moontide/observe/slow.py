"""Warnings about what takes too long: one line each, so many a minute and no more; what is left out is counted."""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from moontide import _core
from moontide.errors import MoontideError

__all__ = ["RateLimit", "SlowWatch", "format_event"]


class RateLimit:
    """Lets one of a kind through per `period` seconds, and says how many it kept back since. Kinds are bounded."""

    def __init__(self, period: float = 10, kinds_max: int = 256, clock: Callable[[], float] = time.monotonic) -> None:
        self._period = period
        self._kinds_max = kinds_max
        self._clock = clock
        self._kinds: dict[object, tuple[float, int]] = {}  # → when one last came through, kept back since

    def admit(self, kind: object) -> int | None:
        """None: keep it back. Otherwise how many of its kind were kept back before it."""
        now = self._clock()
        last, kept = self._kinds.get(kind, (-self._period, 0))
        if now - last < self._period:
            self._kinds[kind] = (last, kept + 1)
            return None
        self._kinds.pop(kind, None)
        if len(self._kinds) >= self._kinds_max:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[kind] = (now, 0)
        return kept


def format_event(event: dict[str, Any]) -> str:
    """One line: what it is and how long it takes, then code, names and place."""
    state = "took" if event["over"] else "is under way for"
    words = [f"slow {event['kind']}: {state} {event['age_seconds']:.3f} s"]
    fields = {
        "code": event["code"] if event["over"] else "",
        "transfer": event["number"] or "",
        "key": f"{event['key_hash']:016x}" if event["key_hash"] else "",
        "trace": event["trace"],
        "peer": event["peer"],
        "path": event["path"],
        "stage": event["stage"],
    }
    words += [f"{name}={value}" for name, value in fields.items() if value != ""]
    if event["bytes_total"]:
        words.append(f"bytes={event['bytes_moved']}/{event['bytes_total']}")
    if not event["over"]:
        words.append(f"last_progress={event['idle_seconds']:.3f}s")
    return " ".join(words)


class _Flag:
    """Ends a poll, once; may be raised from any thread and at any time, also after it is closed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()  # a forked child has the descriptor too, and no thread
        self._fd: int | None = os.eventfd(0, os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return -1 if self._fd is None else self._fd

    def raise_it(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._fd is not None:
                os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None


class SlowWatch:
    """Logs what an engine reports as slow, in a thread that sleeps until there is something. Ends with the engine."""

    def __init__(self, owner: Any, runtime: _core.Runtime, slow: float, limit: RateLimit | None = None) -> None:
        self._limit = limit or RateLimit()
        self._runtime = weakref.ref(runtime)
        self._notifier = _core.Notifier()
        self._stop = _Flag()
        _core.watch_slow(runtime, slow, self._notifier)
        self._thread = threading.Thread(target=self._run, name="moontide-slow", daemon=True)
        self._thread.start()
        weakref.finalize(owner, self._stop.raise_it).atexit = False

    def close(self) -> None:
        """Logs what is there and ends the thread. Idempotent."""
        self._stop.raise_it()
        if threading.current_thread() is not self._thread:
            self._thread.join(1)

    def _run(self) -> None:
        poll = select.poll()
        stop = self._stop.fileno()
        for fd in (self._notifier.fileno(), stop):
            poll.register(fd, select.POLLIN)
        stopped = False
        while not stopped:
            stopped = stop in [fd for fd, _ in poll.poll()]
            self._notifier.drain()
            self._log()
        self._stop.close()

    def _log(self) -> None:
        runtime = self._runtime()
        if runtime is None:
            return
        try:
            events, dropped = _core.slow_events(runtime)
        except MoontideError:  # closed meanwhile
            return
        del runtime
        if not events and not dropped:
            return
        import logging  # in an engine that is never slow, nobody logs

        logger = logging.getLogger("moontide")
        for event in events:
            kept = self._limit.admit((event["kind"], event["over"], event["code"], event["peer"], event["stage"]))
            if kept is not None:
                logger.warning("%s%s", format_event(event), f" ({kept} more like it before)" if kept else "")
        if dropped:
            logger.warning("%d warnings about slow operations were dropped", dropped)
