"""From block ids and positions to the ranges that a transfer copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from moontide.errors import Invalid, NotFound
from moontide.kv.layout import LayerLayout, Layout
from moontide.kv.ports import Entry, Part

__all__ = ["BaseAddresses", "at_positions", "block_parts", "read_entries"]

BaseAddresses = Mapping[str, int]
"""address of each registered region of this process, by name"""


def at_positions(table: Sequence[int], first: int, count: int) -> list[int]:
    """The block ids of positions [first, first + count) of a request, out of a table that begins at position 0.

    Both sides are cut by position, never by counting from an end: they may hold different numbers of blocks.
    Raises Invalid.
    """
    if first < 0 or count < 1:
        raise Invalid(f"positions {first} to {first + count} are no range")
    if len(table) < first + count:
        raise Invalid(f"the table has {len(table)} blocks, position {first + count - 1} was asked for")
    return list(table[first : first + count])


def _check(layout: Layout, blocks: Iterable[int], side: str) -> None:
    limit = layout.num_blocks
    for block in blocks:
        if not 0 <= block < limit:
            raise Invalid(f"{side} block {block} is out of range, there are {limit}")


def _runs(local: Sequence[int], remote: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first local, first remote, count) of stretches in which both sides count up by one."""
    begin = 0
    for index in range(1, len(local) + 1):
        if index == len(local) or local[index] != local[index - 1] + 1 or remote[index] != remote[index - 1] + 1:
            yield local[begin], remote[begin], index - begin
            begin = index


def read_entries(
    here: Layout,
    bases: BaseAddresses,
    there: Layout,
    regions: Mapping[str, Any],
    local: Sequence[int],
    remote: Sequence[int],
) -> list[Entry]:
    """What to read so that block local[i] gets the bytes of the peer's block remote[i], in all layers.

    Neighbouring blocks become one entry where they are neighbours on both sides. The layouts must have been compared.
    Raises Invalid, or NotFound for a region that the peer does not offer.
    """
    if len(local) != len(remote):
        raise Invalid(f"{len(local)} local blocks cannot take {len(remote)} remote ones")
    if len(set(local)) != len(local):
        raise Invalid("a local block is named twice")
    _check(here, local, "local")
    _check(there, remote, "remote")
    remote_layers = {layer.name: layer for layer in there.layers}
    entries: list[Entry] = []
    for layer in here.layers:
        other = remote_layers[layer.name]
        region = regions.get(other.region)
        if region is None:
            raise NotFound(f"the peer does not offer region {other.region!r}")
        base = bases[layer.region] + layer.offset
        if layer.dense and other.dense:
            for first, first_there, count in _runs(local, remote):
                start = other.offset + first_there * other.block_stride
                entries.append((base + first * layer.block_stride, region, start, count * layer.block_stride))
        else:
            entries += _piecewise(layer, base, other, region, local, remote)
    return entries


def _piecewise(
    layer: LayerLayout, base: int, other: LayerLayout, region: Any, local: Sequence[int], remote: Sequence[int]
) -> Iterator[Entry]:
    for mine, theirs in zip(local, remote, strict=True):
        row, row_there = base + mine * layer.block_stride, other.offset + theirs * other.block_stride
        for (start, length), (start_there, _) in zip(layer.pieces, other.pieces, strict=True):
            yield row + start, region, row_there + start_there, length


def block_parts(layout: Layout, bases: BaseAddresses, block: int) -> list[Part]:
    """The ranges that hold one block, in the order in which the pool stores them. Raises Invalid."""
    _check(layout, (block,), "local")
    return [
        (bases[layer.region] + layer.offset + block * layer.block_stride + start, length)
        for layer in layout.layers
        for start, length in layer.pieces
    ]
