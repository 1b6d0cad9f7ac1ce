"""Seeing what an engine does: measurements, what is under way, what is slow. See docs/design/observability.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def __getattr__(name: str) -> object:
    """Loads what is asked for: msgspec would be a third of `import moontide`, and few look at their engines."""
    if name in __all__:
        for part in ("dumps", "metrics"):
            module = importlib.import_module(f"moontide.observe.{part}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
