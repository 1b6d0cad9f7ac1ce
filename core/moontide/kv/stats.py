"""Counters and observations of a connector, by name and label; drained by the engine's own metrics."""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Stats", "merge", "split_key"]

_MAX_OBSERVATIONS = 4096
_SEPARATOR = "|"


def split_key(key: str) -> tuple[str, tuple[str, ...]]:
    """(name, label values)."""
    name, *labels = key.split(_SEPARATOR)
    return name, tuple(labels)


class Stats:
    """Thread-safe. `drain` gives plain data: {"counts": {key: number}, "seconds": {key: [numbers]}}.

    A key is name|label|…, so that the data survives any serialisation.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._seconds: dict[str, list[float]] = {}

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        key = _SEPARATOR.join((name, *labels))
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + by

    def observe(self, name: str, *labels: str, seconds: float) -> None:
        key = _SEPARATOR.join((name, *labels))
        with self._lock:
            values = self._seconds.setdefault(key, [])
            if len(values) < _MAX_OBSERVATIONS:
                values.append(seconds)

    def drain(self) -> dict[str, Any]:
        """All since the last call; {} if there is nothing."""
        with self._lock:
            if not self._counts and not self._seconds:
                return {}
            counts, self._counts = self._counts, {}
            seconds, self._seconds = self._seconds, {}
        return {"counts": counts, "seconds": seconds}


def merge(into: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Adds the data of ``other`` to ``into``, in place; both as `Stats.drain` gives them."""
    counts = into.setdefault("counts", {})
    for key, number in other.get("counts", {}).items():
        counts[key] = counts.get(key, 0) + number
    seconds = into.setdefault("seconds", {})
    for key, values in other.get("seconds", {}).items():
        seconds[key] = (seconds.get(key, []) + list(values))[:_MAX_OBSERVATIONS]
    return into
