"""Trees of tensors as objects of the pool: dicts, lists and tuples of numpy arrays or torch tensors, and back.

An object is one safetensors value. The shape of the tree is in its metadata; a value without it, as others write them,
is a dict of tensors by name. Neither numpy nor torch is imported unless an array of theirs comes in or is asked for.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from moontide.errors import Invalid
from moontide.store.safetensors import DTYPE_BYTES, METADATA, TensorSpec, decode_header, encode_header, header_length

__all__ = ["FRAMEWORKS", "PackedTree", "fill_tree", "pack_tree", "unpack_tree"]

_TREE = "moontide.tree"
_DEPTH_MAX = 100
_ROOT = "tensor"
# The format's name of each type, and what numpy (with ml_dtypes, where it has none of its own) and torch call it.
_DTYPES: dict[str, tuple[str, str]] = {
    "BOOL": ("bool", "bool"),
    "U8": ("uint8", "uint8"),
    "I8": ("int8", "int8"),
    "U16": ("uint16", "uint16"),
    "I16": ("int16", "int16"),
    "U32": ("uint32", "uint32"),
    "I32": ("int32", "int32"),
    "U64": ("uint64", "uint64"),
    "I64": ("int64", "int64"),
    "F16": ("float16", "float16"),
    "BF16": ("bfloat16", "bfloat16"),
    "F32": ("float32", "float32"),
    "F64": ("float64", "float64"),
    "C64": ("complex64", "complex64"),
    "F8_E4M3": ("float8_e4m3fn", "float8_e4m3fn"),
    "F8_E5M2": ("float8_e5m2", "float8_e5m2"),
    "F8_E8M0": ("float8_e8m0fnu", "float8_e8m0fnu"),
}
FRAMEWORKS = ("numpy", "torch")
"""What tensors can come back as."""


class PackedTree:
    """A tree as it lies in an object: `header`, then `buffers` (memory of the tree itself or contiguous copies)."""

    def __init__(self, header: bytes, specs: list[TensorSpec], buffers: list[object], outline: Any) -> None:
        self.header = header
        self.outline = outline
        self.specs = specs
        self.buffers = buffers

    @property
    def nbytes(self) -> int:
        """Length of the object in bytes."""
        return len(self.header) + sum(spec.nbytes for spec in self.specs)


def pack_tree(tree: object, *, into: bool = False) -> PackedTree:
    """Describes a tree of arrays. `into`: its own memory will be written, so nothing may be a copy.

    Invalid: a leaf that is no array of numbers, a key that is no text, a tree of more than 100 levels; with `into` also
    memory that is read-only, not contiguous, not this machine's byte order, or on a device.
    """
    leaves: dict[str, tuple[TensorSpec, object]] = {}

    def add(leaf: object, path: str) -> str:
        name, again = path or _ROOT, 1
        while name in leaves or name == METADATA:
            again += 1
            name = f"{path or _ROOT}#{again}"
        dtype, shape, memory = _torch_memory(leaf, into) or _numpy_memory(leaf, into) or _no_array(leaf, name)
        leaves[name] = TensorSpec(name, dtype, shape), memory
        return name

    outline = _outline_of(tree, add)
    try:
        metadata = {_TREE: json.dumps(outline, ensure_ascii=False, separators=(",", ":"))}
        header, specs = encode_header([spec for spec, _ in leaves.values()], metadata)
    except UnicodeEncodeError as error:
        raise Invalid(f"a key is not a text that can be encoded: {error.object!r:.80}") from None
    return PackedTree(header, specs, [leaves[spec.name][1] for spec in specs], outline)


def _outline_of(tree: object, add: Callable[[object, str], str], path: str = "", depth: int = 0) -> Any:
    """The tree with the name of each leaf in its place; a list or tuple says first which it is."""
    if depth > _DEPTH_MAX:
        raise Invalid(f"a tree has at most {_DEPTH_MAX} levels")

    def below(child: object, step: object) -> Any:
        return _outline_of(child, add, f"{path}.{step}" if path else str(step), depth + 1)

    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str):
                raise Invalid(f"keys of a tree are texts, not {type(key).__name__}")
        return {key: below(child, key) for key, child in tree.items()}
    if isinstance(tree, (list, tuple)):
        kind = "list" if isinstance(tree, list) else "tuple"
        return [kind, *(below(child, index) for index, child in enumerate(tree))]
    return None if tree is None else add(tree, path)


def _no_array(leaf: object, name: str) -> tuple[str, tuple[int, ...], object]:
    raise Invalid(f"{name}: {type(leaf).__name__} is neither a numpy array nor a torch tensor")


def _format_name(name: str, library: int) -> str:
    for ours, theirs in _DTYPES.items():
        if theirs[library] == name:
            return ours
    raise Invalid(f"the format has no type for {FRAMEWORKS[library]}'s {name}")


def _numpy_memory(leaf: Any, into: bool) -> tuple[str, tuple[int, ...], object] | None:
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not hasattr(leaf, "__array__"):
        return None
    array = numpy.asarray(leaf)
    little = array.dtype.newbyteorder("<")
    if into:
        if array is not leaf or array.dtype != little:
            raise Invalid(f"{type(leaf).__name__} of {array.dtype} is not memory to read into")
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise Invalid("the array is read-only or not contiguous")
    dtype = _format_name(little.name, 0)
    array = numpy.asarray(array, dtype=little, order="C")
    return dtype, tuple(array.shape), array.reshape(-1).view(numpy.uint8)


def _torch_memory(leaf: Any, into: bool) -> tuple[str, tuple[int, ...], object] | None:
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(leaf, torch.Tensor):
        return None
    if leaf.layout != torch.strided:
        raise Invalid(f"a tensor of layout {leaf.layout} has no bytes of its own")
    dtype = _format_name(str(leaf.dtype).removeprefix("torch."), 1)
    plain = leaf.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if into and plain.data_ptr() != leaf.data_ptr():
        raise Invalid("the tensor is on a device or not contiguous")
    return dtype, tuple(leaf.shape), plain


def unpack_tree(value: bytearray, framework: str) -> Any:
    """The tree that the object's bytes hold; its arrays are views of `value`.

    Invalid: not a safetensors value, or a type that the framework does not have. ModuleNotFoundError: `framework` is
    not installed.
    """
    specs, metadata = decode_header(value)
    begin = header_length(value)
    arrays = {spec.name: _array(value, begin + spec.offset, spec, framework) for spec in specs}
    return _unpack_outline(metadata, arrays) if _TREE in metadata else arrays


def _unpack_outline(metadata: Mapping[str, str], tensors: Mapping[str, Any]) -> Any:
    """The tree of the metadata's outline, with `tensors` in their places. Invalid: it is none, or not of just these."""
    try:
        outline = json.loads(metadata[_TREE])
    except (ValueError, RecursionError):
        raise Invalid("the outline of the tree is not JSON") from None
    left = dict(tensors)
    tree = _tree_of(outline, left)
    if left:
        raise Invalid(f"the outline of the tree leaves out {next(iter(left))!r}")
    return tree


def _tree_of(outline: Any, arrays: dict[str, Any], depth: int = 0) -> Any:
    """Takes the arrays it puts in their places out of `arrays`."""
    if depth > _DEPTH_MAX:
        raise Invalid(f"a tree has at most {_DEPTH_MAX} levels")
    if outline is None:
        return None
    if isinstance(outline, dict):
        return {key: _tree_of(child, arrays, depth + 1) for key, child in outline.items()}
    if isinstance(outline, list) and outline[:1] in (["list"], ["tuple"]):
        children = [_tree_of(child, arrays, depth + 1) for child in outline[1:]]
        return children if outline[0] == "list" else tuple(children)
    if isinstance(outline, str) and outline in arrays:
        return arrays.pop(outline)
    raise Invalid(f"the outline of the tree has {outline!r:.80} where a tensor should be")


def _array(value: bytearray, begin: int, spec: TensorSpec, framework: str) -> Any:
    count = math.prod(spec.shape)
    library = importlib.import_module(framework)
    dtype = _library_dtype(library, spec.dtype, framework)
    try:
        if count == 0:
            return library.empty(spec.shape, dtype=dtype)
        if begin % DTYPE_BYTES[spec.dtype]:  # as another writer may have laid it
            value, begin = value[begin : begin + spec.nbytes], 0
        return library.frombuffer(value, dtype=dtype, count=count, offset=begin).reshape(spec.shape)
    except (ValueError, RuntimeError, OverflowError) as error:
        raise Invalid(f"tensor {spec.name!r} of shape {spec.shape}: {error}") from None


def _library_dtype(library: Any, dtype: str, framework: str) -> Any:
    name = _DTYPES[dtype][FRAMEWORKS.index(framework)]
    if framework == "numpy" and name.startswith(("bfloat", "float8")):
        try:
            library = importlib.import_module("ml_dtypes")
        except ModuleNotFoundError:
            raise Invalid(f"numpy has no type for {dtype}: install ml_dtypes, or ask for torch") from None
    found = getattr(library, name, None)
    if found is None:
        raise Invalid(f"this {framework} has no type for {dtype}")
    return found


def fill_tree(value: bytearray, packed: PackedTree, places: list[tuple[int, int]]) -> None:
    """Copies the object's tensors to `places`, (address, bytes) of each tensor of `packed`.

    Each goes to where it is in the tree; those of an object without an outline go by name. Invalid: a tensor is missing
    on either side, or of another type or shape.
    """
    specs, metadata = decode_header(value)
    begin = header_length(value)
    found = {spec.name: spec for spec in specs}
    wanted = {spec.name: spec for spec in packed.specs}
    if _TREE in metadata:
        _unpack_outline(metadata, found)  # as strict as when it is unpacked
        theirs = dict(_pairs(packed.outline, json.loads(metadata[_TREE])))
    else:
        theirs = {name: name for name in (*wanted, *found)}
    for name, their_name in theirs.items():
        here, there = wanted.get(name), found.get(their_name)
        if here is None or there is None or here[1:3] != there[1:3]:
            raise Invalid(f"tensor {name!r}: asked for {_words(here)}, the object has {_words(there)}")
    for spec, (address, length) in zip(packed.specs, places, strict=True):
        if length:
            source = (ctypes.c_char * length).from_buffer(value, begin + found[theirs[spec.name]].offset)
            ctypes.memmove(address, source, length)


def _pairs(ours: Any, theirs: Any) -> Iterator[tuple[str, str]]:
    """(our name, their name) of the tensors at the same place of two outlines. Invalid: they look different."""
    if isinstance(ours, str) and isinstance(theirs, str):
        yield ours, theirs
    elif isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        for key in ours:
            yield from _pairs(ours[key], theirs[key])
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for one, other in zip(ours[1:], theirs[1:], strict=True):
            yield from _pairs(one, other)
    elif ours is not None or theirs is not None:
        raise Invalid(f"asked for {ours!r:.80}, the object has {theirs!r:.80}")


def _words(spec: TensorSpec | None) -> str:
    return f"{spec.dtype} {list(spec.shape)}" if spec else "none"
