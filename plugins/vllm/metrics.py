"""Connector statistics: from the halves through vLLM's own channel to its log line and to Prometheus."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from moontide.kv.stats import merge, split_key

__all__ = ["MoontidePromMetrics", "MoontideStats"]

_COUNTERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "loads": ("vllm:moontide_loads", "Loads of KV cache, one per request.", ("source", "result")),
    "saves": ("vllm:moontide_save_blocks", "Blocks offered to the pool, by what became of them.", ("result",)),
    "blocks": ("vllm:moontide_blocks", "Blocks of KV cache that were loaded.", ("operation", "source")),
    "bytes": ("vllm:moontide_bytes", "Bytes of KV cache that were moved.", ("operation", "source", "path")),
    "holds": ("vllm:moontide_holds", "Hand-overs of this prefill engine, by how they ended.", ("end",)),
    "releases": ("vllm:moontide_releases", "Hand-overs that were not needed and given back early.", ("result",)),
    "lookups": ("vllm:moontide_lookups", "Lookups in the pool.", ("result",)),
    "bypassed": ("vllm:moontide_bypassed", "Requests that did not use a facility, by reason.", ("reason",)),
    "fence_waits": ("vllm:moontide_fence_waits", "Steps that waited for a save still reading their blocks.", ()),
    "fence_abandoned": ("vllm:moontide_fence_abandoned", "Saves that did not end although cancelled.", ()),
    "hostage_waits": ("vllm:moontide_hostage_seconds", "Seconds that blocks could not be given back.", ()),
}
_HISTOGRAMS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "load": ("vllm:moontide_load_seconds", "Duration of a load, all steps.", ("source",)),
    "save": ("vllm:moontide_save_seconds", "Duration of a save.", ("source",)),
    "fence": ("vllm:moontide_fence_seconds", "Time that a step waited for saves.", ()),
}
_BUCKETS = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30]


class MoontideStats(KVConnectorStats):  # type: ignore[misc]
    """``data`` is what `moontide.kv.stats.Stats.drain` gives."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        merge(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        counts = self.data.get("counts", {})
        line: dict[str, int | float] = {key.rstrip("|").replace("|", "."): number for key, number in counts.items()}
        for key, values in self.data.get("seconds", {}).items():
            if values:
                line[key.replace("|", ".") + ".avg_ms"] = round(1000 * sum(values) / len(values), 2)
        return line

    def is_empty(self) -> bool:
        return not self.data.get("counts") and not self.data.get("seconds")


class MoontidePromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """The series vllm:moontide_*, one child per engine and label set."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            key: metric_types[Counter](name=name, documentation=text, labelnames=[*labelnames, *labels])
            for key, (name, text, labels) in _COUNTERS.items()
        }
        self._histograms = {
            key: metric_types[Histogram](
                name=name, documentation=text, labelnames=[*labelnames, *labels], buckets=_BUCKETS
            )
            for key, (name, text, labels) in _HISTOGRAMS.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        engine = self.per_engine_labelvalues[engine_idx]
        for key, number in transfer_stats_data.get("counts", {}).items():
            name, labels = split_key(key)
            if name in self._counters and len(labels) == len(_COUNTERS[name][2]):
                self._counters[name].labels(*engine, *labels).inc(number)
        for key, values in transfer_stats_data.get("seconds", {}).items():
            name, labels = split_key(key)
            if name in self._histograms and len(labels) == len(_HISTOGRAMS[name][2]):
                child = self._histograms[name].labels(*engine, *labels)
                for value in values:
                    child.observe(value)
