"""Which header fields pass from one leg to the other. All of a field's values are kept, in their order."""

from __future__ import annotations

import re
from collections.abc import Mapping

from multidict import CIMultiDict

__all__ = ["for_client", "for_server"]

# Set anew for each leg, or about one connection only.
_OF_ONE_LEG = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
    *("trailers", "transfer-encoding", "upgrade", "host", "content-length", "accept-encoding", "content-encoding"),
    "expect",
}
# Read leniently by HTTP parsers, but refused or mangled when written.
_UNWRITABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")


def _passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    named = {
        token.strip().lower()
        for name, value in headers.items()
        if name.lower() == "connection"
        for token in value.split(",")
    }
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in _OF_ONE_LEG and name.lower() not in named and not _UNWRITABLE.search(value)
    )


def for_server(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """A client's, for a request whose body is JSON made here."""
    passed = _passed_on(headers)
    passed["Content-Type"] = "application/json"
    passed["Accept-Encoding"] = "identity"
    return passed


def for_client(headers: Mapping[str, str], marks: Mapping[str, str]) -> CIMultiDict[str]:
    """A server's, with this router's own marks, which no server may set."""
    passed = _passed_on(headers)
    for name in {name.lower() for name in passed if name.lower().startswith("x-moontide-")}:
        del passed[name]
    passed.update(marks)
    return passed
