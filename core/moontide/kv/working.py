"""The worker half of a connector: owns the engine, runs loads on a crew, saves after the forward pass, reports once."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from moontide.errors import MoontideError, Unavailable
from moontide.kv.crew import Crew
from moontide.kv.handover import Holder, LoadOutcome, PeerLoader
from moontide.kv.keys import KeySpace
from moontide.kv.layout import Layout
from moontide.kv.logs import LimitedLog
from moontide.kv.messages import PoolLoad, StepPlan, WorkerReport
from moontide.kv.pool import PoolDoor, PoolLoader, Saver
from moontide.kv.ports import EnginePort, StorePort
from moontide.kv.settings import KvSettings
from moontide.kv.stats import Stats

__all__ = ["Finished", "WorkerHalf"]

logger = logging.getLogger("moontide.kv")


@dataclass
class Finished:
    """What ended since the last poll; a request is named once for each hold or load that it had."""

    sent: set[str] = field(default_factory=set)
    received: set[str] = field(default_factory=set)
    failed_blocks: set[int] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)


class WorkerHalf:
    """Called from the worker's one thread. The memory that ``layout`` and ``bases`` describe is registered with
    ``engine`` by the caller and outlives this object."""

    def __init__(
        self,
        engine: EnginePort,
        layout: Layout,
        bases: Mapping[str, int],
        space: KeySpace,
        settings: KvSettings,
        stats: Stats,
        *,
        connect: Callable[[], StorePort] | None = None,
        embedded: bool = False,
    ) -> None:
        self._engine = engine
        self._stats = stats
        self._embedded = embedded
        self._crew = Crew("moontide-load", settings.load_threads, settings.max_loads)
        self._outcomes: queue.SimpleQueue[LoadOutcome] = queue.SimpleQueue()
        self._report = WorkerReport()
        self._log = LimitedLog(logger)
        self._holder = Holder(engine, layout, settings, stats)
        self._peers = PeerLoader(engine, layout, bases, settings, stats)
        self._door: PoolDoor | None = None
        if connect is not None:
            self._door = PoolDoor(connect, Crew("moontide-pool", 1, 4))
            self._loader = PoolLoader(self._door, space, layout, bases, settings, stats, path_bytes=engine.stats)
            self._saver = Saver(self._door, space, layout, bases, settings, stats, embedded=embedded)
            self._door.store()

    def before_forward(self, plan: StepPlan) -> None:
        """Before anything of this step touches the blocks: waits for saves that read them, then makes the holds."""
        if self._door is not None and plan.written:
            self._saver.fence(plan.written)
        for job in plan.holds:
            self._holder.begin(job)

    def start_loads(self, plan: StepPlan) -> None:
        """Starts this step's loads; their blocks belong to us until `poll` names the request."""
        for peer_job in plan.peer_loads:
            self._start(peer_job.request_id, "peer", peer_job.blocks, partial(self._peers.load, peer_job))
        for pool_job in plan.pool_loads:
            self._start(pool_job.request_id, "pool", pool_job.blocks, partial(self._load_from_pool, pool_job))
        for call in (
            *(partial(self._peers.claim, claim) for claim in plan.claims),
            *(partial(self._peers.release, release) for release in plan.releases),
        ):
            # Best effort, both: an unclaimed hold may expire, an unreleased one will.
            try:
                self._crew.submit(call)
            except MoontideError:
                self._stats.count("releases", "busy")

    def after_forward(self, plan: StepPlan) -> None:
        """The forward pass has written this step's blocks."""
        if self._door is None:
            return
        for job in plan.saves:
            self._saver.save(job)
        self._saver.poll()

    def poll(self) -> Finished:
        """Never waits."""
        finished = Finished(sent=self._holder.poll())
        while True:
            try:
                outcome = self._outcomes.get_nowait()
            except queue.Empty:
                return finished
            self._take_in(outcome, finished)

    def report(self) -> WorkerReport | None:
        """News for the scheduler half since the last call. Call it after `poll`, in the same step."""
        if self._embedded and self._door is not None:
            self._report.saved += self._saver.drain_saved()
        if not self._report:
            return None
        report, self._report = self._report, WorkerReport()
        return report

    @property
    def held(self) -> int:
        return self._holder.held

    def close(self) -> None:
        """Waits for saves, a bounded time; closes links and pool, not the engine."""
        self._crew.close()
        if self._door is not None:
            self._saver.close()
            self._door.close()
        self._peers.close()

    def _load_from_pool(self, job: PoolLoad) -> LoadOutcome:
        return self._loader.load(job)

    def _start(self, request_id: str, source: str, blocks: list[int], load: Callable[[], LoadOutcome]) -> None:
        try:
            if source == "pool" and self._door is None:
                raise Unavailable("there is no pool")
            self._crew.submit(lambda: self._outcomes.put(load()))
        except MoontideError as error:
            outcome = LoadOutcome(request_id=request_id, source=source, failed_blocks=tuple(blocks))
            outcome.cause, outcome.detail, outcome.num_blocks = error.code, error.message, len(blocks)
            self._outcomes.put(outcome)

    def _take_in(self, outcome: LoadOutcome, finished: Finished) -> None:
        finished.received.add(outcome.request_id)
        result = outcome.cause or "ok"
        self._stats.count("loads", outcome.source, result)
        arrived = outcome.num_blocks - len(outcome.failed_blocks)
        if arrived:
            self._stats.count("blocks", "load", outcome.source, by=arrived)
            self._stats.count("bytes", "load", outcome.source, outcome.path, by=outcome.num_bytes)
            self._stats.observe("load", outcome.source, seconds=outcome.seconds)
        if outcome.cause:
            self._log.warning(
                f"load {outcome.source} {outcome.cause}",
                "load of %s from the %s failed after %.3f s: %s: %s",
                *(outcome.request_id, outcome.source, outcome.seconds, outcome.cause, outcome.detail),
            )
            finished.failed_blocks.update(outcome.failed_blocks)
            finished.failed[outcome.request_id] = outcome.cause
            self._report.failed[outcome.request_id] = outcome.cause
        self._report.missing += outcome.missing
