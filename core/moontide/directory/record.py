"""What a directory knows of a segment, what may be written in it, and who of two claimants has the name."""

from __future__ import annotations

import re

import msgspec

from moontide._addresses import is_wildcard, split_address
from moontide.errors import Invalid, Stale

__all__ = [
    "EPOCH_MAX",
    "NAME_LENGTH_MAX",
    "TTL_MAX",
    "TTL_MIN",
    "Record",
    "check_name",
    "check_prefix",
    "check_record",
    "check_ttl",
    "successor",
    "superseded",
]

NAME_LENGTH_MAX = 200
EPOCH_MAX = 1 << 53
"""Exclusive. JSON and Lua have no whole numbers beyond."""
TTL_MIN, TTL_MAX = 1.0, 3600.0
_ADDRESS_LENGTH_MAX = 300
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*"
_NAME = re.compile(rf"{_PART}(/{_PART})*")
_PREFIX = re.compile(r"[A-Za-z0-9_.@+/-]*")
_INSTANCE = re.compile(r"[0-9a-f]{32}")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Where the engine of a segment is. What memory it has is told by the engine itself, at the handshake."""

    name: str
    address: str
    """host:port of the engine."""
    instance: str = ""
    """Random per start of the engine: 32 hexadecimal digits. Empty where nobody knows it (direct addresses)."""
    epoch: int = 0
    """Grows with each claim of the name. 0: not claimed yet."""


def check_name(name: str) -> str:
    """The name itself. Invalid."""
    if len(name) > NAME_LENGTH_MAX or _NAME.fullmatch(name) is None:
        raise Invalid(
            f"segment name {name[:250]!r}: allowed are up to {NAME_LENGTH_MAX} of letters, digits and _.@+-, in parts "
            "separated by / that begin with a letter, a digit or _"
        )
    return name


def check_prefix(prefix: str) -> str:
    """The prefix itself. Invalid."""
    if len(prefix) > NAME_LENGTH_MAX or _PREFIX.fullmatch(prefix) is None:
        raise Invalid(f"prefix {prefix[:250]!r}: no segment name can begin so")
    return prefix


def check_record(record: Record) -> Record:
    """The record itself. Invalid names what is wrong."""
    check_name(record.name)
    if len(record.address) > _ADDRESS_LENGTH_MAX:
        raise Invalid(f"address of {len(record.address)} bytes; allowed are {_ADDRESS_LENGTH_MAX}")
    host, port = split_address(record.address)
    if is_wildcard(host) or port == 0:
        raise Invalid(f"address = {record.address!r}: nobody can connect to that")
    if _INSTANCE.fullmatch(record.instance) is None:
        raise Invalid(f"instance = {record.instance[:50]!r}: not 32 hexadecimal digits")
    if not 0 <= record.epoch < EPOCH_MAX:
        raise Invalid(f"epoch = {record.epoch}: allowed are 0 to {EPOCH_MAX - 1}")
    return record


def check_ttl(ttl: float) -> float:
    """The seconds themselves. Invalid."""
    if not TTL_MIN <= ttl <= TTL_MAX:
        raise Invalid(f"ttl = {ttl:g} s: allowed are {TTL_MIN:g} s to {TTL_MAX:g} s")
    return ttl


def successor(current: Record | None, offered: Record, floor: int) -> Record:
    """What the directory holds after `offered` was published over `current`. Stale: a newer claimant has the name.

    A claim (epoch 0) always wins and gets an epoch above all before it: a process that was restarted need not wait for
    the record of the dead one. A renewal wins unless another instance claimed the name later. `floor` is an epoch
    that no earlier claim can have had, even one that this directory has forgotten.
    """
    if current is not None and current.instance == offered.instance:
        return msgspec.structs.replace(offered, epoch=max(current.epoch, offered.epoch))
    if offered.epoch == 0:
        return msgspec.structs.replace(offered, epoch=max(floor, 1, current.epoch + 1 if current else 0))
    if current is not None and current.epoch >= offered.epoch:
        raise superseded(current, offered)
    return offered


def superseded(current: Record, offered: Record) -> Stale:
    """The error that says who has the name, not raised."""
    return Stale(
        f"segment {offered.name!r} was claimed by instance {current.instance} at {current.address} (epoch "
        f"{current.epoch}), after instance {offered.instance} at {offered.address} (epoch {offered.epoch})"
    )
