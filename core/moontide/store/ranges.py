"""Parts of objects: procedures as in `moontide.store.procedures`, for bytes from an offset on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from moontide.engine import _memory_range
from moontide.errors import Invalid, MoontideError, NotFound, TooLarge

if TYPE_CHECKING:
    from moontide.store.procedures import Procedures

__all__ = ["RANGE_MAX", "PartOf", "get_into_range", "get_ranges", "object_range"]

RANGE_MAX = (1 << 63) - 1
# An object may be replaced by a longer one between asking for the length and reading.
_TRIES = 4


class PartOf(NamedTuple):
    """`length` bytes of the object of `key` from `offset` on."""

    key: bytes
    offset: int
    length: int


def object_range(offset: int, length: int) -> tuple[int, int]:
    """Invalid: one of them is no whole number from 0 to 2**63 - 1."""
    for option, value in (("offset", offset), ("length", length)):
        if not isinstance(value, int) or not 0 <= value <= RANGE_MAX:
            raise Invalid(f"{option} = {value!r}: must be a whole number from 0 to 2**63 - 1")
    return offset, length


async def get_into_range(
    procedures: Procedures, key: bytes, buffer: object, offset: int | None, length: int | None
) -> int:
    """Reads from `offset` on into the buffer: at most `length` bytes, or as many as it holds."""
    address, room, keep = _memory_range(buffer, writable=True)
    wanted = object_range(0 if offset is None else offset, room if length is None else length)
    if wanted[1] > room:
        raise TooLarge(f"length = {wanted[1]}: the buffer has {room} bytes")
    result = (await procedures.read([key], [(address, wanted[1])], [wanted], keep, ""))[0]
    if isinstance(result, MoontideError):
        raise result
    return result


async def get_ranges(
    procedures: Procedures, wanted: Sequence[PartOf | MoontideError], trace: str
) -> list[bytes | MoontideError]:
    """The bytes of each, or what went wrong with it or was wrong already.

    Memory is made for what the object has, not for what is asked.
    """
    results: list[bytes | MoontideError] = [NotFound("") if isinstance(item, PartOf) else item for item in wanted]
    parts = {index: item for index, item in enumerate(wanted) if isinstance(item, PartOf)}
    asked = list(parts)
    for _ in range(_TRIES):
        if not asked:
            break
        asked = await _round(procedures, parts, asked, results, trace)
    return results


async def _round(
    procedures: Procedures,
    parts: dict[int, PartOf],
    asked: list[int],
    results: list[bytes | MoontideError],
    trace: str,
) -> list[int]:
    """Reads what can be read; returns those whose length may have changed under way."""
    try:
        lengths = await procedures.lengths([parts[index].key for index in asked])
    except MoontideError as error:
        for index in asked:
            results[index] = error
        return []
    wanted: list[tuple[int, bytearray]] = []
    for index, found in zip(asked, lengths, strict=True):
        if isinstance(found, MoontideError):
            results[index] = found
        else:
            # Past the end nothing is read here; the native side says so, or knows of a longer object by now.
            wanted.append((index, bytearray(min(parts[index].length, max(found - parts[index].offset, 0)))))
    if not wanted:
        return []
    outcome = await procedures.read(
        [parts[index].key for index, _ in wanted],
        [_memory_range(target)[:2] for _, target in wanted],
        [(parts[index].offset, parts[index].length) for index, _ in wanted],
        wanted,
        trace,
    )
    again: list[int] = []
    for (index, target), result in zip(wanted, outcome, strict=True):
        results[index] = result if isinstance(result, MoontideError) else bytes(memoryview(target)[:result])
        if isinstance(result, Invalid):
            again.append(index)
    return again
