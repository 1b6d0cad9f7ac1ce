"""Keys of KV blocks: a SHA-256 chain over tokens and whatever else decides a block's content.

An engine's own block hashes will not do: they may start from a random root in each process or depend on the hash seed,
so that a restart silently hits nothing. Here everything is encoded with its length before it, which makes the encoding
injective, and nothing but the arguments enters it. `VECTORS` pins the result; `self_check` refuses any other.

    root    = H("root"  | space)                     space: model, shape of the cache, version
    block_i = H("block" | block_{i-1} | tokens | extras)
    digest  = H("exact" | block_k | rest of the tokens | their extras)     content of a prefix that ends inside a block
    key     = b"kv1:" root[:8] ":" block_i ":" tp_rank "/" tp_size          text, so that logs can show it
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from moontide.errors import Internal, Invalid

__all__ = ["FORMAT", "VECTORS", "Chain", "KeySpace", "Span", "compute_vectors", "encode", "self_check"]

FORMAT = 1
_PREFIX = b"kv1"


def encode(value: object) -> bytes:
    """Canonical bytes of None, bool, int, str, bytes and tuples or lists of them. Two values never share an encoding.

    Raises Invalid for anything else: what cannot be expressed must bypass the pool, not be guessed at.
    """
    if value is None:
        return b"N"
    if isinstance(value, bool):
        return b"T" if value else b"F"
    if isinstance(value, int):
        text = b"%d" % value
        return b"i" + struct.pack("<I", len(text)) + text
    if isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        return b"s" + struct.pack("<Q", len(data)) + data
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        return b"b" + struct.pack("<Q", len(data)) + data
    if isinstance(value, (tuple, list)):
        return b"l" + struct.pack("<Q", len(value)) + b"".join(encode(item) for item in value)
    raise Invalid(f"a {type(value).__name__} cannot be part of a block's key")


def _hash(*pieces: bytes) -> bytes:
    state = hashlib.sha256()
    for piece in pieces:
        state.update(piece)
    return state.digest()


def _tokens(tokens: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<Q{len(tokens)}Q", len(tokens), *tokens)
    except struct.error as error:
        raise Invalid(f"token ids must be integers from 0 to 2^64-1: {error}") from None


@dataclass(frozen=True)
class Span:
    """Something besides the tokens that decides the content of positions [start, end): an adapter, an image, a salt.

    ``value`` is encoded together with the position relative to the block, so that the same image two tokens further
    gives another key. ``end`` None means the whole request, whatever its length.
    """

    kind: str
    value: object
    start: int = 0
    end: int | None = None

    def within(self, first: int, last: int) -> bool:
        return self.start < last and (self.end is None or self.end > first)

    def encoded(self, first: int) -> bytes:
        where = None if self.end is None else (self.start - first, self.end - self.start)
        return encode((self.kind, self.value, where))


@dataclass(frozen=True)
class KeySpace:
    """All that is the same for every block of one cache: pass the model's identity and the shape of the cache.

    ``identity`` is any value that `encode` takes. Ranks are not in it: `key` adds them, so that exists, put and get
    cannot disagree about them.
    """

    identity: object
    block_tokens: int
    tp_size: int = 1

    def __post_init__(self) -> None:
        if self.block_tokens < 1 or self.tp_size < 1:
            raise Invalid(f"block_tokens = {self.block_tokens}, tp_size = {self.tp_size}: both must be at least 1")
        encode(self.identity)

    @cached_property
    def root(self) -> bytes:
        space = encode((FORMAT, self.identity, self.block_tokens, self.tp_size))
        return _hash(b"moontide.kv.root\0", space)

    def key(self, block: bytes, tp_rank: int) -> bytes:
        """The pool's key of one rank's part of a block."""
        if not 0 <= tp_rank < self.tp_size:
            raise Invalid(f"tp_rank = {tp_rank}: allowed are 0 to {self.tp_size - 1}")
        return b"%b:%b:%b:%d/%d" % (
            _PREFIX,
            self.root[:8].hex().encode(),
            block.hex().encode(),
            tp_rank,
            self.tp_size,
        )

    def keys(self, blocks: Iterable[bytes], tp_rank: int) -> list[bytes]:
        return [self.key(block, tp_rank) for block in blocks]


class Chain:
    """The blocks' hashes of one request's prompt, computed as far as they are asked for. Not for several threads."""

    def __init__(self, space: KeySpace, tokens: Sequence[int], spans: Sequence[Span] = ()) -> None:
        self._root = space.root
        self._block_tokens = space.block_tokens
        self._tokens = tokens
        self._spans = tuple(spans)
        self._hashes: list[bytes] = []

    @property
    def full_blocks(self) -> int:
        return len(self._tokens) // self._block_tokens

    def blocks(self, count: int) -> list[bytes]:
        """Hashes of the first ``count`` full blocks."""
        if not 0 <= count <= self.full_blocks:
            raise Invalid(f"{count} blocks asked for, the prompt has {self.full_blocks} full ones")
        while len(self._hashes) < count:
            first = len(self._hashes) * self._block_tokens
            previous = self._hashes[-1] if self._hashes else self._root
            self._hashes.append(self._link(b"moontide.kv.block\0", previous, first, first + self._block_tokens))
        return self._hashes[:count]

    def digest(self, count: int) -> bytes:
        """Content of the first ``count`` tokens, wherever they end."""
        if not 0 <= count <= len(self._tokens):
            raise Invalid(f"{count} tokens asked for, the prompt has {len(self._tokens)}")
        full = count // self._block_tokens
        previous = self.blocks(full)[-1] if full else self._root
        return self._link(b"moontide.kv.exact\0", previous, full * self._block_tokens, count)

    def _link(self, tag: bytes, previous: bytes, first: int, last: int) -> bytes:
        extras = [span.encoded(first) for span in self._spans if span.within(first, last)]
        count = struct.pack("<Q", len(extras))
        return _hash(tag, previous, _tokens(self._tokens[first:last]), count, *extras)


VECTORS = {
    "root": "33e22bd893ae287853df25e714331664d1a2b52f26e013124c65e782939ff774",
    "block": "kv1:33e22bd893ae2878:37fab5fb8a48554dc02d5b9b26c04bc83e86b3ce5fd4750d0c043c0fa48817fe:1/2",
    "extras": "35562c96742b45cf487e5234dcef1818b9990eca167cba189051f12fed879061",
    "digest": "dabf77bfe4021de2ef0fc179a8cf88e18b29e2d8d60c7225aa3ab334379deadb",
}


def compute_vectors() -> dict[str, str]:
    """The values that `VECTORS` pins: anyone who writes keys of this format must get the same."""
    space = KeySpace(("model", "revision", "float32"), block_tokens=4, tp_size=2)
    plain = Chain(space, list(range(10)))
    salted = Chain(space, list(range(10)), [Span("lora", ("name", "path")), Span("image", b"\x01\x02", 3, 6)])
    return {
        "root": space.root.hex(),
        "block": space.key(plain.blocks(2)[1], 1).decode(),
        "extras": salted.blocks(2)[1].hex(),
        "digest": plain.digest(10).hex(),
    }


def self_check() -> None:
    """Raises Internal if this process would compute other keys than everyone else."""
    found = compute_vectors()
    for name, expected in VECTORS.items():
        if found[name] != expected:
            raise Internal(f"block keys differ from the published vector {name!r}: {found[name]} is not {expected}")
