"""What makes two KV caches the same: the model's weights and settings, not its name or where its files lie."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

__all__ = ["ModelIdentity", "fingerprint_folder"]

_SAMPLE_BYTES = 1 << 20
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Two engines share blocks only if all of it is equal. Strings, so that a refusal can show both values."""

    weights: str
    """commit or fingerprint of the weights"""
    settings: str
    """digest of everything else that changes the cache: configuration, overrides, quantization"""
    dtype: str
    cache_dtype: str

    def as_tuple(self) -> tuple[str, ...]:
        return msgspec.structs.astuple(self)


def _sample(path: Path) -> Iterable[bytes]:
    """Size, first and last megabyte: a revision of the same shape differs in both, and a 100 GB model costs nothing."""
    size = path.stat().st_size
    yield b"%d" % size
    with path.open("rb") as file:
        yield file.read(_SAMPLE_BYTES)
        if size > 2 * _SAMPLE_BYTES:
            file.seek(size // 2)
            yield file.read(_SAMPLE_BYTES)
        if size > _SAMPLE_BYTES:
            file.seek(max(_SAMPLE_BYTES, size - _SAMPLE_BYTES))
            yield file.read(_SAMPLE_BYTES)


def fingerprint_folder(folder: str | Path) -> str:
    """Fingerprint of the weight files in a folder: names, sizes and samples of the content; not times, not the path.

    Empty if there are none. Raises OSError.
    """
    state = hashlib.sha256(b"moontide.kv.weights\0")
    files = sorted(path for path in Path(folder).iterdir() if path.suffix in _WEIGHTS and path.is_file())
    for path in files:
        name = path.name.encode("utf-8", "surrogateescape")
        state.update(b"%d:" % len(name) + name)
        for piece in _sample(path):
            state.update(b"%d:" % len(piece) + piece)
    return state.hexdigest()[:32] if files else ""
