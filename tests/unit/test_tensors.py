"""Trees of tensors as bytes: what comes back, what the format's own library says of it, what is refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from moontide.engine import _memory_range
from moontide.errors import Invalid
from moontide.store.safetensors import decode_header, header_length
from moontide.store.tensors import fill_tree, pack_tree, unpack_tree

_NUMPY = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", ">i4", ">f8"]


def packed(tree: object) -> bytearray:
    """The object's bytes, as the pool would have them."""
    found = pack_tree(tree)
    value = bytearray(found.header)
    for memory in found.buffers:
        value += memoryview(memory)  # type: ignore[arg-type]
    assert len(value) == found.nbytes
    return value


def made(header: object, data: bytes = b"") -> bytearray:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return bytearray(len(text).to_bytes(8, "little") + text + data)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if one is None:
        return other is None
    kept: bool = one.dtype.newbyteorder("<") == other.dtype and one.shape == other.shape
    return kept and np.ascontiguousarray(other).tobytes() == one.astype(other.dtype).tobytes()


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    bytes_ = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, int(np.prod(shape)), dtype=np.uint8)
    array = bytes_.astype(draw(st.sampled_from(_NUMPY))).reshape(shape)
    return draw(st.sampled_from([array, array.T, array[..., ::-1] if shape else array]))


TREES = st.recursive(
    arrays() | st.none(),
    lambda below: st.dictionaries(st.text(max_size=4), below, max_size=4) | st.lists(below, max_size=4)
    | st.tuples(below, below),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(TREES)
def test_a_tree_comes_back_as_it_was(tree: Any) -> None:
    value = packed(tree)
    assert same(tree, unpack_tree(value, "numpy"))
    for name, array in safetensors.numpy.load(bytes(value)).items():  # and it is what the format's own library reads
        assert array.nbytes == {spec.name: spec.nbytes for spec in decode_header(value)[0]}[name]


def test_what_the_formats_own_library_wrote() -> None:
    theirs = {"weight": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": np.ones(3, np.int8)}
    value = bytearray(safetensors.numpy.save(theirs, metadata={"format": "np"}))
    found = unpack_tree(value, "numpy")
    assert {name: array.tolist() for name, array in found.items()} == {n: a.tolist() for n, a in theirs.items()}
    ours = safetensors.numpy.load(bytes(packed(theirs)))
    assert ours["weight"].tolist() == theirs["weight"].tolist()
    # unaligned: one byte, then a float
    header = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    header["b"] = {"dtype": "F32", "shape": [1], "data_offsets": [1, 5]}
    odd = unpack_tree(made(header, b"\x07" + np.float32(1.5).tobytes()), "numpy")
    assert odd["a"][0] == 7 and odd["b"][0] == 1.5 and odd["b"].flags.aligned


def test_every_tensor_is_aligned_and_arrays_can_be_written() -> None:
    value = packed({"a": np.ones(3, np.int8), "b": np.ones(5, np.float64), "c": np.ones(1, np.float16)})
    assert header_length(value) % 64 == 0
    for array in unpack_tree(value, "numpy").values():
        array += 1  # not read-only
    specs = decode_header(value)[0]
    assert [spec.name for spec in specs] == ["b", "c", "a"]


def test_names_that_would_be_the_same() -> None:
    tree = {"a.0": np.ones(1), "a": [np.zeros(2)], "__metadata__": np.ones(3), "": np.ones(4)}
    assert same(tree, unpack_tree(packed(tree), "numpy"))


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({"a": 1.5}, "a: float is neither"),
        ([b"bytes"], "0: bytes is neither"),
        ({1: np.ones(1)}, "keys of a tree are texts"),
        ({"\ud800": np.ones(1)}, "not a text that can be encoded"),
        (np.array(["text"]), "no type for numpy's str"),
        (np.array([object()]), "no type for numpy's object"),
        (np.zeros(1, np.longdouble), "no type for numpy's"),
    ],
)
def test_what_is_no_tree_of_tensors(tree: object, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        pack_tree(tree)


def test_a_tree_without_end() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(Invalid, match="at most 100 levels"):
        pack_tree(endless)


def _one(**more: Any) -> dict[str, Any]:
    return {"t": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2], **more}}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (bytearray(), "it has 0 bytes"),
        (bytearray(b"\xff" * 64), "a header of"),
        (made(b"{"), "not JSON"),
        (made(b"[" * 100_000), "not JSON"),
        (made(b"\xff\xfe"), "not JSON"),
        (made([]), "not a map"),
        (made({"__metadata__": {"a": 1}}), "not a map of texts"),
        (made({"t": 3}), "nothing is said"),
        (made(_one(dtype="F4"), b"ab"), "of type 'F4'"),
        (made(_one(dtype=["U8"]), b"ab"), "of type"),
        (made(_one(shape=[-2]), b"ab"), "no shape"),
        (made(_one(shape=[True, 2]), b"ab"), "no shape"),
        (made(_one(shape=[1] * 65), b"ab"), "no shape"),
        (made(_one(shape=[1 << 62, 1 << 62]), b"ab"), "bytes by its shape"),
        (made(_one(data_offsets=[0]), b"ab"), "no place"),
        (made(_one(data_offsets=[1, 3]), b"abc"), "begins at 1"),
        (made(_one(), b"abc"), "tensors of 2 bytes in 3"),
        (made(_one() | {"u": _one()["t"]}, b"abcd"), "begins at 0"),
        (made(_one() | {"__metadata__": {"moontide.tree": '"u"'}}, b"ab"), "where a tensor should be"),
        (made(_one() | {"__metadata__": {"moontide.tree": '["set"]'}}, b"ab"), "where a tensor should be"),
        (made(_one() | {"__metadata__": {"moontide.tree": "[" * 9999}}, b"ab"), "not JSON"),
        (made(_one() | {"__metadata__": {"moontide.tree": '["list"]'}}, b"ab"), "leaves out 't'"),
        (made(_one() | {"__metadata__": {"moontide.tree": '["list","t","t"]'}}, b"ab"), "where a tensor should be"),
        (made(_one(shape=[0, 1 << 62, 8], data_offsets=[0, 0])), "of shape"),
    ],
)
def test_what_a_stranger_may_have_put(value: bytearray, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        unpack_tree(value, "numpy")


def test_a_type_that_numpy_has_not() -> None:
    with pytest.raises(Invalid, match="no type for BF16: install ml_dtypes, or ask for torch"):
        unpack_tree(made(_one(dtype="BF16", shape=[1]), b"ab"), "numpy")


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 300))
def test_bytes_changed_anywhere(noise: bytes, at: int) -> None:
    value = packed({"a": np.arange(8), "b": [np.ones(3, np.float32), None]})
    value[at : at + len(noise)] = noise
    with contextlib.suppress(Invalid):
        unpack_tree(value, "numpy")


def test_memory_that_cannot_be_read_into() -> None:
    read_only = np.ones(2)
    read_only.flags.writeable = False
    for leaf in (read_only, np.ones((2, 2)).T[:1], np.ones(2, ">f8")):
        with pytest.raises(Invalid, match=r"read-only|memory to read into"):
            pack_tree(leaf, into=True)


def test_arrays_go_to_their_place_in_the_tree_not_to_their_name() -> None:
    value = packed({"a.b": np.array([1]), "a": {"b": np.array([2])}, "": [np.array([3])], "0": np.array([4])})
    into = {"0": np.zeros(1, int), "": [np.zeros(1, int)], "a": {"b": np.zeros(1, int)}, "a.b": np.zeros(1, int)}
    found = pack_tree(into, into=True)
    fill_tree(value, found, [_memory_range(memory)[:2] for memory in found.buffers])
    assert [into["a.b"], into["a"]["b"], into[""][0], into["0"]] == [1, 2, 3, 4]  # type: ignore[index]
    other = pack_tree({"a": [np.zeros(1)]}, into=True)
    with pytest.raises(Invalid, match="asked for"):
        fill_tree(value, other, [(0, 0)])


def test_reading_into_arrays_that_differ() -> None:
    value = packed({"a": np.ones(2), "b": np.ones(3)})
    for tree in ({"a": np.ones(2)}, {"a": np.ones(2), "b": np.ones(4)}, {"a": np.ones(2), "b": np.ones(3, np.int64)}):
        wrong = pack_tree(tree, into=True)
        with pytest.raises(Invalid, match="asked for .*, the object has"):
            fill_tree(value, wrong, [(0, 0)] * len(wrong.specs))
