"""The safetensors format: which tensors an object holds, and where their bytes lie in it.

A value is 8 bytes of length (little-endian), that many bytes of JSON, and the tensors' bytes side by side. Only numbers
and names: nothing in it can run. What comes out of a pool is checked as if a stranger had written it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from moontide.errors import Invalid

__all__ = ["DTYPE_BYTES", "METADATA", "TensorSpec", "decode_header", "encode_header", "header_length"]

DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}
"""Bytes of one element, by the format's name of its type."""

METADATA = "__metadata__"
"""The one name that no tensor can have: a map from text to text."""

_LENGTH_BYTES = 8
_HEADER_BYTES_MAX = 100_000_000  # as the format's own readers have it
_ALIGNMENT = 64
_DIMENSIONS_MAX = 64


class TensorSpec(NamedTuple):
    """One tensor: dtype as the format names it, shape, and its first byte, counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Its length in bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def _broken(why: str) -> Invalid:
    return Invalid(f"the object holds no tensors (safetensors): {why}")


def encode_header(specs: Sequence[TensorSpec], metadata: Mapping[str, str]) -> tuple[bytes, list[TensorSpec]]:
    """(header, length included; the tensors in the order of their bytes, with offsets).

    Large elements lie before small ones and the data begins at a multiple of 64 bytes, so every tensor is aligned.
    Invalid: a header of more than 100 MB.
    """
    placed = []
    offset = 0
    for spec in sorted(specs, key=lambda spec: (-DTYPE_BYTES[spec.dtype], spec.name)):
        placed.append(spec._replace(offset=offset))
        offset += spec.nbytes
    fields: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    for spec in placed:
        at = [spec.offset, spec.offset + spec.nbytes]
        fields[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": at}
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _LENGTH_BYTES) % _ALIGNMENT)
    if len(text) > _HEADER_BYTES_MAX:
        raise Invalid(f"the names and shapes of the tensors take {len(text)} bytes; {_HEADER_BYTES_MAX} are allowed")
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text, placed


def header_length(value: bytes | bytearray | memoryview) -> int:
    """Bytes before the first tensor's. Invalid: the value cannot be of this format."""
    if len(value) < _LENGTH_BYTES:
        raise _broken(f"it has {len(value)} bytes")
    length = int.from_bytes(value[:_LENGTH_BYTES], "little")
    if length > min(_HEADER_BYTES_MAX, len(value) - _LENGTH_BYTES):
        raise _broken(f"a header of {length} bytes in {len(value)}")
    return _LENGTH_BYTES + length


def decode_header(value: bytes | bytearray | memoryview) -> tuple[list[TensorSpec], dict[str, str]]:
    """(tensors in the order in which the header names them, metadata).

    Invalid: not this format; a type that is not in `DTYPE_BYTES`; tensors that overlap, leave holes, or do not fill the
    value to its end.
    """
    begin = header_length(value)
    try:
        fields = json.loads(bytes(value[_LENGTH_BYTES:begin]))
    except (ValueError, RecursionError):
        raise _broken("the header is not JSON") from None
    if not isinstance(fields, dict):
        raise _broken("the header is not a map")
    metadata = fields.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise _broken("the metadata is not a map of texts")
    specs = [_tensor(name, about) for name, about in fields.items()]
    end = 0
    for spec in sorted(specs, key=lambda spec: (spec.offset, spec.nbytes)):
        if spec.offset != end:
            raise _broken(f"tensor {spec.name!r} begins at {spec.offset}, the one before it ends at {end}")
        end += spec.nbytes
    if end != len(value) - begin:
        raise _broken(f"tensors of {end} bytes in {len(value) - begin}")
    return specs, metadata


def _tensor(name: str, about: Any) -> TensorSpec:
    if not isinstance(about, dict):
        raise _broken(f"nothing is said about tensor {name!r}")
    dtype, shape, at = (about.get(field, ()) for field in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise _broken(f"tensor {name!r} is of type {dtype!r}")
    if not _are_counts(shape) or not _are_counts(at) or len(shape) > _DIMENSIONS_MAX or len(at) != 2:
        raise _broken(f"tensor {name!r} has no shape or no place")
    spec = TensorSpec(name, dtype, tuple(shape), at[0])
    if spec.nbytes != at[1] - at[0]:
        raise _broken(f"tensor {name!r} has {spec.nbytes} bytes by its shape and {at[1] - at[0]} by its place")
    return spec


def _are_counts(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
