"""Where the blocks of a paged KV cache lie in memory, described so that another engine can read them.

A block is opaque bytes: the order of heads, tokens, keys and values inside it is the business of the attention kernel,
and differs between them. So a layout says only where the pieces of block b of each layer begin and how long they are,
plus everything that must be equal on both sides for these bytes to mean the same. Layers are paired by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from moontide.errors import Incompatible, Invalid
from moontide.kv.identity import ModelIdentity

__all__ = [
    "Difference",
    "LayerLayout",
    "Layout",
    "Rank",
    "compare",
    "decode_layout",
    "encode_layout",
    "layer_from_strides",
    "refuse",
    "without_aliases",
]

LAYOUT_VERSION = 1
MAX_LAYERS = 4096
MAX_PIECES = 1024


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """Place of one worker in its engine."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1


class LayerLayout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Block b of this layer is, for each (start, length) of ``pieces``, the bytes from
    region + offset + b * block_stride + start."""

    name: str
    region: str
    """name under which the memory is registered with the engine"""
    offset: int
    block_stride: int
    num_blocks: int
    pieces: tuple[tuple[int, int], ...]

    @property
    def block_bytes(self) -> int:
        return sum(length for _, length in self.pieces)

    @property
    def dense(self) -> bool:
        """Whether neighbouring blocks are one run of bytes."""
        return len(self.pieces) == 1 and self.pieces[0] == (0, self.block_stride)

    def end(self) -> int:
        """First byte of the region that no block reaches."""
        last = max(start + length for start, length in self.pieces)
        return self.offset + (self.num_blocks - 1) * self.block_stride + last


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker's cache. ``physical`` names the order inside a block: layout, attention backend, instruction set."""

    version: int = LAYOUT_VERSION
    model: ModelIdentity
    physical: str
    block_tokens: int
    kv_heads: int
    rank: Rank
    layers: tuple[LayerLayout, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers."""
        return sum(layer.block_bytes for layer in self.layers)

    @property
    def num_blocks(self) -> int:
        return min(layer.num_blocks for layer in self.layers)

    def shape(self) -> tuple[object, ...]:
        """What a block's bytes mean, without addresses: part of the pool's keys. Takes no rank."""
        pieces = tuple((layer.name, tuple(length for _, length in layer.pieces)) for layer in self.layers)
        return (self.physical, self.kv_heads, pieces)


def layer_from_strides(
    name: str,
    *,
    region: str,
    offset: int,
    num_blocks: int,
    shape: Sequence[int],
    stride: Sequence[int],
    item_bytes: int,
) -> LayerLayout:
    """The layout of a tensor whose first axis counts blocks, or kernel blocks of which several make one.

    ``offset`` is where element 0 lies in the region, in bytes; ``stride`` is in items, as in torch. Everything else is
    derived: the inner axes may be in any order and padded. Raises Invalid.
    """
    if len(shape) != len(stride) or not shape or any(length < 1 for length in shape):
        raise Invalid(f"layer {name}: shape {tuple(shape)} with strides {tuple(stride)} is no cache")
    if shape[0] % num_blocks:
        raise Invalid(f"layer {name}: {shape[0]} rows do not make {num_blocks} blocks")
    if any(step < 0 for step in stride):
        raise Invalid(f"layer {name}: negative strides {tuple(stride)}")
    rows = shape[0] // num_blocks
    axes = [(rows, stride[0] * item_bytes)] if rows > 1 else []
    axes += [(length, step * item_bytes) for length, step in zip(shape[1:], stride[1:], strict=True) if length > 1]
    run = item_bytes
    outer: list[tuple[int, int]] = []
    for length, step in sorted(axes, key=lambda axis: axis[1]):
        if not outer and step == run:
            run *= length
        elif step < run:
            raise Invalid(f"layer {name}: shape {tuple(shape)} with strides {tuple(stride)} overlaps itself")
        else:
            outer.append((length, step))
    starts = [0]
    for length, step in reversed(outer):
        starts = [start + index * step for start in starts for index in range(length)]
        if len(starts) > MAX_PIECES:
            raise Invalid(f"layer {name}: a block has more than {MAX_PIECES} pieces")
    block_stride = stride[0] * rows * item_bytes
    pieces = tuple((start, run) for start in sorted(starts))
    if num_blocks > 1 and block_stride < run:
        raise Invalid(f"layer {name}: blocks of {run} bytes lie only {block_stride} bytes apart")
    return LayerLayout(
        name=name, region=region, offset=offset, block_stride=block_stride, num_blocks=num_blocks, pieces=pieces
    )


def without_aliases(layers: Mapping[str, LayerLayout]) -> tuple[LayerLayout, ...]:
    """Layers in the order of their names; of several that share one memory only the first is kept."""
    seen: dict[tuple[object, ...], str] = {}
    kept = []
    for name in sorted(layers):
        layer = layers[name]
        place = (layer.region, layer.offset, layer.block_stride, layer.pieces)
        if place not in seen:
            seen[place] = name
            kept.append(layer)
    return tuple(kept)


class Difference(msgspec.Struct, frozen=True):
    field: str
    local: object
    remote: object

    def __str__(self) -> str:
        return f"{self.field}: {self.local} here, {self.remote} there"


def compare(local: Layout, remote: Layout) -> list[Difference]:
    """All that keeps the two from reading each other's blocks; empty if nothing does."""
    found: list[Difference] = []

    def check(field: str, here: object, there: object) -> None:
        if here != there:
            found.append(Difference(field, here, there))

    check("layout version", local.version, remote.version)
    for field in ModelIdentity.__struct_fields__:
        check(f"model {field}", getattr(local.model, field), getattr(remote.model, field))
    check("physical layout", local.physical, remote.physical)
    check("block size", local.block_tokens, remote.block_tokens)
    check("kv heads", local.kv_heads, remote.kv_heads)
    for field in Rank.__struct_fields__:
        check(field.replace("_", " "), getattr(local.rank, field), getattr(remote.rank, field))
    here = {layer.name: layer for layer in local.layers}
    there = {layer.name: layer for layer in remote.layers}
    check("layers only on one side", sorted(here.keys() - there.keys()), sorted(there.keys() - here.keys()))
    for name in sorted(here.keys() & there.keys()):
        lengths = [tuple(length for _, length in layer.pieces) for layer in (here[name], there[name])]
        if lengths[0] != lengths[1]:
            check(f"bytes of a block of {name}", sum(lengths[0]), sum(lengths[1]))
            check(f"pieces of a block of {name}", len(lengths[0]), len(lengths[1]))
    return found


def refuse(differences: Sequence[Difference], *, shown: int = 8) -> Incompatible:
    """The error that names both values of each difference."""
    text = "; ".join(str(difference) for difference in differences[:shown])
    more = f"; and {len(differences) - shown} more" if len(differences) > shown else ""
    return Incompatible(text + more)


def encode_layout(layout: Layout) -> bytes:
    return msgspec.msgpack.encode(layout)


def decode_layout(data: bytes) -> Layout:
    """A layout sent by another process, checked: bounds and sizes that cannot overflow. Raises Invalid."""
    try:
        layout = msgspec.msgpack.decode(data, type=Layout)
    except msgspec.MsgspecError as error:
        raise Invalid(f"not a layout: {error}") from None
    if layout.version != LAYOUT_VERSION:
        raise Incompatible(f"layout version: {LAYOUT_VERSION} here, {layout.version} there")
    if not 1 <= len(layout.layers) <= MAX_LAYERS or layout.block_tokens < 1:
        raise Invalid(f"a layout of {len(layout.layers)} layers with blocks of {layout.block_tokens} tokens")
    for layer in layout.layers:
        sizes = [layer.offset, layer.block_stride, *(number for piece in layer.pieces for number in piece)]
        if not 1 <= len(layer.pieces) <= MAX_PIECES or not 1 <= layer.num_blocks < 1 << 32:
            raise Invalid(f"layer {layer.name!r}: {len(layer.pieces)} pieces, {layer.num_blocks} blocks")
        if any(not 0 <= size < 1 << 48 for size in sizes) or any(length == 0 for _, length in layer.pieces):
            raise Invalid(f"layer {layer.name!r}: a size out of range in {sizes}")
    return layout
