"""kv_transfer_params: what travels with a request through clients and proxies, so nothing in it is to be believed.

Prefill side, in:   {"do_remote_decode": true}                                     → hold my blocks for a decoder
Prefill side, out:  {"do_remote_prefill": true, "moontide": 1, "hold": …, …}       → given to the decoder unchanged
What cannot be read is ignored with a reason that is counted; nothing here raises.
"""

from __future__ import annotations

import re
import secrets
from typing import Annotated, Any

import msgspec

__all__ = ["HOLD_ID_BYTES", "VERSION", "HoldRequest", "Ignored", "PullRequest", "new_hold_id", "parse", "parse_address"]

VERSION = 1
HOLD_ID_BYTES = 16
MAX_RANKS = 1024
MAX_TOKENS = 1 << 31
MAX_FIELDS = 64

_HOST = re.compile(r"\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9])?")

Address = Annotated[str, msgspec.Meta(min_length=3, max_length=262)]


class HoldRequest(msgspec.Struct, frozen=True):
    """The client will decode elsewhere: hold the blocks at the end."""


class PullRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks wait at a prefill engine. What they really are is in the hold itself, which only that engine can write."""

    moontide: int
    hold: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(min_length=1, max_length=MAX_RANKS)]
    """of the workers' engines, by TP rank"""
    num_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
    num_blocks: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]

    @property
    def hold_id(self) -> bytes:
        return bytes.fromhex(self.hold)

    def as_params(self) -> dict[str, Any]:
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            **msgspec.to_builtins(self),
            "addresses": list(self.addresses),
        }


class Ignored(msgspec.Struct, frozen=True):
    """Params were there but are not used. ``reason`` is one of a few words, fit for a metric's label."""

    reason: str
    detail: str = ""


def new_hold_id() -> str:
    """Random, so that a hold can be neither guessed nor confused with one of an earlier process."""
    return secrets.token_hex(HOLD_ID_BYTES)


def parse_address(text: object) -> tuple[str, int] | None:
    """(host, port) of ``host:port`` or ``[v6]:port``; None if it is not well formed."""
    if not isinstance(text, str) or len(text) > 262:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not _HOST.fullmatch(host) or not re.fullmatch(r"[0-9]{1,5}", port):
        return None
    number = int(port)
    return (host, number) if 1 <= number <= 65535 else None


def parse(params: object) -> HoldRequest | PullRequest | Ignored | None:
    """What the params ask for; None if there are none or they ask for nothing."""
    try:
        return _parse(params)
    except Exception as error:  # a hostile object may raise anything from its methods
        return Ignored("malformed", type(error).__name__)


def _parse(params: object) -> HoldRequest | PullRequest | Ignored | None:
    if params is None or params == {}:
        return None
    if not isinstance(params, dict):
        return Ignored("malformed", f"a {type(params).__name__}, not an object")
    if len(params) > MAX_FIELDS or not all(isinstance(name, str) for name in params):
        return Ignored("malformed", f"{len(params)} fields")
    flags = [params.get("do_remote_prefill"), params.get("do_remote_decode")]
    if any(flag is not None and not isinstance(flag, bool) for flag in flags):
        return Ignored("malformed", "do_remote_prefill and do_remote_decode must be true or false")
    pull, hold = bool(flags[0]), bool(flags[1])
    if pull and hold:
        return Ignored("malformed", "do_remote_prefill and do_remote_decode exclude each other")
    if hold:
        return HoldRequest()
    return _pull(params) if pull else None


def _pull(params: dict[str, Any]) -> PullRequest | Ignored:
    version = params.get("moontide")
    if version is None:
        return Ignored("foreign", "no field 'moontide'")
    if isinstance(version, bool) or not isinstance(version, int):
        return Ignored("malformed", "field 'moontide' must be an integer")
    if version != VERSION:
        return Ignored("version", f"{VERSION} here, {version} there")
    known = {name: params[name] for name in PullRequest.__struct_fields__ if name in params}
    try:
        request = msgspec.convert(known, PullRequest)
    except msgspec.ValidationError as error:
        return Ignored("malformed", str(error))
    if any(parse_address(address) is None for address in request.addresses):
        return Ignored("malformed", "an address is not host:port")
    if request.num_blocks != -(-request.num_tokens // request.block_size):
        return Ignored("malformed", f"{request.num_tokens} tokens do not lie in {request.num_blocks} blocks")
    return request
