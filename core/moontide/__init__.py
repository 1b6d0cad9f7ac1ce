"""Moontide moves KV cache between the machines of an LLM serving fleet and keeps it in a pool of their memory."""

from __future__ import annotations

from moontide import errors
from moontide._core import version as __version__
from moontide.config import Config, load_config
from moontide.engine import Arena, Engine, Operation, Peer, Prepared, Region, RemoteRegion, Strided, Transfer
from moontide.store import AsyncStore, ObjectInfo, Store, View

__all__ = [
    "Arena",
    "AsyncStore",
    "Config",
    "Engine",
    "ObjectInfo",
    "Operation",
    "Peer",
    "Prepared",
    "Region",
    "RemoteRegion",
    "Store",
    "Strided",
    "Transfer",
    "View",
    "__version__",
    "errors",
    "load_config",
]
