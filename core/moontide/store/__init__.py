"""The pool: a distributed store of immutable objects, mostly KV-cache blocks, in the memory of many machines."""

from __future__ import annotations

from moontide.store.doors import AsyncStore, Store
from moontide.store.procedures import DrainStatus, Key, ObjectInfo, Place
from moontide.store.views import View

__all__ = ["AsyncStore", "DrainStatus", "Key", "ObjectInfo", "Place", "Store", "View"]
