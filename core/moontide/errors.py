"""The one exception tree. Operating errors come from the native core as a code and a sentence; each code is a class.

Batches return these as values, one per item; single calls raise them. NotFound and AlreadyExists are ordinary
answers and are never logged as errors.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "AlreadyExists",
    "Canceled",
    "Closed",
    "Corrupt",
    "Denied",
    "Expired",
    "Incompatible",
    "Internal",
    "Invalid",
    "MoontideError",
    "NoSpace",
    "NotFound",
    "Overloaded",
    "PeerLost",
    "Stale",
    "TimedOut",
    "TooLarge",
    "Unavailable",
    "Unsupported",
    "from_code",
]


class MoontideError(Exception):
    """Base of all. ``code`` is the name that logs, metrics and the wire use, ``number`` its value there."""

    code: ClassVar[str] = "INTERNAL"
    number: ClassVar[int] = 18

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


class Invalid(MoontideError, ValueError):
    """An argument is wrong; the message names it, its value and what is allowed."""

    code = "INVALID"
    number = 1


class NotFound(MoontideError, LookupError):
    """No such key, peer, region or hold."""

    code = "NOT_FOUND"
    number = 2


class AlreadyExists(MoontideError):
    """The key has a committed or unfinished object."""

    code = "ALREADY_EXISTS"
    number = 3


class Stale(MoontideError):
    """A generation or term that is over."""

    code = "STALE"
    number = 4


class Expired(MoontideError):
    """A lease, hold or ticket ran out."""

    code = "EXPIRED"
    number = 5


class NoSpace(MoontideError):
    """The pool or a bounded table is full."""

    code = "NO_SPACE"
    number = 6


class TooLarge(MoontideError):
    """Can never fit, however empty the pool is."""

    code = "TOO_LARGE"
    number = 7


class Denied(MoontideError, PermissionError):
    """The range, permission, tenant or address is not granted."""

    code = "DENIED"
    number = 8


class Unavailable(MoontideError, ConnectionError):
    """Cannot be reached: refused, not resolved, or not there yet."""

    code = "UNAVAILABLE"
    number = 9


class PeerLost(MoontideError, ConnectionError):
    """The connection died while the request was under way."""

    code = "PEER_LOST"
    number = 10


class TimedOut(MoontideError, TimeoutError):
    """No progress until the deadline."""

    code = "TIMED_OUT"
    number = 11


class Canceled(MoontideError):
    """Canceled by the caller."""

    code = "CANCELED"
    number = 12


class Corrupt(MoontideError):
    """Bytes arrived that fail their proof."""

    code = "CORRUPT"
    number = 13


class Incompatible(MoontideError):
    """Refused at the handshake; the message has both values."""

    code = "INCOMPATIBLE"
    number = 14


class Unsupported(MoontideError):
    """No transport or library for it; the message says which is missing."""

    code = "UNSUPPORTED"
    number = 15


class Overloaded(MoontideError):
    """A bound was hit; try later."""

    code = "OVERLOADED"
    number = 16


class Closed(MoontideError):
    """The object was closed by its owner."""

    code = "CLOSED"
    number = 17


class Internal(MoontideError):
    """A bug in Moontide."""

    code = "INTERNAL"
    number = 18


_BY_NUMBER: dict[int, type[MoontideError]] = {kind.number: kind for kind in MoontideError.__subclasses__()}


def from_code(code: int, message: str = "") -> MoontideError:
    """The exception for a code of the native core (``moontide::Code``), not raised."""
    kind = _BY_NUMBER.get(code)
    if kind is None:
        return Internal(f"unknown code {code}: {message}")
    return kind(message)
