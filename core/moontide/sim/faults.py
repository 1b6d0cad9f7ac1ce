"""What goes wrong in a run, and when it is put right again."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from moontide._core import SimCluster

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
# Longer than a lease and the time that a starting master waits for it.
LEASE_NS = 3 * SECOND
# A master gives no node up that was out of its sight for less.
GIVEN_UP_NS = 5 * SECOND
# Within so long after that it has joined again.
BACK_NS = 10 * SECOND


class Faults:
    """Starts faults at random and ends each after a while. At most a few at a time."""

    AT_A_TIME = 3

    def __init__(self, cluster: SimCluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._ends: list[tuple[int, int, str, Callable[[], None]]] = []
        self._count = 0
        self._busy: set[str] = set()
        self._wrong_clocks: list[tuple[str, int, int]] = []  # host, from, until
        self._unseen: list[tuple[int, int]] = []  # a host stood still or was cut off: from, until
        self.restarts: dict[str, int] = {}
        self.log: list[str] = []

    def put_right(self) -> None:
        """Ends the faults whose time has come."""
        while self._ends and self._ends[0][0] <= self._cluster.time_ns:
            self._end(heapq.heappop(self._ends))

    def end_all(self) -> None:
        while self._ends:
            self._end(heapq.heappop(self._ends))
        self._cluster.heal_all()

    def strike(self) -> None:
        """One more fault, of a random kind on a random host."""
        if len(self._ends) >= self.AT_A_TIME:
            return
        host = self._random.choice(self._cluster.hosts)
        if host in self._busy:
            return
        kinds = [self._crash, self._pause, self._pause, self._cut, self._cut, self._drift, self._step]
        self._random.choice(kinds)(host)

    def lease_in_doubt(self, client: int, from_ns: int, until_ns: int) -> bool:
        """Whether the client's clock was too slow, or the master's too fast, for a lease used in that time."""
        return any(
            host in ("master", f"client{client}") and begun_ns <= until_ns and from_ns <= ended_ns + LEASE_NS
            for host, begun_ns, ended_ns in self._wrong_clocks
        )

    def _span_ns(self, least_ns: int, most_ns: int) -> int:
        """Short ones are as likely as long ones, on a logarithmic scale."""
        return int(least_ns * (most_ns / least_ns) ** self._random.random())

    def _begin(self, host: str, what: str, span_ns: int, end: Callable[[], None]) -> None:
        self._busy.add(host)
        self._count += 1
        self.log.append(f"[{self._cluster.time_ns / 1e6:.3f}] {what} for {span_ns / 1e6:.3f} ms")
        heapq.heappush(self._ends, (self._cluster.time_ns + span_ns, self._count, host, end))

    def _end(self, fault: tuple[int, int, str, Callable[[], None]]) -> None:
        _, _, host, end = fault
        self._busy.discard(host)
        end()

    def _somebody_given_up(self) -> bool:
        """Perhaps a node that lives: a master that starts anew would take its word for what was removed without it.

        The case that docs/design/pool.md names as not covered.
        """
        now_ns = self._cluster.time_ns
        return any(
            min(now_ns, until_ns) - since_ns > GIVEN_UP_NS and now_ns < until_ns + BACK_NS
            for since_ns, until_ns in self._unseen
        )

    def _crash(self, host: str) -> None:
        if host == "master" and self._somebody_given_up():
            return
        dark = self._random.random() < 0.3
        self._cluster.crash(host, dark)
        what = f"{host} {'goes dark' if dark else 'crashes'}"

        def restart() -> None:
            self._cluster.restart(host)
            self.restarts[host] = self.restarts.get(host, 0) + 1

        self._begin(host, what, self._span_ns(MILLISECOND, 15 * SECOND), restart)

    def _pause(self, host: str) -> None:
        self._cluster.pause(host)
        span_ns = self._span_ns(MILLISECOND, 30 * SECOND)
        self._unseen.append((self._cluster.time_ns, self._cluster.time_ns + span_ns))
        self._begin(host, f"{host} stops", span_ns, lambda: self._cluster.resume(host))

    def _cut(self, host: str) -> None:
        other = self._random.choice([name for name in self._cluster.hosts if name != host])
        ways = self._random.choice([[(host, other)], [(other, host)], [(host, other), (other, host)]])
        for source, target in ways:
            self._cluster.cut(source, target)

        def heal() -> None:
            for source, target in ways:
                self._cluster.heal(source, target)

        what = "no way from " + " and ".join(f"{source} to {target}" for source, target in ways)
        span_ns = self._span_ns(MILLISECOND, 30 * SECOND)
        self._unseen.append((self._cluster.time_ns, self._cluster.time_ns + span_ns))
        self._begin(host, what, span_ns, heal)

    def _drift(self, host: str) -> None:
        ppm = self._random.choice([-1_000_000, -300_000, -20_000, 20_000, 500_000])
        self._cluster.drift(host, ppm)

        begun_ns = self._cluster.time_ns

        def restore() -> None:
            self._cluster.drift(host, 0)
            if (host == "master") == (ppm > 0):
                self._wrong_clocks.append((host, begun_ns, self._cluster.time_ns))

        self._begin(
            host, f"the clock of {host} drifts by {ppm} ppm", self._span_ns(50 * MILLISECOND, 10 * SECOND), restore
        )

    def _step(self, host: str) -> None:
        step_ns = self._span_ns(MILLISECOND, 40 * SECOND)
        self._cluster.step_clock(host, step_ns)
        if host == "master":
            self._wrong_clocks.append((host, self._cluster.time_ns, self._cluster.time_ns))
        self.log.append(f"[{self._cluster.time_ns / 1e6:.3f}] the clock of {host} steps by {step_ns / 1e6:.3f} ms")


__all__ = ["MICROSECOND", "MILLISECOND", "SECOND", "Faults"]
