"""Seeing what an engine does: measurements, what is under way, what is slow. See docs/design/observability.md."""

from __future__ import annotations

from moontide.observe.dumps import (
    EngineDump,
    StageDump,
    TransferDump,
    dump_engine,
    dump_on_signal,
    dumps_text,
    format_dump,
)
from moontide.observe.metrics import EngineMetrics, Histogram, PathMetrics, PeerMetrics, read_metrics

__all__ = [
    "EngineDump",
    "EngineMetrics",
    "Histogram",
    "PathMetrics",
    "PeerMetrics",
    "StageDump",
    "TransferDump",
    "dump_engine",
    "dump_on_signal",
    "dumps_text",
    "format_dump",
    "read_metrics",
]
