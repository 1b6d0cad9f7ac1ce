"""A batch of copies under way, and one that is kept for posting."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from moontide import _core
from moontide._waiting import completion
from moontide.errors import MoontideError
from moontide.observe.traces import Trace, trace_text

__all__ = ["Prepared", "Strided", "Transfer"]


@dataclass(frozen=True)
class Strided:
    """An entry for `count` copies of `length` bytes at equal distances, such as one block of every layer of a cache.

    Element `i` is copied between `i * local_stride` bytes behind `local` and `offset + i * remote_stride` in `remote`;
    `local` and `remote` are what they are in a plain entry. A stride is in bytes, from one element to the next; without
    one elements lie side by side. It is one entry, with one result, and it takes no longer to make for 100,000 elements
    than for two.

    All elements lie in one local and in one remote region. Where bytes are put elements may not overlap; where they are
    taken from they may, and with a stride of 0 one element goes to all places. A `count` of 0 copies nothing.

    Raised at once: Invalid (a negative number, elements beyond the local memory). In `Transfer.results`: Invalid
    (elements would overlap where they are put), Denied (an element is outside its region), TooLarge (a batch has more
    than 1,048,576 elements that are not side by side on both sides), and what a plain entry may end with.
    """

    local: Any
    remote: _core.RemoteRegion
    offset: int
    length: int
    count: int
    local_stride: int | None = None
    remote_stride: int | None = None

    @property
    def _strided(self) -> tuple[Any, _core.RemoteRegion, int, int, int, int | None, int | None]:
        return self.local, self.remote, self.offset, self.length, self.count, self.local_stride, self.remote_stride


class Transfer:
    """A batch of copies: one outcome (`done`), then one quiet.

    Until `quiet`, memory of the transfer may still be read or written; the engine keeps it referenced.
    """

    __slots__ = ("__weakref__", "_engine", "_native")

    def __init__(self, native: _core.Transfer, engine: object) -> None:
        self._native = native
        self._engine = engine  # keeps the memory that is registered with it

    @property
    def done(self) -> bool:
        """True once every entry has its result."""
        return self._native.done

    @property
    def quiet(self) -> bool:
        """True once nothing of this transfer can touch any memory any more."""
        return self._native.quiet

    @property
    def nbytes(self) -> int:
        """Bytes asked for."""
        return self._native.nbytes

    @property
    def trace(self) -> str:
        """What it is called in dumps and warnings, also at the peer: the caller's word, or 16 hexadecimal digits."""
        return self._native.trace

    @property
    def nbytes_moved(self) -> int:
        """Bytes that have arrived so far."""
        return self._native.nbytes_moved

    @property
    def path(self) -> str:
        """Which transports carried it: "self", "shm", "cma", "pull", "tcp", or several joined by "+"."""
        return self._native.path

    @property
    def results(self) -> list[MoontideError | None]:
        """One per entry, in order; None for success. Before `done` what failed so far. Errors as `Engine.read` says."""
        return self._native.results

    def wait(self, timeout: float | None = None) -> None:
        """Returns at success, raises the first error. TimedOut when undecided after `timeout` seconds (None: never).

        The transfer goes on when only this wait has timed out: then `done` is False.
        """
        self._native.wait(timeout)

    def wait_quiet(self, timeout: float | None = None) -> None:
        """Waits until `quiet`, whatever the outcome. TimedOut after `timeout` seconds (None: never)."""
        self._native.wait_quiet(timeout)

    def cancel(self) -> None:
        """Ends it with Canceled unless it is done; quiet follows."""
        self._native.cancel()

    def __await__(self) -> Generator[Any, None, None]:
        yield from completion(self._native)
        self._native.wait(0)


class Prepared:
    """A batch that is packed once and posted many times, from any thread. ``len(batch)`` is the number of entries."""

    def __init__(self, native: _core.Prepared, engine: object) -> None:
        self._native = native
        self._engine = engine

    def __len__(self) -> int:
        return len(self._native)

    def post(
        self,
        *,
        timeout: float | None = None,
        urgent: bool = False,
        notify: bytes | None = None,
        trace: Trace = "",
    ) -> Transfer:
        """Starts it. `timeout`: seconds without progress after which it has failed; the others as for `Engine.read`.

        Errors as for `Engine.read`, those about entries per entry.
        """
        return Transfer(self._native.post(timeout, urgent, notify, trace_text(trace)), self._engine)
