"""Measurements in Prometheus' terms. Nothing is registered anywhere unless the caller does it::

    prometheus_client.REGISTRY.register(Collector(engine))

Every sample of an engine has the label ``engine``; the sum over all engines and processes is the whole, for everything
that only grows. docs/design/observability.md has the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric

from moontide.errors import Invalid, MoontideError
from moontide.observe.metrics import EngineMetrics, Histogram, PathMetrics

__all__ = ["Collector", "CountsCollector", "page"]

# Powers of two in nanoseconds, from 256 ns to 69 s: ends of the buckets in which the engine counts, so nothing is lost.
BOUNDS = tuple(2**exponent / 1e9 for exponent in range(8, 37))
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Source = Callable[[], EngineMetrics]


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounded = [(repr(bound), float(histogram.at_most(bound))) for bound in BOUNDS]
    return [*bounded, ("+Inf", float(histogram.count))]


class Collector:
    """The engines that were added, as they are when somebody asks. A closed one is left out."""

    def __init__(self, **engines: Source) -> None:
        self._engines: dict[str, Source] = {}
        for name, read in engines.items():
            self.add(name, read)

    def add(self, name: str, read: Source) -> None:
        """`read`: an engine's `metrics`. Invalid: the name is taken."""
        if name in self._engines:
            raise Invalid(f"two engines named {name!r}: their samples could not be told apart")
        self._engines[name] = read

    def remove(self, name: str) -> None:
        """Its samples end; those of the others stay."""
        self._engines.pop(name, None)

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not ask the engines when this is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families, each with the samples of all engines."""
        seen: dict[str, EngineMetrics] = {}
        for name, read in list(self._engines.items()):
            try:
                seen[name] = read()
            except MoontideError:
                continue
        yield from _engine_families(seen)
        yield from _path_families({name: metrics.paths for name, metrics in seen.items()})
        yield from _peer_families(seen)


_COUNTERS: Mapping[str, str] = {
    "transfers": "Transfers that have their outcome; pulls for peers are transfers.",
    "links_opened": "Links to peers that came about, by either side.",
    "links_lost": "Links that ended otherwise than by being closed here.",
    "connections_refused": "Incoming connections that were dropped for want of a place before they said who they are.",
    "pulls_served": "Writes of peers of this host for which this engine read.",
    "paths_failed": "Times that a path between two devices was given up for a while.",
    "control_moves": "Times that the control channel of a link went on over other devices.",
    "slow_operations": "Times that a transfer or store operation was reported as slow.",
}
_GAUGES: Mapping[str, str] = {
    "transfers_in_flight": "Transfers without an outcome.",
    "oldest_transfer_seconds": "Age of the oldest transfer without an outcome; 0 when there is none. Take the maximum.",
    "hostages": "Transfers that have their outcome while a peer may still land bytes of them.",
    "holds": "Blocks kept for a peer that has not released them.",
    "links": "Open links.",
    "links_lingering": "Links given up here that the peer has not confirmed to be over.",
}


def _engine_families(seen: Mapping[str, EngineMetrics]) -> Iterator[Metric]:
    for field, text in _COUNTERS.items():
        counter = CounterMetricFamily(f"moontide_{field}", text, labels=["engine"])
        for name, metrics in seen.items():
            counter.add_metric([name], getattr(metrics, field))
        yield counter
    for field, text in _GAUGES.items():
        gauge = GaugeMetricFamily(f"moontide_{field}", text, labels=["engine"])
        for name, metrics in seen.items():
            gauge.add_metric([name], getattr(metrics, field))
        yield gauge
    for what, text in (("transfer", "Transfers that failed, by cause."), ("connect", "Links that did not come about.")):
        failures = CounterMetricFamily(f"moontide_{what}_failures", text, labels=["engine", "code"])
        for name, metrics in seen.items():
            for code, count in getattr(metrics, f"{what}_failures").items():
                failures.add_metric([name, code], count)
        yield failures
    times = {
        "transfer": "From submitting a transfer to its outcome, failed ones too.",
        "connect": "Opening a link, handshake included; failed attempts are not in it.",
    }
    for what, text in times.items():
        histogram = HistogramMetricFamily(f"moontide_{what}_seconds", text, labels=["engine"])
        for name, metrics in seen.items():
            seconds: Histogram = getattr(metrics, what)
            histogram.add_metric([name], _buckets(seconds), seconds.sum)
        yield histogram


def _path_families(seen: Mapping[str, Mapping[str, PathMetrics]]) -> Iterator[Metric]:
    labels = ["engine", "path"]
    moved = CounterMetricFamily("moontide_moved_bytes", "Bytes of slices that arrived.", labels=[*labels, "op"])
    slices = CounterMetricFamily("moontide_slices", "Slices that arrived.", labels=labels)
    retries = CounterMetricFamily(
        "moontide_slice_retries", "Slices that failed on this path and went on over another.", labels=labels
    )
    failures = CounterMetricFamily(
        "moontide_slice_failures", "Slices that failed on this path, by cause.", labels=[*labels, "code"]
    )
    seconds = HistogramMetricFamily(
        "moontide_slice_seconds",
        "Time of a slice (at most 1 MiB) in a stage: queue (not posted), wire (the peer has it), copy (by a thread).",
        labels=[*labels, "stage"],
    )
    for engine, paths in seen.items():
        for name, path in paths.items():
            moved.add_metric([engine, name, "read"], path.bytes_read)
            moved.add_metric([engine, name, "write"], path.bytes_written)
            slices.add_metric([engine, name], path.slices)
            retries.add_metric([engine, name], path.retries)
            for code, count in path.failures.items():
                failures.add_metric([engine, name, code], count)
            for stage, histogram in path.stages.items():
                seconds.add_metric([engine, name, stage], _buckets(histogram), histogram.sum)
    yield from (moved, slices, retries, failures, seconds)


def _peer_families(seen: Mapping[str, EngineMetrics]) -> Iterator[Metric]:
    labels = ["engine", "peer", "address", "path"]
    moved = CounterMetricFamily(
        "moontide_peer_moved_bytes",
        "moontide_moved_bytes by peer; older ones are 'other'.",
        labels=[*labels, "op"],
    )
    failures = CounterMetricFamily(
        "moontide_peer_slice_failures", "moontide_slice_failures by peer, all causes.", labels=labels
    )
    seconds = SummaryMetricFamily(
        "moontide_peer_slice_seconds", "moontide_slice_seconds by peer: sum and count.", labels=[*labels, "stage"]
    )
    for engine, metrics in seen.items():
        for peer in metrics.peers:
            for name, path in peer.paths.items():
                values = [engine, peer.instance_id[:12], peer.address, name]
                moved.add_metric([*values, "read"], path.bytes_read)
                moved.add_metric([*values, "write"], path.bytes_written)
                failures.add_metric(values, sum(path.failures.values()))
                for stage, histogram in path.stages.items():
                    seconds.add_metric([*values, stage], histogram.count, histogram.sum)
    yield from (moved, failures, seconds)


class CountsCollector:
    """Named numbers of a native part, each with its own help; those without a help are not shown."""

    def __init__(
        self, prefix: str, read: Callable[[], Mapping[str, int]], counters: Mapping[str, str], gauges: Mapping[str, str]
    ) -> None:
        self._prefix = prefix
        self._read = read
        self._counters = counters
        self._gauges = gauges

    def describe(self) -> Iterable[Metric]:
        """Nothing, as of `Collector`."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """One family per number."""
        try:
            values = self._read()
        except MoontideError:
            return
        for name, text in self._counters.items():
            yield CounterMetricFamily(f"{self._prefix}_{name}", text, value=values[name])
        for name, text in self._gauges.items():
            yield GaugeMetricFamily(f"{self._prefix}_{name}", text, value=values[name])


def page(*collectors: Collector | CountsCollector) -> bytes:
    """The text of /metrics."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry)
