"""Names of requests, as callers give them and as they stand in dumps, warnings and messages."""

from __future__ import annotations

from moontide.errors import Invalid

__all__ = ["Trace", "trace_text"]

Trace = str | bytes
"""At most 64 printable ASCII characters without blanks, or at most 32 bytes (shown in hexadecimal). Empty: made up."""

_MOST = 64


def trace_text(trace: Trace) -> str:
    """The name as text. Invalid: too long, or not printable."""
    if not trace:
        return ""
    text = trace.hex() if isinstance(trace, bytes) else trace
    if len(text) <= _MOST and all("!" <= character <= "~" for character in text):
        return text
    raise Invalid(f"trace = {trace!r}: at most {_MOST} printable characters without blanks, or {_MOST // 2} bytes")
