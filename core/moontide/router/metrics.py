"""The router's own metrics, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from moontide.router.backends import Group

__all__ = ["Metrics"]

_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120]


class Metrics:
    """Series moontide_router_*."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "moontide_router_requests",
            "Requests answered, by the way they took and why.",
            ["path", "reason", "status"],
            registry=self.registry,
        )
        self.disconnects = Counter(
            "moontide_router_disconnects", "Clients that left before their answer was complete.", registry=self.registry
        )
        self.broken = Counter(
            "moontide_router_broken_answers", "Answers that a decode server did not finish.", registry=self.registry
        )
        self.stripped = Counter(
            "moontide_router_stripped_params",
            "Requests whose own kv_transfer_params were removed.",
            registry=self.registry,
        )
        self.prefill_seconds = Histogram(
            "moontide_router_prefill_seconds", "Time of the prefill leg.", buckets=_BUCKETS, registry=self.registry
        )
        self.first_byte_seconds = Histogram(
            "moontide_router_first_byte_seconds",
            "Time until the decode server began to answer.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._outstanding = Gauge(
            "moontide_router_outstanding", "Requests under way.", ["role", "server"], registry=self.registry
        )
        self._available = Gauge(
            "moontide_router_available", "1 unless on probation.", ["role", "server"], registry=self.registry
        )
        self._failures = Gauge(
            "moontide_router_failures", "Failures since the start.", ["role", "server"], registry=self.registry
        )

    def page(self, **groups: Group) -> bytes:
        """The text of /metrics."""
        for role, group in groups.items():
            for backend in group.backends:
                self._outstanding.labels(role, backend.url).set(backend.outstanding)
                self._available.labels(role, backend.url).set(backend.available)
                self._failures.labels(role, backend.url).set(backend.failures)
        return generate_latest(self.registry)
