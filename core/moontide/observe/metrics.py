"""What an engine measured since its start, as values. Durations are seconds, sizes bytes, failures by cause code."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from moontide import _core

__all__ = ["EngineMetrics", "Histogram", "PathMetrics", "PeerMetrics", "merge_paths", "read_metrics"]

_PARTS = 8  # buckets to a power of two, see csrc/base/histogram.h


class Histogram(msgspec.Struct, frozen=True):
    """How often which duration was seen. `buckets`: (end in seconds, count), ascending, the empty ones left out."""

    count: int = 0
    sum: float = 0.0
    longest: float = 0.0
    buckets: tuple[tuple[float, int], ...] = ()

    def quantile(self, q: float) -> float:
        """The duration that a share of `q` (0 to 1) is not above, within 6.25 % of it. 0 when nothing was seen."""
        rank = max(math.ceil(min(max(q, 0.0), 1.0) * self.count), 1)
        below = 0
        for end, count in self.buckets:
            below += count
            if below >= rank:
                return min(_middle(end), self.longest)
        return self.longest

    def at_most(self, bound: float) -> int:
        """How many were not above `bound` seconds; exact where the bound is a power of two in nanoseconds."""
        return sum(count for end, count in self.buckets if end <= bound)

    def merged(self, other: Histogram) -> Histogram:
        """As if one had seen the durations of both."""
        counts = dict(self.buckets)
        for end, count in other.buckets:
            counts[end] = counts.get(end, 0) + count
        buckets = tuple(sorted(counts.items()))
        longest = max(self.longest, other.longest)
        return Histogram(self.count + other.count, self.sum + other.sum, longest, buckets)


def _middle(end: float) -> float:
    if math.isinf(end):
        return end
    end_ns = round(end * 1e9)
    width_ns = max(1 << max((end_ns - 1).bit_length() - 1, 0), _PARTS) // _PARTS
    return (end_ns - width_ns + width_ns // 2) / 1e9


class PathMetrics(msgspec.Struct, frozen=True):
    """One path: "self", "shm", "cma", "pull" (a peer of this host reads what is written to it), "tcp"."""

    bytes_read: int = 0
    bytes_written: int = 0
    slices: int = 0
    """Moved; a slice is at most 1 MiB of one transfer."""
    retries: int = 0
    """Slices that failed here and went on over another path."""
    failures: dict[str, int] = {}
    """Slices that failed here, by cause."""
    stages: dict[str, Histogram] = {}
    """Seconds per slice: "queue" (submitted, not posted), "wire" (posted to the peer), "copy" (copied by a thread)."""

    def merged(self, other: PathMetrics) -> PathMetrics:
        """The sum of both."""
        stages = dict(self.stages)
        for name, histogram in other.stages.items():
            stages[name] = stages.get(name, Histogram()).merged(histogram)
        return PathMetrics(
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.slices + other.slices,
            self.retries + other.retries,
            _added(self.failures, other.failures),
            stages,
        )


class PeerMetrics(msgspec.Struct, frozen=True):
    """One peer, by its identity. The 64 latest have a record of their own; older ones are one, "other"."""

    instance_id: str
    address: str
    links_opened: int
    paths: dict[str, PathMetrics]


class EngineMetrics(msgspec.Struct, frozen=True):
    """One engine since its start. Everything but the last group only grows."""

    peers: tuple[PeerMetrics, ...]
    connect: Histogram
    """Opening a link, handshake included."""
    connect_failures: dict[str, int]
    transfer: Histogram
    """From submitting a transfer to its outcome, failed ones too; pulls for peers are transfers."""
    transfers: int
    transfer_failures: dict[str, int]
    links_opened: int
    links_lost: int
    connections_refused: int
    pulls_served: int
    paths_failed: int
    """Times that a path between two devices was given up for a while."""
    control_moves: int
    """Times that the control channel of a link went on over other devices."""
    slow_operations: int

    transfers_in_flight: int
    oldest_transfer_seconds: float
    hostages: int
    holds: int
    links: int
    links_lingering: int

    @property
    def paths(self) -> dict[str, PathMetrics]:
        """All peers together."""
        return merge_paths(peer.paths for peer in self.peers)


def merge_paths(each: Iterable[Mapping[str, PathMetrics]]) -> dict[str, PathMetrics]:
    """The sums by path."""
    paths: dict[str, PathMetrics] = {}
    for some in each:
        for name, path in some.items():
            paths[name] = paths.get(name, PathMetrics()).merged(path)
    return paths


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in (*one, *(key for key in other if key not in one))}


def _histogram(raw: tuple[int, float, float, list[tuple[float, int]]]) -> Histogram:
    count, total, longest, buckets = raw
    return Histogram(count, total, longest, tuple(buckets))


def _path(raw: dict[str, Any]) -> PathMetrics:
    return PathMetrics(**{**raw, "stages": {name: _histogram(each) for name, each in raw["stages"].items()}})


def _peer(raw: dict[str, Any]) -> PeerMetrics:
    return PeerMetrics(**{**raw, "paths": {name: _path(each) for name, each in raw["paths"].items()}})


def read_metrics(runtime: _core.Runtime) -> EngineMetrics:
    """What the engine behind `runtime` has measured. Closed."""
    raw = _core.observed(runtime)
    raw["peers"] = tuple(_peer(peer) for peer in raw["peers"])
    raw["connect"] = _histogram(raw["connect"])
    raw["transfer"] = _histogram(raw["transfer"])
    return EngineMetrics(**raw)
