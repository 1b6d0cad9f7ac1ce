"""An inference engine reduced to its block tables, around the real halves of moontide.kv and the fakes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from fakes.kv import Fabric, FakeEngine, FakeStore
from moontide.config import Config
from moontide.kv.crew import Crew
from moontide.kv.identity import ModelIdentity
from moontide.kv.keys import KeySpace
from moontide.kv.layout import Layout, Rank, layer_from_strides
from moontide.kv.messages import StepPlan
from moontide.kv.pool import KeyIndex, Lookup, PoolDoor
from moontide.kv.scheduling import RequestView, ScheduledRequest, SchedulerHalf
from moontide.kv.settings import KvSettings
from moontide.kv.stats import Stats
from moontide.kv.working import Finished, WorkerHalf

SIZE = 4
BLOCKS = 32
LAYERS = ["layer.0", "layer.1"]
IDENTITY = ModelIdentity(weights="w", settings="s", dtype="float32", cache_dtype="auto")
_PAUSE = threading.Event()
QUICK = {"claim_timeout": 0.1, "fence_timeout": 0.2, "lookup_timeout": 0.2, "open_timeout": 0.2}


def until(condition: Callable[[], Any], seconds: float = 5.0) -> Any:
    """The condition's value once it is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not become true"
        _PAUSE.wait(0.001)
    return value


class Node:
    """An inference engine reduced to its block tables: one scheduler half, one worker half, one cache."""

    def __init__(
        self,
        fabric: Fabric,
        name: str,
        store: FakeStore | None = None,
        *,
        embedded: bool = False,
        layout: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.cache = np.zeros((len(LAYERS), BLOCKS, SIZE, 3), dtype=np.int32)
        self.engine = FakeEngine(fabric, name)
        start = self.cache.__array_interface__["data"][0]
        self.engine.register((start, self.cache.nbytes), name="kv0")
        self.layout = self._layout(layout or {})
        self.space = KeySpace((IDENTITY.as_tuple(), self.layout.shape()), SIZE)
        self.settings = KvSettings.resolve({**QUICK, **(settings or {})}, Config())
        self.stats = Stats()
        self.store = store
        self.worker = WorkerHalf(
            self.engine,
            self.layout,
            {"kv0": start},
            self.space,
            self.settings,
            self.stats,
            connect=(lambda: store) if store is not None else None,
            embedded=embedded,
        )
        finder: Any = None
        if embedded:
            finder = KeyIndex(1)
        elif store is not None:
            self.door = PoolDoor(lambda: store, Crew("door", 1, 1))
            until(self.door.store)
            finder = Lookup(self.door, self.space, self.settings, self.stats)
        if self.worker._door is not None:
            until(self.worker._door.store)
        held = int(self.settings.max_held_share * BLOCKS)
        self.scheduler = SchedulerHalf(self.space, self.stats, finder=finder, max_held_blocks=held)
        self.scheduler.addresses = (self.engine.address,)

    def _layout(self, changes: dict[str, Any]) -> Layout:
        layers = tuple(
            layer_from_strides(
                name,
                region="kv0",
                offset=index * self.cache.strides[0],
                num_blocks=BLOCKS,
                shape=self.cache.shape[1:],
                stride=[step // 4 for step in self.cache.strides[1:]],
                item_bytes=4,
            )
            for index, name in enumerate(LAYERS)
        )
        fields: dict[str, Any] = {
            "model": IDENTITY,
            "physical": "test",
            "block_tokens": SIZE,
            "kv_heads": 1,
            "rank": Rank(),
            "layers": layers,
        }
        return Layout(**{**fields, **changes})

    def compute(self, prompt: list[int], table: list[int], first: int, last: int) -> None:
        """The forward pass: a position's content follows from all tokens up to it."""
        for position in range(first, last):
            value = hash(tuple(prompt[: position + 1])) % 1_000_000
            for layer in range(len(LAYERS)):
                self.cache[layer, table[position // SIZE], position % SIZE] = value + layer

    def content(self, table: list[int], tokens: int) -> list[list[int]]:
        return [
            self.cache[layer, table[at // SIZE], at % SIZE].tolist()
            for layer in range(len(LAYERS))
            for at in range(tokens)
        ]

    def step(self, *scheduled: ScheduledRequest, forward: Callable[[], None] = lambda: None) -> Finished:
        """One step of the engine; the plan travels as bytes, as it does between processes."""
        plan = self.scheduler.build(scheduled)
        plan = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan)
        self.worker.before_forward(plan)
        forward()
        self.worker.start_loads(plan)
        self.worker.after_forward(plan)
        finished = self.worker.poll()
        self.scheduler.sent(finished.sent)
        report = self.worker.report()
        if report is not None:
            self.scheduler.reported(report)
        return finished

    def prefill(
        self, request_id: str, prompt: list[int], table: list[int], *, chunk: int = 100, params: Any = None
    ) -> int:
        """Runs the prompt through; returns how many tokens were loaded instead of computed."""
        self.scheduler.arrived(RequestView(request_id, prompt, params=params))
        loaded = self.scheduler.match(request_id, 0)
        self.scheduler.allocated(request_id, table, loaded)
        if loaded:
            finished = self.load(request_id)
            assert not finished.failed
        at = loaded
        while at < len(prompt):
            count = min(chunk, len(prompt) - at)
            part = ScheduledRequest(request_id, at, count, lambda: table, table[at // SIZE : -(-(at + count) // SIZE)])
            self.step(part, forward=lambda at=at, count=count: self.compute(prompt, table, at, at + count))
            at += count
        return loaded

    def load(self, request_id: str) -> Finished:
        """Steps until the load is over."""
        total = Finished()

        def over() -> bool:
            finished = self.step()
            assert not finished.received & total.received, "reported twice"
            total.received |= finished.received
            total.failed_blocks |= finished.failed_blocks
            total.failed |= finished.failed
            return request_id in total.received

        until(over)
        return total

    def finish(self, request_id: str, prompt: list[int], table: list[int], *, complete: bool = True) -> Any:
        return self.scheduler.finished(request_id, complete=complete, table=table, computed=len(prompt))

    def counts(self) -> dict[str, int]:
        counts: dict[str, int] = self.stats.drain().get("counts", {})
        return counts


PROMPT = list(range(100, 114))  # three full blocks and half of one
TABLE = [9, 3, 4, 20]
