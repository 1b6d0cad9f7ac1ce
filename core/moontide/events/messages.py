"""The messages of the stream: a batch of events, as vLLM's `KVEventBatch`, with fields of our own behind its fields.

One ZeroMQ message has three frames: topic, sequence number (8 bytes, big-endian, from 0), batch in msgpack.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

__all__ = [
    "ANEW",
    "END",
    "OWNER",
    "Batch",
    "Cleared",
    "Removed",
    "Stored",
    "decode",
    "encode",
    "pack_seq",
    "unpack_seq",
]

_SEQ = struct.Struct(">Q")
END = b"\xff" * 8
"""The sequence number that ends a replay."""
ANEW = b"anew"
"""Asks, instead of a sequence number, that all objects are told anew to everyone."""
OWNER = "moontide"
_MEDIUM = "CPU"
_LOCALITY = "REMOTE"


class Stored(msgspec.Struct, tag="BlockStored", gc=False):
    """Objects that can be read from now on. `block_hashes` are their keys, `nbytes` their lengths."""

    block_hashes: list[bytes]
    nbytes: list[int] = []
    parent_block_hash: bytes | None = None
    token_ids: list[int] = []
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = _MEDIUM
    lora_name: str | None = None
    locality: str | None = _LOCALITY
    ownership: str | None = OWNER


class Removed(msgspec.Struct, tag="BlockRemoved", gc=False):
    """Objects that are gone. `why`: removed, evicted, expired, lost."""

    block_hashes: list[bytes]
    why: str = ""
    medium: str | None = _MEDIUM
    locality: str | None = _LOCALITY
    ownership: str | None = OWNER


class Cleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """There is none any more; those that there are follow."""


class Batch(msgspec.Struct, array_like=True, gc=False):
    """Events in order. `ts`: seconds since the epoch; `term`: of the master, another one counts anew."""

    ts: float
    events: list[Stored | Removed | Cleared]
    data_parallel_rank: int | None = None
    term: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Batch)


def encode(batch: Batch) -> bytes:
    return _encoder.encode(batch)


def decode(payload: bytes) -> Batch:
    """Raises msgspec.MsgspecError for what is no batch."""
    batch: Batch = _decoder.decode(payload)
    return batch


def pack_seq(seq: int) -> bytes:
    return _SEQ.pack(seq)


def unpack_seq(frame: bytes) -> int | None:
    """None: it is no sequence number."""
    return _SEQ.unpack(frame)[0] if len(frame) == _SEQ.size else None
