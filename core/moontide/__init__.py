"""Moontide moves KV cache between the machines of an LLM serving fleet and keeps it in a pool of their memory."""

from __future__ import annotations

from moontide import errors
from moontide._core import version as __version__
from moontide.config import Config, load_config
from moontide.engine import Arena, Engine, Operation, Peer, Prepared, Region, RemoteRegion, Transfer

__all__ = [
    "Arena",
    "Config",
    "Engine",
    "Operation",
    "Peer",
    "Prepared",
    "Region",
    "RemoteRegion",
    "Transfer",
    "__version__",
    "errors",
    "load_config",
]
