"""Objects looked at where they lie: read-only memory of a node of this host, without a copy."""

from __future__ import annotations

import contextlib
from types import TracebackType

from moontide import _core
from moontide.errors import Closed

__all__ = ["View"]


class View:
    """The bytes of one object, read-only, for as long as the view is open.

    Where a node of this host has the object they are the node's own memory, pinned for this process: nothing is copied,
    and they stay what they are also when the object is removed, evicted or put anew. Elsewhere, and where this process
    looks at as many bytes as it may, they are a copy. Close views: what they pin is lost to the pool meanwhile. A view
    that is garbage, and those of a process that is dead, are closed. An array made from a view keeps the memory, also
    when the view is closed.

    `data`, or the view itself (Python 3.12), goes wherever a buffer does: `numpy.frombuffer(view.data, ...)`. Not for
    forked children: the pin is this process's.
    """

    def __init__(self, key: bytes, memory: _core.View | bytes | bytearray) -> None:
        self.key = key
        self.in_place = isinstance(memory, _core.View)
        """Whether it is the node's own memory."""
        self._data: memoryview | None = memoryview(memory).toreadonly()

    @property
    def data(self) -> memoryview:
        """The bytes. Closed: the view is."""
        if self._data is None:
            raise Closed("the view was closed")
        return self._data

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._data is None

    def close(self) -> None:
        """Gives the memory back, once no array or other buffer looks at it any more. Idempotent."""
        if self._data is not None:
            with contextlib.suppress(BufferError):
                self._data.release()
            self._data = None

    def __len__(self) -> int:
        return self.data.nbytes

    def __buffer__(self, flags: int, /) -> memoryview:
        return self.data

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
