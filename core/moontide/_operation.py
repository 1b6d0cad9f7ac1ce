"""Something under way with a result, as the engine and the store hand it out."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

from moontide import _core
from moontide._waiting import completion
from moontide.errors import MoontideError

__all__ = ["Operation"]

T = TypeVar("T")


def _waited_for(operation: _core.Operation, timeout: float | None) -> None:
    try:
        operation.wait(timeout)
    except MoontideError:
        if not operation.done:
            raise


class Operation(Generic[T]):
    """Something under way with a result: `wait`, poll `done`, or ``await`` it."""

    def __init__(self, native: _core.Operation | _core.Batch, convert: Any = None) -> None:
        self._native = native
        self._convert = convert

    @property
    def done(self) -> bool:
        """True once the result is there."""
        return self._native.done

    @property
    def quiet(self) -> bool:
        """True once it touches no memory of the caller any more."""
        return self._native.quiet if isinstance(self._native, _core.Batch) else self._native.done

    def wait_quiet(self, timeout: float | None = None) -> None:
        """Waits until `quiet`, whatever the outcome. TimedOut after `timeout` seconds (None: never)."""
        if isinstance(self._native, _core.Batch):
            self._native.quieted().wait(timeout)
        else:
            _waited_for(self._native, timeout)

    def cancel(self) -> None:
        """Ends a batch with Canceled for what is not done; other operations have their own deadline and go on."""
        if isinstance(self._native, _core.Batch):
            self._native.cancel()

    def wait(self, timeout: float | None = None) -> T:
        """The result, or its error.

        TimedOut when it is not there after `timeout` seconds (None: never); it goes on then.
        """
        value: Any = self._native.wait(timeout)
        result: T = self._convert(value) if self._convert is not None else value
        return result

    def __await__(self) -> Generator[Any, None, T]:
        yield from completion(self._native)
        return self.wait(0)
