"""The one configuration: a TOML file, then ``MOONTIDE_*`` variables, then flags; the later wins.

Only this module reads the environment. An unknown option or a bad value is an error that names the option, the value
and what is allowed. The native core never sees a string: sizes are bytes, durations seconds, by the time it is asked.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

from moontide.errors import Invalid

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Config",
    "describe",
    "load_config",
    "load_with_sources",
    "parse_duration",
    "parse_size",
    "proxy_variables",
    "show",
]

_KIB = 1024
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kib": _KIB,
    "mib": _KIB**2,
    "gib": _KIB**3,
    "tib": _KIB**4,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
}
_TIME_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_ADDRESS = re.compile(r"(?:(?P<bracketed>\[[0-9A-Fa-f:.]+\])|(?P<host>[^\s:\[\]]+)):(?P<port>[0-9]{1,5})")
_DIRECTORY = re.compile(
    r"(?:(?:http|etcd)://|(?P<redis>redis://(?:[^\s/@?#]*@)?))"
    r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/@?#]+):(?P<port>[0-9]{1,5})/?(?(redis)[0-9]{0,5})"
)
_PASSWORD = re.compile(r"(?<=//)[^/@]*@")
_PROXY = re.compile(r"(?:http|https|all|no)_proxy")
_NAME = re.compile(r"[^\s,/\\\"'\x00-\x1f]{1,64}")
_INPROC = re.compile(r"inproc:[^\s]+")
# A Kubernetes service called "moontide..." puts such variables into every pod; they are no options of ours.
_SERVICE_LINK = re.compile(r"(_|^)(SERVICE_(HOST|PORT.*)|PORT(_[0-9]+_(TCP|UDP|SCTP).*)?)$")
_PREFIX = "MOONTIDE_"
_FILE_VARIABLE = "MOONTIDE_CONFIG"


def parse_size(value: object, *, option: str = "size") -> int:
    """Bytes of ``"256MiB"``, ``"1.5GB"``, ``"64 KiB"`` or a plain number. Invalid names the option."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise Invalid(f"{option} = {value!r}: not a size; write for example 256MiB, 1.5GB or a number of bytes")
    factor = _SIZE_UNITS[match[2].lower()]
    return round(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def parse_duration(value: object, *, option: str = "duration") -> float:
    """Seconds of ``"2s"``, ``"200ms"``, ``"1min"`` or a plain number of seconds. Invalid names the option."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or (match[2] or "s") not in _TIME_UNITS:
        raise Invalid(f"{option} = {value!r}: not a duration; write for example 2s, 200ms or a number of seconds")
    return float(match[1]) * _TIME_UNITS[match[2] or "s"]


def _hide_password(url: str) -> str:
    return _PASSWORD.sub("***@", url)


class _Kind:
    """How one option's text becomes a value. The description is what `moontide config` and flags show."""

    def __init__(self, description: str) -> None:
        self.description = description

    def allowed(self) -> str:
        raise NotImplementedError

    def parse(self, option: str, value: object) -> object:
        raise NotImplementedError

    def show(self, value: object) -> str:
        return str(value)


class _Address(_Kind):
    def allowed(self) -> str:
        return "HOST:PORT with a port of 0 to 65535, or inproc:NAME"

    def parse(self, option: str, value: object) -> object:
        if isinstance(value, str):
            if _INPROC.fullmatch(value):
                return value
            match = _ADDRESS.fullmatch(value)
            if match is not None and int(match["port"]) <= 65535:
                return value
        raise Invalid(f"{option} = {value!r}: not an address; allowed: {self.allowed()}")


class _OptionalAddress(_Address):
    def parse(self, option: str, value: object) -> object:
        return None if value in (None, "") else super().parse(option, value)

    def show(self, value: object) -> str:
        return "" if value is None else str(value)


class _Addresses(_Address):
    def allowed(self) -> str:
        return "HOST:PORT,HOST:PORT,… (at most 16), one per network device"

    def parse(self, option: str, value: object) -> object:
        parts = [part.strip() for part in value.split(",")] if isinstance(value, str) and value.strip() else []
        if isinstance(value, (list, tuple)):
            parts = list(value)
        if len(parts) > 16 or not all(isinstance(part, str) and _ADDRESS.fullmatch(part) for part in parts):
            raise Invalid(f"{option} = {value!r}: not a list of addresses; allowed: {self.allowed()}")
        return tuple(parts)

    def show(self, value: object) -> str:
        assert isinstance(value, tuple)
        return ",".join(value)


class _Directory(_Kind):
    def allowed(self) -> str:
        return "direct, http://HOST:PORT, etcd://HOST:PORT, redis://[USER:PASSWORD@]HOST:PORT[/DATABASE]"

    def parse(self, option: str, value: object) -> object:
        shown = value
        if isinstance(value, str):
            match = _DIRECTORY.fullmatch(value)
            if value == "direct" or (match is not None and 0 < int(match["port"]) <= 65535):
                return value
            shown = _hide_password(value)
        raise Invalid(f"{option} = {shown!r}: no directory; allowed: {self.allowed()}")

    def show(self, value: object) -> str:
        return _hide_password(str(value))


class _Advertised(_Kind):
    def allowed(self) -> str:
        return "HOST or HOST:PORT; empty: what is listened on"

    def parse(self, option: str, value: object) -> object:
        if value in (None, ""):
            return None
        if isinstance(value, str) and not _INPROC.fullmatch(value):
            match = _ADDRESS.fullmatch(value) or _ADDRESS.fullmatch(f"{value}:0")
            if match is not None and int(match["port"]) <= 65535:
                return value
        raise Invalid(f"{option} = {value!r}: not an address; allowed: {self.allowed()}")

    def show(self, value: object) -> str:
        return "" if value is None else str(value)


class _OptionalPath(_Kind):
    def allowed(self) -> str:
        return "a path; empty: none"

    def parse(self, option: str, value: object) -> object:
        if value in (None, ""):
            return None
        if isinstance(value, (str, os.PathLike)):
            return os.fspath(value)
        raise Invalid(f"{option} = {value!r}: not a path")

    def show(self, value: object) -> str:
        return "" if value is None else str(value)


class _Text(_Kind):
    def __init__(self, description: str, most: int) -> None:
        super().__init__(description)
        self.most = most

    def allowed(self) -> str:
        return f"up to {self.most} printable characters"

    def parse(self, option: str, value: object) -> object:
        if isinstance(value, str) and len(value) <= self.most and (value.isprintable() or not value):
            return value
        raise Invalid(f"{option} = {value!r}: allowed are {self.allowed()}")


class _Flag(_Kind):
    def allowed(self) -> str:
        return "true, false"

    def parse(self, option: str, value: object) -> object:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        raise Invalid(f"{option} = {value!r}: allowed are {self.allowed()}")

    def show(self, value: object) -> str:
        return "true" if value else "false"


class _Choice(_Kind):
    def __init__(self, description: str, *choices: str) -> None:
        super().__init__(description)
        self.choices = choices

    def allowed(self) -> str:
        return ", ".join(self.choices)

    def parse(self, option: str, value: object) -> object:
        if isinstance(value, str) and value.lower() in self.choices:
            return value.lower()
        raise Invalid(f"{option} = {value!r}: allowed are {self.allowed()}")


class _Ranged(_Kind):
    def __init__(self, description: str, low: float, high: float) -> None:
        super().__init__(description)
        self.low, self.high = low, high

    def allowed(self) -> str:
        return f"{self.show(self.low)} to {self.show(self.high)}"

    def number(self, option: str, value: object) -> float:
        raise NotImplementedError

    def parse(self, option: str, value: object) -> object:
        number = self.number(option, value)
        if not self.low <= number <= self.high:
            raise Invalid(f"{option} = {value!r}: out of range, allowed are {self.allowed()}")
        return number


class _Size(_Ranged):
    def number(self, option: str, value: object) -> float:
        return parse_size(value, option=option)

    def show(self, value: object) -> str:
        assert isinstance(value, (int, float))
        for unit, factor in (("TiB", _KIB**4), ("GiB", _KIB**3), ("MiB", _KIB**2), ("KiB", _KIB)):
            if value and value % factor == 0:
                return f"{int(value // factor)}{unit}"
        return str(int(value))


class _Duration(_Ranged):
    def number(self, option: str, value: object) -> float:
        return parse_duration(value, option=option)

    def show(self, value: object) -> str:
        assert isinstance(value, (int, float))
        return f"{value:g}s" if value >= 1 else f"{value * 1000:g}ms"


class _Count(_Ranged):
    def number(self, option: str, value: object) -> float:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,18}\s*", value):
            return int(value)
        raise Invalid(f"{option} = {value!r}: not a whole number; allowed are {self.allowed()}")


class _Names(_Kind):
    """A list; in variables and flags separated by commas."""

    def allowed(self) -> str:
        return "up to 64 names of up to 64 characters, separated by commas; * and ? stand for others, as in the shell"

    def parse(self, option: str, value: object) -> object:
        items = value.split(",") if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
            raise Invalid(f"{option} = {value!r}: no list of names; allowed are {self.allowed()}")
        names = tuple(item.strip() for item in items if item.strip())
        if len(names) > 64 or not all(_NAME.fullmatch(name) for name in names):
            raise Invalid(f"{option} = {value!r}: allowed are {self.allowed()}")
        return names

    def show(self, value: object) -> str:
        assert isinstance(value, tuple)
        return ",".join(value)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The effective configuration; see `moontide config`. Build it with `load_config`, which checks the values."""

    listen: Annotated[str, _Address("where this process listens; port 0 takes a free one")] = "127.0.0.1:0"
    advertise: Annotated[str | None, _Advertised("where peers are told to reach this process")] = None
    secret_file: Annotated[
        str | None,
        _OptionalPath("file with the cluster's secret, 16 bytes or more, readable by its owner only"),
    ] = None
    tls_cert: Annotated[str | None, _OptionalPath("PEM file: this process's certificate and its chain")] = None
    tls_key: Annotated[str | None, _OptionalPath("PEM file: its private key, readable by its owner only")] = None
    tls_ca: Annotated[str | None, _OptionalPath("PEM file: the authority that peers have certificates of")] = None
    insecure_listen: Annotated[
        bool,
        _Flag("off loopback without a secret: whoever reaches the port reads and writes what is registered"),
    ] = False
    master: Annotated[str | None, _OptionalAddress("the pool's master; empty: no pool, or an embedded one")] = None
    lend: Annotated[int, _Size("memory that this process lends to the pool", 0, _KIB**5)] = 0
    hot_cache: Annotated[
        int,
        _Size("memory of a node for what its host reads often from other hosts; 0: none", 0, 128 * _KIB**3),
    ] = 0
    directory: Annotated[str, _Directory("where segment names are looked up; direct: they are addresses")] = "direct"
    directory_ttl: Annotated[float, _Duration("a published name that is not renewed for so long is gone", 1, 3600)] = 10
    http_listen: Annotated[
        str | None, _OptionalAddress("where a server answers HTTP: metrics, dumps, the directory; empty: it does not")
    ] = None
    http_reach: Annotated[
        str,
        _Choice(
            "where http_listen and events may be; anywhere: nobody who reaches the port is asked who they are",
            "loopback",
            "anywhere",
        ),
    ] = "loopback"
    events_listen: Annotated[
        str | None, _OptionalAddress("where the master publishes what happens to objects (ZeroMQ); empty: nowhere")
    ] = None
    events_replay_listen: Annotated[
        str | None, _OptionalAddress("where the master sends events again that were missed; empty: it does not")
    ] = None
    events_topic: Annotated[str, _Text("the topic of published events", 256)] = ""
    http_token_file: Annotated[
        str | None,
        _OptionalPath(
            "file with the token that changes over HTTP have to show, readable by its owner only; empty: none"
        ),
    ] = None
    log_level: Annotated[str, _Choice("what is logged", "debug", "info", "warning", "error")] = "info"
    progress_timeout: Annotated[float, _Duration("a transfer without progress for so long has failed", 0.01, 3600)] = 2
    connect_timeout: Annotated[float, _Duration("for opening a peer, handshake included", 0.01, 3600)] = 2
    keepalive: Annotated[
        float,
        _Duration("a peer of another host that is silent for so long is asked for a sign of life; 0: never", 0, 3600),
    ] = 10
    hold_ttl: Annotated[float, _Duration("a hand-over nobody renews for so long is over", 0.1, 86400)] = 30
    lease: Annotated[float, _Duration("how long a located object is likely to stay", 0.1, 3600)] = 1
    eviction: Annotated[
        str, _Choice("which objects of a full pool go first; said to the master", "prefix", "lru", "s3fifo", "tinylfu")
    ] = "prefix"
    max_objects: Annotated[
        int, _Count("objects that the master knows at most; past it the coldest go", 1000, 1_000_000_000)
    ] = 4_000_000
    server_spin_us: Annotated[
        int, _Count("microseconds that a master or node polls before it sleeps: it takes a core", 0, 10_000)
    ] = 0
    spin_us: Annotated[int, _Count("microseconds that a waiter polls before it sleeps", 0, 10_000)] = 20
    tcp_streams: Annotated[int, _Count("data connections per peer", 1, 16)] = 1
    rails: Annotated[
        tuple[str, ...],
        _Addresses(
            "network devices to use together, in the same order everywhere: addresses, interface:port, or auto:port"
        ),
    ] = ()
    local_reads: Annotated[
        str,
        _Choice("how memory of this host is read; off: by tcp", "auto", "shm", "cma", "off"),
    ] = "auto"
    nics: Annotated[
        tuple[str, ...], _Names("NICs that moontide topology ranks, by interface or RDMA device; empty: all")
    ] = ()
    nics_excluded: Annotated[tuple[str, ...], _Names("NICs that moontide topology leaves out; it wins over nics")] = ()
    slow: Annotated[
        float, _Duration("what takes longer and does not move well is logged as a warning; 0: nothing is", 0, 86400)
    ] = 1
    dump_on_signal: Annotated[
        str,
        _Choice("SIGUSR1 writes what is under way to standard error; auto: in servers only", "auto", "on", "off"),
    ] = "auto"


@cache
def _kinds() -> dict[str, _Kind]:
    hints = get_type_hints(Config, include_extras=True)
    return {name: next(m for m in get_args(hint) if isinstance(m, _Kind)) for name, hint in hints.items()}


def describe(option: str) -> tuple[str, str]:
    """(what the option is for, the values allowed)."""
    return _kinds()[option].description, _kinds()[option].allowed()


def show(option: str, value: object) -> str:
    """The value as text that the option's own parser takes."""
    return _kinds()[option].show(value)


def proxy_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What the environment says about proxies, for `moontide doctor`; nothing of Moontide goes by it."""
    environ = os.environ if environ is None else environ
    return {name: value for name, value in sorted(environ.items()) if _PROXY.fullmatch(name.lower()) and value}


def _unknown(option: str, where: str) -> Invalid:
    import difflib  # only errors need it

    close = difflib.get_close_matches(option, _kinds(), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return Invalid(f"unknown option {option!r} in {where}{hint} (known: {', '.join(_kinds())})")


def _read_file(where: str | Path) -> dict[str, Any]:
    # Imported here: most processes have no file.
    from pathlib import Path

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    path = Path(where)
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise Invalid(f"{_FILE_VARIABLE} = {str(path)!r}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"{path}: not TOML: {error}") from None


def load_with_sources(
    flags: Mapping[str, object] | None = None,
    *,
    file: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Config, dict[str, str]]:
    """The effective configuration and where each value came from ("default", "file PATH", "MOONTIDE_X", "flag --x").

    A flag whose value is None was not given. Raises Invalid.
    """
    environ = os.environ if environ is None else environ
    given: list[tuple[str, str, object]] = []
    path = file if file is not None else environ.get(_FILE_VARIABLE)
    if path:
        given += [(name, f"file {path}", value) for name, value in _read_file(path).items()]
    for variable in sorted(environ):
        if not variable.startswith(_PREFIX) or variable == _FILE_VARIABLE:
            continue
        name = variable.removeprefix(_PREFIX)
        if name.lower() not in _kinds() and _SERVICE_LINK.search(name):
            continue
        given.append((name.lower(), variable, environ[variable]))
    for name, value in (flags or {}).items():
        if value is not None:
            given.append((name, "flag --" + name.replace("_", "-"), value))
    values: dict[str, Any] = {}
    sources = {field.name: "default" for field in fields(Config)}
    for name, source, value in given:
        if name not in _kinds():
            raise _unknown(name, source)
        try:
            values[name] = _kinds()[name].parse(name, value)
        except Invalid as error:
            raise Invalid(f"{error.message} (from {source})") from None
        sources[name] = source
    return Config(**values), sources


def load_config(
    flags: Mapping[str, object] | None = None,
    *,
    file: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The effective configuration; see `load_with_sources`. Invalid."""
    return load_with_sources(flags, file=file, environ=environ)[0]
