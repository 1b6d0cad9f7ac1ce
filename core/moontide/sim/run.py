"""One simulated run: a pool, its clients' work, faults, and everything that is checked about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from moontide._core import SimCluster
from moontide.sim.calls import Call
from moontide.sim.faults import MICROSECOND, MILLISECOND, SECOND, Faults
from moontide.sim.linear import check_history

VALUE_BYTES_MIN = 8
VALUE_BYTES_MAX = 60 << 10
NODES = 3
CLIENTS = 3
# Virtual time within which everything has to work again once the faults are over.
RECOVERY_NS = 120 * SECOND
PROOF_OF_LIFE_NS = 60 * SECOND
# Longer than an unfinished put is kept.
REST_NS = 90 * SECOND


@dataclass
class Report:
    """What came out of one seed. `trace` is equal for equal runs."""

    seed: int
    calm: bool
    paths: str
    trace: int = 0
    events: int = 0
    virtual_ns: int = 0
    calls: list[Call] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def replay(self) -> str:
        return f"python -m moontide.sim --seed {self.seed}"


class Run:
    """Drives one cluster. Everything is decided by the seed."""

    def __init__(self, seed: int, operations: int = 300) -> None:
        self._random = Random(seed)
        self._operations = operations
        # Every fourth run is calm, so that a miss means something.
        self.report = Report(seed, calm=seed % 4 == 0, paths=self._random.choice(["sim", "sim", "tcp", "both"]))
        # A calm pool has room for everything. The others: two keys that everybody wants, or more than fits.
        self._small_pool = not self.report.calm and self._random.random() < 0.4
        room = self._random.choice([64, 128, 256]) << 10 if self._small_pool else 4 << 20
        # Half of the runs have a hot cache; of these half one that is too small for what is wanted.
        hot = (0, 0, 40 << 10, 2 << 20)[seed // 2 % 4]
        self._cluster = SimCluster(seed, self.report.paths, NODES, CLIENTS, room, hot)
        self._faults = Faults(self._cluster, self._random)
        self._keys = [f"key{i}" for i in range(self._random.choice([12, 30] if self._small_pool else [2, 5, 9]))]
        most = self._random.choice([12_000, 24_000] if self._small_pool else [3000, VALUE_BYTES_MAX])
        # Few lengths, so that a place is often used again for what looks the same.
        self._lengths = [self._random.randrange(VALUE_BYTES_MIN, limit) for limit in (64, most, most, most)]
        self._open: dict[int, Call] = {}
        self._values = 0

    def execute(self) -> Report:
        report = self.report
        self._cluster.read_faults(*((12, 0, 0) if report.calm else self._random.choice([(12, 150, 60), (4, 15, 30)])))
        self._cluster.delays(20 * MICROSECOND, self._random.choice([400, 400, 8000]) * MICROSECOND)
        if not self._wait(self._cluster.assembled, RECOVERY_NS):
            report.violations.append("the pool never came together")
        self._work()
        self._recover()
        for call in report.calls:
            call.lease_in_doubt = self._faults.lease_in_doubt(call.client, call.invoked_ns, call.returned_ns)
        report.violations += check_history(report.calls, report.calm)
        report.trace = self._cluster.trace
        report.events = self._cluster.events
        report.virtual_ns = self._cluster.time_ns
        report.faults = self._faults.log
        report.counters = self._cluster.counters()
        return report

    # --- work ---

    def _work(self) -> None:
        started = 0
        turns = 0
        while started < self._operations and not self.report.violations:
            self._pass(self._pause_ns())
            self._faults.put_right()
            if not self.report.calm and self._random.random() < 0.08:
                self._faults.strike()
            if self._random.random() < 0.01:
                self._cluster.drain(0, self._random.random() < 0.7)
            for _ in range(self._random.choice([1, 1, 2, 4])):
                started += self._start_random()
            turns += 1
            if turns % 8 == 0:
                self._audit()

    def _pause_ns(self) -> int:
        roll = self._random.random()
        if roll < 0.03:
            return self._random.randrange(8 * SECOND)
        if roll < 0.4:
            return self._random.randrange(30 * MILLISECOND)
        return self._random.randrange(MILLISECOND)

    def _start_random(self) -> bool:
        puts, removes = (10, 1) if self._small_pool else (6, 4)
        kinds = (
            ["put"] * puts
            + ["put_async"] * 2
            + ["upsert"] * 3
            + ["get"] * 10
            + ["exists"] * 2
            + ["remove"] * removes
            + ["list"]
        )
        kind = self._random.choice(kinds)
        if self.report.calm and kind == "put_async":
            kind = "put"  # until it is committed only its own client sees it
        key = "key" if kind == "list" else self._random.choice(self._keys)
        return self._start(self._random.randrange(CLIENTS), kind, key) is not None

    def _start(self, client: int, kind: str, key: str) -> Call | None:
        number = len(self.report.calls) + 1
        call = Call(number, client, kind, key, invoked_ns=self._cluster.time_ns, process=self._process(client))
        if call.is_put:
            self._values += 1
            call.value = self._values
            # A large value may find no extent that is long enough in a pool full of small ones: no proof of life.
            call.length = 1000 if key.startswith("alive") else self._random.choice(self._lengths)
            call.replicas = self._random.choice([1, 1, 2, 3])
        elif kind == "get" and number % 3 == 0:
            call.first = VALUE_BYTES_MIN + number * 7919 % self._lengths[-1]
        in_memory = self._random.random() < 0.7
        length = call.length or call.first
        started = self._cluster.start(client, number, kind, key, call.value, length, in_memory, call.replicas)
        if not started:
            return None
        self.report.calls.append(call)
        self._open[number] = call
        return call

    # --- time ---

    def _pass(self, span_ns: int) -> None:
        self._cluster.run_for(span_ns)
        for number, code, value, length, listed, at_ns in self._cluster.take_outcomes():
            call = self._open.pop(number)
            call.code = code
            call.returned_ns = at_ns
            call.listed = listed
            if call.kind == "get" and call.ok:
                call.value, call.length = value, length

    def _wait(self, ready: object, within_ns: int) -> bool:
        assert callable(ready)
        until_ns = self._cluster.time_ns + within_ns
        while not ready():
            if self._cluster.time_ns >= until_ns:
                return False
            self._pass(20 * MILLISECOND)
        return True

    def _audit(self) -> None:
        if wrong := self._cluster.audit():
            self.report.violations.append(f"[{self._cluster.time_ns / 1e6:.3f}] {wrong}")

    # --- afterwards ---

    def _recover(self) -> None:
        """Faults are over: everything works again, nothing is left over."""
        report = self.report
        self._faults.end_all()
        self._cluster.read_faults(12, 0, 0)
        if report.violations:
            return
        self._cluster.drain(0, False)
        if not self._wait(self._cluster.assembled, RECOVERY_NS):
            report.violations.append(
                f"not together {RECOVERY_NS / 1e9:.0f} s after the last fault: {self._cluster.audit_at_rest()}"
            )
            return
        if not self._wait(lambda: not self._asked_of_the_living(), RECOVERY_NS):
            report.violations += [f"waits for ever: {call.text()}" for call in self._asked_of_the_living()]
            return
        for client in range(CLIENTS):
            self._prove_life(client)
        self._pass(REST_NS)
        if wrong := self._cluster.audit_at_rest():
            report.violations.append(f"at rest: {wrong}")

    def _asked_of_the_living(self) -> list[Call]:
        return [call for call in self._open.values() if call.process == self._process(call.client)]

    def _process(self, client: int) -> int:
        return self._faults.restarts.get(f"client{client}", 0)

    def _prove_life(self, client: int) -> None:
        """A put and then a get succeed, if not at once (the master may not know yet which nodes died) then soon."""
        until_ns = self._cluster.time_ns + PROOF_OF_LIFE_NS
        asked: list[Call] = []
        while self._cluster.time_ns < until_ns:
            key = f"alive{client}.{len(asked)}"
            if self._finish(asked, client, "put", key) and self._finish(asked, client, "get", key):
                return
        self.report.violations += [f"no life after the faults: {call.text()}" for call in asked]

    def _finish(self, asked: list[Call], client: int, kind: str, key: str) -> bool:
        call = self._start(client, kind, key)
        assert call is not None, f"client{client} is dead after recovery"
        asked.append(call)
        self._wait(lambda: call.code != "", PROOF_OF_LIFE_NS)
        return call.ok


def run_seed(seed: int) -> Report:
    """One whole run, checked."""
    return Run(seed).execute()


__all__ = ["Report", "Run", "run_seed"]
