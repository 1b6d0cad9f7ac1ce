"""Keys as people write them: text as it is, other bytes as hexadecimal digits behind `hex:`."""

from __future__ import annotations

import contextlib

from moontide.errors import Invalid

__all__ = ["key_of", "text_of"]

_HEX = "hex:"


def key_of(text: str) -> bytes:
    """The key that `text_of` shows so. Invalid: what is behind `hex:` is not hexadecimal."""
    if not text.startswith(_HEX):
        return text.encode("utf-8", "surrogateescape")
    try:
        return bytes.fromhex(text.removeprefix(_HEX))
    except ValueError:
        raise Invalid(f"{text!r}: after {_HEX} come digits of hexadecimal bytes") from None


def text_of(key: bytes) -> str:
    """The key as `key_of` reads it: text that can be printed as it is, other bytes as hexadecimal."""
    with contextlib.suppress(UnicodeDecodeError):
        text = key.decode()
        if text.isprintable() and not text.startswith(_HEX):
            return text
    return _HEX + key.hex()
