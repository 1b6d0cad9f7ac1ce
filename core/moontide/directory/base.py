"""The interface of a directory. What an implementation promises is what tests/contract/test_directory.py asks of it."""

from __future__ import annotations

import abc
from types import TracebackType

from moontide.directory.record import Record

__all__ = ["LIST_LIMIT", "Directory"]

LIST_LIMIT = 1000
"""Records that one `list` returns at most."""


class Directory(abc.ABC):
    """Who has which segment. Made, used and closed within one event loop.

    Each call ends by its own deadline: Unavailable when the server cannot be reached or answers nonsense, TimedOut
    when it does not answer, Overloaded when it is at a bound. None of them leaves the object unusable: the next call
    makes a new connection.
    """

    url: str
    """Without credentials: it is shown in errors and logs."""
    local: bool
    """True when only processes of this host can reach the server (its address is a loopback one)."""

    @abc.abstractmethod
    async def publish(self, record: Record, ttl: float) -> Record:
        """Claims the name (epoch 0) or renews a claim; returns the record as it stands, epoch included.

        The record is gone `ttl` seconds (1 to 3600) after the last renewal. A claim takes the name from whoever had
        it; Stale tells that one at its next renewal. A renewal also brings back a record that the directory has lost.
        Repeating a call whose answer was lost is harmless. Invalid.
        """

    @abc.abstractmethod
    async def withdraw(self, record: Record) -> None:
        """Removes the record if it is still this instance's; else there is nothing to do."""

    @abc.abstractmethod
    async def lookup(self, name: str) -> Record:
        """The live record. NotFound, Invalid."""

    @abc.abstractmethod
    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = LIST_LIMIT) -> list[Record]:
        """Live records by name, from the first one after `start_after`: at most `limit` (1 to LIST_LIMIT)."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Ends connections; records stay until their time is over. Idempotent."""

    async def __aenter__(self) -> Directory:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
