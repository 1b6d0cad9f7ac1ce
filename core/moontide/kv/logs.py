"""Warnings that a dead peer would repeat a thousand times: one a second of each kind, with the number left out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

__all__ = ["LimitedLog"]

_INTERVAL_S = 1.0
_KINDS = 256


class LimitedLog:
    """Thread-safe. Kinds are few: causes, not request ids."""

    def __init__(self, logger: logging.Logger, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[str, tuple[float, int]] = {}

    def warning(self, kind: str, message: str, *arguments: object) -> None:
        """Logs the message unless one of the same kind was logged just now."""
        now = self._clock()
        with self._lock:
            since, left_out = self._last.get(kind, (float("-inf"), 0))
            if now - since < _INTERVAL_S or (kind not in self._last and len(self._last) >= _KINDS):
                self._last[kind] = (since, left_out + 1)
                return
            self._last[kind] = (now, 0)
        if left_out:
            self._logger.warning(message + " (and %d more of the kind before)", *arguments, left_out)
        else:
            self._logger.warning(message, *arguments)
