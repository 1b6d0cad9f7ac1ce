"""Who may talk to a process, and by which addresses: the cluster secret's file, names into addresses.

Names are resolved here, in the caller's thread, since the native core's thread never blocks.
"""

from __future__ import annotations

import ipaddress
import os
import stat

from moontide import _core
from moontide.config import Config
from moontide.errors import Denied, Invalid, Unavailable

__all__ = ["access_of", "advertised", "listening_address", "read_secret", "resolve"]

_SECRET_BYTES_MIN = 16
_SECRET_BYTES_MAX = 4096


def read_secret(path: str, *, option: str = "secret_file") -> bytes:
    """The secret in a file that only its owner can read; line ends behind it are not part of it.

    Denied: others can read or write the file. Invalid: it cannot be read, or has under 16 or over 4096 bytes.
    """
    from pathlib import Path  # imported where it is used: most processes name no file and resolve no name

    try:
        with Path(path).open("rb") as file:
            state = os.fstat(file.fileno())
            secret = file.read(_SECRET_BYTES_MAX + 3)
    except OSError as error:
        raise Invalid(f"{option} = {path!r}: {error.strerror}") from None
    mode = stat.S_IMODE(state.st_mode)
    if mode & 0o077:
        raise Denied(f"{option} = {path!r}: its mode {mode:04o} lets other users in; chmod 600 it")
    secret = secret.rstrip(b"\r\n")
    if not _SECRET_BYTES_MIN <= len(secret) <= _SECRET_BYTES_MAX:
        raise Invalid(
            f"{option} = {path!r}: the secret has {len(secret)} bytes;"
            f" allowed are {_SECRET_BYTES_MIN} to {_SECRET_BYTES_MAX}"
        )
    return secret


def access_of(config: Config) -> _core.Access:
    """What the configuration says about who may connect.

    Errors of `read_secret`. Invalid: TLS without a secret, with some of its files, or with one that is no good.
    Unsupported: TLS without OpenSSL 3 on this machine.
    """
    secret = read_secret(config.secret_file) if config.secret_file is not None else b""
    files = {"tls_cert": config.tls_cert, "tls_key": config.tls_key, "tls_ca": config.tls_ca}
    missing = [name for name, path in files.items() if path is None]
    if len(missing) == len(files):
        return _core.Access(secret, config.insecure_listen, "", "", "")
    if missing:
        raise Invalid(f"TLS needs all of {', '.join(files)}; not set: {', '.join(missing)}")
    if not secret:
        raise Invalid("TLS needs a secret_file as well: local sockets of this host are not encrypted, and need it")
    assert config.tls_cert is not None and config.tls_key is not None and config.tls_ca is not None
    _refuse_open_file(config.tls_key, "tls_key")
    return _core.Access(secret, config.insecure_listen, config.tls_cert, config.tls_key, config.tls_ca)


def _refuse_open_file(path: str, option: str) -> None:
    from pathlib import Path

    try:
        mode = stat.S_IMODE(Path(path).stat().st_mode)
    except OSError as error:
        raise Invalid(f"{option} = {path!r}: {error.strerror}") from None
    if mode & 0o077:
        raise Denied(f"{option} = {path!r}: its mode {mode:04o} lets other users in; chmod 600 it")


def _split(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    return host, port


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host[1:-1] if host.startswith("[") else host)
    except ValueError:
        return None


def resolve(address: str, *, option: str = "address") -> str:
    """The address with numbers in place of a name. Unavailable: there is no such name."""
    host, port = _split(address)
    if not host or address.startswith(("inproc:", "unix:")) or host == "localhost" or _ip(host) is not None:
        return address
    import socket

    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise Unavailable(f"{option} = {address!r}: the name {host!r} cannot be resolved: {why}") from None
    number = str(found[0][4][0])
    return f"[{number}]:{port}" if ":" in number else f"{number}:{port}"


def listening_address(address: str, *, option: str = "listen") -> str:
    """As `resolve`, for an address that others are told.

    Invalid: a name that other hosts take for themselves, since it means the loopback interface here.
    """
    resolved = resolve(address, option=option)
    number = _ip(_split(resolved)[0])
    if resolved != address and number is not None and number.is_loopback:
        raise Invalid(
            f"{option} = {address!r}: the name means {number} here, which no other host can reach;"
            " write an address of a network interface, or localhost if that is meant"
        )
    return resolved


def advertised(config: Config, listen: str) -> str:
    """What peers are told instead of `listen` (resolved); "" for `listen` itself.

    Invalid: `listen` means all interfaces, and `advertise` does not say which address peers reach.
    """
    number = _ip(_split(listen)[0])
    if config.advertise is None:
        if number is not None and number.is_unspecified:
            raise Invalid(f"listen = {listen!r} is no address that peers could be told; set advertise = HOST")
        return ""
    host = config.advertise
    with_port = host if host.rpartition(":")[2].isdigit() and (host.count(":") == 1 or "]:" in host) else f"{host}:0"
    told = listening_address(with_port, option="advertise")
    number = _ip(_split(told)[0])
    if number is not None and number.is_unspecified:
        raise Invalid(f"advertise = {host!r} is no address that peers could reach")
    return told
