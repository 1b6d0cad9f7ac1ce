"""Two looks at /metrics of a process, and what lies between them: rates, quantiles, what is oldest."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterable, Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from moontide.errors import Invalid

__all__ = ["Look", "PathLook", "Scrape", "StageLook", "Watcher", "compare", "fetch", "quantile", "table"]

_PAGE_BYTES_MAX = 16 << 20
Buckets = dict[float, float]  # end in seconds → how many were not above it


class StageLook(msgspec.Struct, frozen=True):
    """Slices that left a stage between the two looks."""

    path: str
    stage: str
    per_second: float
    p50_us: float
    """Interpolated in a bucket whose end is twice its begin."""
    p99_us: float


class PathLook(msgspec.Struct, frozen=True):
    """What one path carried between the two looks."""

    path: str
    read_bytes_per_second: float
    written_bytes_per_second: float
    failures: float


class Look(msgspec.Struct, frozen=True):
    """One process, all its engines together."""

    address: str
    error: str = ""
    """Why there is nothing else."""
    seconds: float = 0.0
    """Between the two looks."""
    transfers_per_second: float = 0.0
    failures: float = 0.0
    in_flight: float = 0.0
    oldest_seconds: float = 0.0
    hostages: float = 0.0
    links: float = 0.0
    paths: tuple[PathLook, ...] = ()
    stages: tuple[StageLook, ...] = ()
    pool: dict[str, float] = {}
    """Of a master or a node: its own gauges, without their prefix."""


class Scrape:
    """One look: every sample by name and labels."""

    def __init__(self, text: str, at: float) -> None:
        self.at = at
        self.samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self.samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def total(self, name: str, **labels: str) -> float:
        """The sum of the samples that have these labels."""
        return sum(value for has, value in self.samples.get(name, ()) if labels.items() <= has.items())

    def most(self, name: str) -> float:
        return max((value for _, value in self.samples.get(name, ())), default=0.0)

    def values(self, name: str, label: str) -> list[str]:
        """The values of a label, sorted."""
        return sorted({has[label] for has, _ in self.samples.get(name, ()) if label in has})

    def buckets(self, name: str, **labels: str) -> Buckets:
        found: Buckets = {}
        for has, value in self.samples.get(name + "_bucket", ()):
            if labels.items() <= has.items():
                end = float(has["le"])
                found[end] = found.get(end, 0.0) + value
        return found


def fetch(address: str, timeout: float = 5) -> Scrape:
    """The page of http://ADDRESS/metrics. OSError; ValueError: it is not such a page."""
    url = address if "://" in address else f"http://{address}"
    if not url.startswith(("http://", "https://")):
        raise Invalid(f"{address!r}: write HOST:PORT or an http URL")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url.rstrip("/") + "/metrics", timeout=timeout) as answer:
        body = answer.read(_PAGE_BYTES_MAX + 1)
    if len(body) > _PAGE_BYTES_MAX:
        raise ValueError(f"a page of more than {_PAGE_BYTES_MAX} bytes")
    return Scrape(body.decode(), time.monotonic())


def quantile(buckets: Buckets, q: float) -> float:
    """Seconds, linear within a bucket; where the last bucket has no end, its begin. 0 of nothing."""
    total = max(buckets.values(), default=0.0)
    rank = q * total
    begin = below = 0.0
    for end, count in sorted(buckets.items()):
        if count >= rank and count > below:
            if end == float("inf"):
                return begin
            return begin + (end - begin) * (rank - below) / (count - below)
        begin, below = end, count
    return 0.0


def compare(address: str, before: Scrape | None, now: Scrape) -> Look:
    """Without `before`, or when the process was restarted in between: since its start, as if that took a second."""
    if before is not None and before.total("moontide_transfers_total") > now.total("moontide_transfers_total"):
        before = None
    seconds = now.at - before.at if before else 1.0

    def grown(name: str, **labels: str) -> float:
        return now.total(name, **labels) - (before.total(name, **labels) if before else 0.0)

    paths = tuple(
        PathLook(
            path,
            grown("moontide_moved_bytes_total", path=path, op="read") / seconds,
            grown("moontide_moved_bytes_total", path=path, op="write") / seconds,
            grown("moontide_slice_failures_total", path=path),
        )
        for path in now.values("moontide_moved_bytes_total", "path")
    )
    stages = []
    name = "moontide_slice_seconds"
    for path in now.values(name + "_count", "path"):
        for stage in now.values(name + "_count", "stage"):
            then = before.buckets(name, path=path, stage=stage) if before else {}
            buckets = {
                end: count - then.get(end, 0.0) for end, count in now.buckets(name, path=path, stage=stage).items()
            }
            if max(buckets.values(), default=0.0) > 0:
                rate = grown(name + "_count", path=path, stage=stage) / seconds
                stages.append(StageLook(path, stage, rate, quantile(buckets, 0.5) * 1e6, quantile(buckets, 0.99) * 1e6))
    pool = {
        sample.removeprefix(prefix): now.total(sample)
        for prefix in ("moontide_pool_", "moontide_node_")
        for sample in now.samples
        if sample.startswith(prefix) and not sample.endswith(("_total", "_created"))
    }
    return Look(
        address=address,
        seconds=seconds,
        transfers_per_second=grown("moontide_transfers_total") / seconds,
        failures=grown("moontide_transfer_failures_total"),
        in_flight=now.total("moontide_transfers_in_flight"),
        oldest_seconds=now.most("moontide_oldest_transfer_seconds"),
        hostages=now.total("moontide_hostages"),
        links=now.total("moontide_links"),
        paths=paths,
        stages=tuple(stages),
        pool=pool,
    )


class Watcher:
    """Looks again and again at the same addresses."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._before: dict[str, Scrape | None] = dict.fromkeys(addresses)

    def look(self) -> list[Look]:
        """One per address, in their order; an address that does not answer has its `error`."""
        looks = []
        for address, before in self._before.items():
            try:
                now = fetch(address)
                looks.append(compare(address, before, now))
                self._before[address] = now
            except (OSError, ValueError) as error:
                reason = getattr(error, "reason", error)
                looks.append(Look(address, error=f"{type(error).__name__}: {reason}"))
        return looks


def table(looks: Iterable[Look]) -> str:
    """For a terminal."""
    lines = []
    for look in looks:
        if look.error:
            lines += [f"{look.address}  {look.error}", ""]
            continue
        lines.append(
            f"{look.address}  {look.transfers_per_second:.1f} transfers/s, {look.failures:.0f} failed, "
            f"{look.in_flight:.0f} in flight, oldest {look.oldest_seconds:.2f} s, {look.hostages:.0f} hostages, "
            f"{look.links:.0f} links"
        )
        if look.pool:
            lines.append("  " + "  ".join(f"{name} {value:.0f}" for name, value in look.pool.items()))
        if look.paths:
            lines.append(f"  {'path':<6} {'read MB/s':>10} {'write MB/s':>10} {'failed':>7}")
        lines += [
            f"  {path.path:<6} {path.read_bytes_per_second / 1e6:>10.1f} {path.written_bytes_per_second / 1e6:>10.1f} "
            f"{path.failures:>7.0f}"
            for path in look.paths
        ]
        if look.stages:
            lines.append(f"  {'path':<6} {'stage':<6} {'slices/s':>10} {'p50 us':>10} {'p99 us':>10}")
        lines += [
            f"  {stage.path:<6} {stage.stage:<6} {stage.per_second:>10.1f} {stage.p50_us:>10.1f} {stage.p99_us:>10.1f}"
            for stage in look.stages
        ]
        lines.append("")
    return "\n".join(lines)
