"""HOST:PORT as people write it, and which hosts are this one."""

from __future__ import annotations

import ipaddress

from moontide.errors import Invalid

__all__ = ["is_loopback", "is_wildcard", "join_address", "split_address"]


def split_address(address: str, *, what: str = "address") -> tuple[str, int]:
    """(host without brackets, port) of "host:port" or "[v6]:port". Invalid."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    well_formed = colon and bare and port.isascii() and port.isdecimal() and int(port) <= 65535
    if not well_formed or (":" in bare) != bracketed or any(letter.isspace() or letter == "/" for letter in bare):
        raise Invalid(f"{what} = {address!r}: write HOST:PORT, or [ADDRESS]:PORT for IPv6")
    return bare, int(port)


def join_address(host: str, port: int) -> str:
    """The reverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_loopback(host: str) -> bool:
    """Whether the text says this host: "localhost", 127.0.0.0/8, ::1. No name is resolved."""
    address = _parsed(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def is_wildcard(host: str) -> bool:
    """Whether it is the address of every interface: good for listening, no place to connect to."""
    address = _parsed(host)
    return address is not None and address.is_unspecified
