"""KV cache of inference engines: keys, layouts, hand-over and reuse, without knowing any particular engine.

An adapter for an inference engine gives `SchedulerHalf` what its scheduler decides and `WorkerHalf` what its worker
does, and describes the memory of its cache by a `Layout`. Nothing here imports an engine, torch or numpy.
"""

from __future__ import annotations

from moontide.kv.identity import ModelIdentity
from moontide.kv.keys import Chain, KeySpace, Span
from moontide.kv.layout import LayerLayout, Layout, Rank
from moontide.kv.scheduling import RequestView, ScheduledRequest, SchedulerHalf
from moontide.kv.settings import KvSettings
from moontide.kv.stats import Stats
from moontide.kv.working import WorkerHalf

__all__ = [
    "Chain",
    "KeySpace",
    "KvSettings",
    "LayerLayout",
    "Layout",
    "ModelIdentity",
    "Rank",
    "RequestView",
    "ScheduledRequest",
    "SchedulerHalf",
    "Span",
    "Stats",
    "WorkerHalf",
]
