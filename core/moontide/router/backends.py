"""Servers behind the router: how busy they are, and whether they are trusted to answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from moontide.errors import Invalid

__all__ = ["Backend", "Group"]

_PROBATION_FIRST_S = 1.0
_PROBATION_LAST_S = 30.0


class Backend:
    """One server. After a failure it is on probation: left alone for a pause that grows, then tried by one request."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        if "@" in url:
            # It would be shown by /health and /metrics, and stand against the client's own Authorization.
            raise Invalid("the URL of a server must have no user and no password in it")
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:
            raise Invalid(f"{url!r}: not the URL of a server: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise Invalid(f"{url!r}: not the URL of a server; write for example http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self.outstanding = 0
        self.failures = 0
        self._clock = clock
        self._pause = 0.0
        self._until = 0.0
        self._trying = False

    @property
    def available(self) -> bool:
        if not self._pause:
            return True
        return self._clock() >= self._until and not self._trying

    @property
    def returns_in(self) -> float:
        """Seconds until it is tried again; 0 if it is in use."""
        return max(0.0, self._until - self._clock()) if self._pause else 0.0

    @contextmanager
    def use(self) -> Iterator[None]:
        """Around a request; `succeeded` or `failed` inside says how it went."""
        self.outstanding += 1
        probing = bool(self._pause)
        self._trying = self._trying or probing
        try:
            yield
        finally:
            self.outstanding -= 1
            if probing:
                self._trying = False

    def succeeded(self) -> None:
        self._pause = 0.0

    def failed(self) -> None:
        self.failures += 1
        if self._clock() < self._until:
            return
        self._pause = min(self._pause * 2, _PROBATION_LAST_S) if self._pause else _PROBATION_FIRST_S
        self._until = self._clock() + self._pause


class Group:
    """Servers that can stand in for one another."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.backends = tuple(backends)
        self._turn = 0

    def pick(self, exclude: Sequence[Backend] = ()) -> Backend | None:
        """The available one with the least outstanding requests, in turn among equals; None if there is none."""
        self._turn += 1
        count = len(self.backends)
        order = [self.backends[(self._turn + index) % count] for index in range(count)]
        free = [backend for backend in order if backend.available and backend not in exclude]
        return min(free, key=lambda backend: backend.outstanding, default=None)

    def pick_anyway(self, exclude: Sequence[Backend] = ()) -> Backend | None:
        """Like `pick`, but a server on probation rather than none: the one that is due next."""
        rest = [backend for backend in self.backends if backend not in exclude]
        return self.pick(exclude) or min(rest, key=lambda backend: backend.returns_in, default=None)
