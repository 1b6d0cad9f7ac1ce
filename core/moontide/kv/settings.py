"""Options of a connector: the engine's own extra configuration over Moontide's."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated

import msgspec

from moontide.config import Config, load_config, parse_duration, parse_size
from moontide.errors import Invalid

__all__ = ["KvSettings"]

_Seconds = Annotated[float, msgspec.Meta(ge=0.001, le=3600)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]


class KvSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All deadlines are on their own step, so a load ends at the latest after their sum."""

    master: str | None = None
    listen: str = "127.0.0.1:0"
    pool: bool = True
    """False: hand-over only"""
    cache_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] = 256 << 20
    """of the embedded cache, used where there is no master"""
    hold_ttl: _Seconds = 30.0
    open_timeout: _Seconds = 3.0
    claim_timeout: _Seconds = 2.0
    """a hold may be asked for before the prefill worker was told to make it"""
    read_timeout: _Seconds = 10.0
    """without progress"""
    release_timeout: _Seconds = 2.0
    lookup_timeout: _Seconds = 0.05
    fence_timeout: _Seconds = 2.0
    """how long a step waits for saves that still read the blocks it is about to overwrite"""
    load_threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    max_loads: _Count = 1024
    max_held_share: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.8
    """of the cache's blocks that may be held for decoders; beyond it a request is not handed over"""
    max_save_blocks: _Count = 2048
    """blocks whose saving is under way at a time; more are not saved"""

    @classmethod
    def resolve(cls, extra: Mapping[str, object], config: Config | None = None) -> KvSettings:
        """From kv_connector_extra_config; what it does not say is taken from the process's configuration.

        Raises Invalid naming the option.
        """
        config = load_config() if config is None else config
        values: dict[str, object] = {"master": config.master, "listen": config.listen, "hold_ttl": config.hold_ttl}
        for name, value in extra.items():
            if name not in cls.__struct_fields__:
                close = difflib.get_close_matches(str(name), cls.__struct_fields__, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else f" (known: {', '.join(cls.__struct_fields__)})"
                raise Invalid(f"unknown option {name!r} in kv_connector_extra_config{hint}")
            values[name] = _quantity(name, value)
        # The same check that the option gets from the environment or a flag.
        load_config({"master": values["master"], "listen": values["listen"]}, environ={})
        try:
            return msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            raise Invalid(f"kv_connector_extra_config: {error}") from None


def _quantity(name: str, value: object) -> object:
    option = f"kv_connector_extra_config {name}"
    if name == "cache_bytes":
        return parse_size(value, option=option)
    if name.endswith(("_timeout", "_ttl")):
        return parse_duration(value, option=option)
    return value
