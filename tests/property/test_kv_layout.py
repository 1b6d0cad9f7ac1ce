"""Layouts: derived from strides alone; compared with both values; plans put every byte where it belongs."""

from __future__ import annotations

import itertools
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moontide.errors import Incompatible, Invalid, NotFound
from moontide.kv.identity import ModelIdentity, fingerprint_folder
from moontide.kv.layout import (
    LayerLayout,
    Layout,
    Rank,
    compare,
    decode_layout,
    encode_layout,
    layer_from_strides,
    refuse,
    without_aliases,
)
from moontide.kv.plan import at_positions, block_parts, read_entries

IDENTITY = ModelIdentity(weights="w1", settings="s1", dtype="float32", cache_dtype="auto")


class Cache:
    """A paged cache in one flat buffer, its axes [layer, block, head, token, content] in any physical order."""

    def __init__(self, order: str, sizes: dict[str, int], *, ratio: int = 1, pad: int = 0) -> None:
        self.blocks = sizes["B"]
        shape = [sizes[axis] * (ratio if axis == "B" else 1) for axis in order]
        self.flat = np.zeros(int(np.prod(shape)) + pad, dtype=np.int32)
        whole = self.flat[: int(np.prod(shape))].reshape(shape)
        self.view = np.transpose(whole, [order.index(axis) for axis in "LBHNC"])
        self.ratio = ratio

    def layout(self, names: list[str], **changes: object) -> Layout:
        layers = {}
        start = self.flat.__array_interface__["data"][0]
        for index, name in enumerate(names):
            layer = self.view[index]
            layers[name] = layer_from_strides(
                name,
                region="kv",
                offset=layer.__array_interface__["data"][0] - start,
                num_blocks=self.blocks,
                shape=layer.shape,
                stride=[step // 4 for step in layer.strides],
                item_bytes=4,
            )
        fields: dict[str, object] = {
            "model": IDENTITY,
            "physical": "p",
            "block_tokens": 4,
            "kv_heads": 2,
            "rank": Rank(),
            "layers": without_aliases(layers),
        }
        return Layout(**{**fields, **changes})  # type: ignore[arg-type]

    def block(self, layer: int, block: int) -> np.ndarray:
        return self.view[layer, block * self.ratio : (block + 1) * self.ratio]

    @property
    def base(self) -> dict[str, int]:
        return {"kv": self.flat.__array_interface__["data"][0]}


def copy(entries: list[tuple[int, object, int, int]], there: Cache, here: Cache) -> None:
    """What an engine's read does, within this process."""
    source, target = there.flat.view(np.uint8), here.flat.view(np.uint8)
    for address, region, offset, length in entries:
        assert region == "region of kv"
        at = address - here.base["kv"]
        assert at >= 0 and at + length <= target.size and offset >= 0 and offset + length <= source.size
        target[at : at + length] = source[offset : offset + length]


ORDERS = ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]


@settings(deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    heads=st.integers(1, 3),
    tokens=st.integers(1, 3),
    content=st.integers(1, 3),
    there_blocks=st.integers(2, 12),
    here_blocks=st.integers(2, 12),
    data=st.data(),
)
def test_each_block_arrives_in_its_place_and_nothing_else_changes(
    order: str, heads: int, tokens: int, content: int, there_blocks: int, here_blocks: int, data: st.DataObject
) -> None:
    sizes = {"L": 3, "H": heads, "N": tokens, "C": content}
    there = Cache(order, {**sizes, "B": there_blocks})
    here = Cache(order, {**sizes, "B": here_blocks}, pad=data.draw(st.integers(0, 5)))
    there.flat[:] = np.arange(1, there.flat.size + 1)
    names = ["layer.10", "layer.2", "layer.1"]
    # Named layers in another order on the other side: paired by name, not by position.
    swapped = [2, 0, 1]
    theirs = there.layout([names[index] for index in swapped])
    mine = here.layout(names)
    assert compare(mine, theirs) == []
    count = data.draw(st.integers(1, min(there_blocks, here_blocks)))
    local = data.draw(st.permutations(range(here_blocks)))[:count]
    remote = data.draw(st.permutations(range(there_blocks)))[:count]
    copy(read_entries(mine, here.base, theirs, {"kv": "region of kv"}, local, remote), there, here)
    expected = np.zeros_like(here.view)
    for mine_block, their_block in zip(local, remote, strict=True):
        for index in range(3):
            expected[index, mine_block] = there.view[swapped.index(index), their_block]
    assert np.array_equal(here.view, expected)
    assert not here.flat[here.view.size :].any()


@given(st.permutations(range(8)), st.permutations(range(8)))
def test_neighbours_are_read_in_one_piece(local: list[int], remote: list[int]) -> None:
    cache = Cache("LBHNC", {"L": 1, "B": 8, "H": 1, "N": 2, "C": 2})
    layout = cache.layout(["a"])
    entries = read_entries(layout, cache.base, layout, {"kv": 0}, local, remote)
    joints = sum(local[i + 1] == local[i] + 1 and remote[i + 1] == remote[i] + 1 for i in range(len(local) - 1))
    assert len(entries) == 8 - joints
    assert sum(length for *_, length in entries) == 8 * layout.block_bytes
    whole = read_entries(layout, cache.base, layout, {"kv": 0}, range(8), range(8))
    assert whole == [(cache.base["kv"], 0, 0, 8 * layout.block_bytes)]


@pytest.mark.parametrize("order", ORDERS)
def test_parts_of_a_block_hold_exactly_its_bytes(order: str) -> None:
    cache = Cache(order, {"L": 2, "B": 5, "H": 2, "N": 3, "C": 2})
    cache.flat[:] = np.arange(cache.flat.size)
    layout = cache.layout(["a", "b"])
    assert layout.block_bytes == 2 * 2 * 3 * 2 * 4
    for block in range(5):
        found = []
        for address, length in block_parts(layout, cache.base, block):
            at = (address - cache.base["kv"]) // 4
            found += cache.flat[at : at + length // 4].tolist()
        assert sorted(found) == sorted(cache.view[:, block].ravel().tolist())
    with pytest.raises(Invalid, match="block 5 is out of range, there are 5"):
        block_parts(layout, cache.base, 5)


def test_kernel_blocks_that_split_a_block_are_read_together() -> None:
    cache = Cache("LBHNC", {"L": 1, "B": 3, "H": 2, "N": 2, "C": 2}, ratio=4)
    layer = cache.layout(["a"]).layers[0]
    assert layer.dense and layer.num_blocks == 3 and layer.block_bytes == 4 * 2 * 2 * 2 * 4


def test_padding_is_not_copied() -> None:
    layer = layer_from_strides(
        "a", region="kv", offset=0, num_blocks=4, shape=(4, 1, 2, 3), stride=(10, 6, 3, 1), item_bytes=2
    )
    assert (layer.pieces, layer.block_stride, layer.dense) == (((0, 12),), 20, False)


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ((4, 2), (0, 1)),
        ((4, 2), (1, 1)),
        ((5, 2), (2, 1)),
        ((4, 2), (-2, 1)),
        ((4, 0), (2, 1)),
        ((4, 2), (2,)),
        ((), ()),
    ],
)
def test_what_is_no_cache_is_refused(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    with pytest.raises(Invalid):
        layer_from_strides("a", region="kv", offset=0, num_blocks=4, shape=shape, stride=stride, item_bytes=2)


def test_aliases_are_read_once() -> None:
    layer = LayerLayout(name="b", region="kv", offset=0, block_stride=8, num_blocks=2, pieces=((0, 8),))
    kept = without_aliases({"b": layer, "a": msgspec.structs.replace(layer, name="a")})
    assert [layer.name for layer in kept] == ["a"]


BASE = Cache("LBHNC", {"L": 2, "B": 4, "H": 2, "N": 2, "C": 2})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_tokens": 64}, ["block size: 4 here, 64 there"]),
        ({"kv_heads": 8}, ["kv heads: 2 here, 8 there"]),
        ({"physical": "q"}, ["physical layout: p here, q there"]),
        ({"rank": Rank(tp_size=2)}, ["tp size: 1 here, 2 there"]),
        ({"rank": Rank(tp_rank=1, tp_size=2)}, ["tp rank: 0 here, 1 there", "tp size: 1 here, 2 there"]),
        ({"rank": Rank(pp_size=4)}, ["pp size: 1 here, 4 there"]),
        ({"model": msgspec.structs.replace(IDENTITY, weights="w2")}, ["model weights: w1 here, w2 there"]),
        ({"model": msgspec.structs.replace(IDENTITY, dtype="bfloat16")}, ["model dtype: float32 here, bfloat16 there"]),
    ],
)
def test_a_refusal_names_both_values(change: dict[str, object], words: list[str]) -> None:
    mine, theirs = BASE.layout(["a", "b"]), BASE.layout(["a", "b"], **change)
    error = refuse(compare(mine, theirs))
    assert isinstance(error, Incompatible)
    assert [word for word in words if word not in error.message] == []
    assert len(compare(mine, theirs)) == len(words)


def test_layers_split_otherwise_are_refused() -> None:
    error = refuse(compare(BASE.layout(["a", "b"]), BASE.layout(["a", "c"])))
    assert "['b'] here, ['c'] there" in error.message
    wide = Cache("LBHNC", {"L": 2, "B": 4, "H": 2, "N": 4, "C": 2})
    assert "bytes of a block of a: 32 here, 64 there" in refuse(compare(BASE.layout(["a"]), wide.layout(["a"]))).message
    pieces = Cache("LHBNC", {"L": 2, "B": 4, "H": 2, "N": 2, "C": 2})
    assert (
        "pieces of a block of a: 1 here, 2 there" in refuse(compare(BASE.layout(["a"]), pieces.layout(["a"]))).message
    )


def test_number_of_blocks_and_addresses_may_differ() -> None:
    other = Cache("LBHNC", {"L": 2, "B": 9, "H": 2, "N": 2, "C": 2})
    assert compare(BASE.layout(["a", "b"]), other.layout(["a", "b"])) == []


def test_a_layout_travels() -> None:
    layout = BASE.layout(["a", "b"])
    assert decode_layout(encode_layout(layout)) == layout


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_layout_is_refused_or_sound(junk: bytes, at: int, value: int) -> None:
    good = bytearray(encode_layout(BASE.layout(["a", "b"])))
    good[at % len(good)] = value
    for data in (junk, bytes(good), bytes(good[: at % len(good)])):
        try:
            layout = decode_layout(data)
        except (Invalid, Incompatible):
            continue
        for layer in layout.layers:
            assert 0 <= layer.end() < 1 << 82


def test_block_tables_are_cut_by_position() -> None:
    # Five blocks, the first two are here already: the remote 3..5 go to the right places.
    assert at_positions([10, 11, 12, 13, 14], 2, 3) == [12, 13, 14]
    # The other side holds more than is wanted.
    assert at_positions([10, 11, 12, 13, 14], 1, 2) == [11, 12]
    for first, count in ((3, 3), (-1, 2), (0, 0), (5, 1)):
        with pytest.raises(Invalid):
            at_positions([10, 11, 12, 13, 14], first, count)


def test_bad_plans_are_refused() -> None:
    layout = BASE.layout(["a", "b"])
    with pytest.raises(Invalid, match="remote block 4 is out of range"):
        read_entries(layout, BASE.base, layout, {"kv": 0}, [0], [4])
    with pytest.raises(Invalid, match="local block -1"):
        read_entries(layout, BASE.base, layout, {"kv": 0}, [-1], [0])
    with pytest.raises(Invalid, match="named twice"):
        read_entries(layout, BASE.base, layout, {"kv": 0}, [1, 1], [0, 1])
    with pytest.raises(Invalid, match="2 local blocks"):
        read_entries(layout, BASE.base, layout, {"kv": 0}, [0, 1], [0])
    with pytest.raises(NotFound, match="'kv'"):
        read_entries(layout, BASE.base, layout, {}, [0], [0])


def test_a_fingerprint_follows_the_weights_not_the_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    content = random.Random(1).randbytes(3 << 20)
    folders = [tmp_path_factory.mktemp("model") for _ in range(3)]
    for folder in folders:
        (folder / "model.safetensors").write_bytes(content)
        (folder / "readme.md").write_text(str(folder))
    first, second, third = folders
    (third / "model.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    prints = [fingerprint_folder(folder) for folder in folders]
    assert prints[0] == prints[1] != prints[2]
    (second / "model.safetensors").rename(second / "model2.safetensors")
    assert fingerprint_folder(second) != fingerprint_folder(first)
    assert fingerprint_folder(tmp_path_factory.mktemp("empty")) == ""


def test_all_orders_of_axes_were_tried() -> None:
    assert {"".join(order) for order in itertools.permutations("LBHNC")} > set(ORDERS)
