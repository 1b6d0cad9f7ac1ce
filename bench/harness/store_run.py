"""The run of `compare.py store`: its contestants, their turns, and the rows that come of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.cases import WAITS
from harness.environments import MOONCAKE, MOONCAKE_SETTINGS, ensure, project_python
from harness.schedule import TURN_LIMIT_S, Schedule, Tried
from harness.store_cases import Stage, data_stages, growth_stages, metadata_stages, view_stages
from harness.store_rows import StoreResults, cpu_rows, data_rows, growth_rows, metadata_rows, view_rows
from harness.store_turns import StoreContestant, StoreTurn, run_store_turn

NAMES = ("moontide", "mooncake")
_GROWN_LIMIT_S = 1800.0  # of a turn that fills a pool with millions of objects


def store_contestants(only: set[str]) -> list[StoreContestant]:
    out = []
    if "moontide" in only:
        python, script = project_python(), "moontide_store.py"
        out += [StoreContestant("moontide", script, python, "memory", wait, "metadata") for wait in WAITS]
        out += [StoreContestant("moontide", script, python, medium, "poll", "data") for medium in ("memory", "tcp")]
        out.append(StoreContestant("moontide", script, python, "memory", "poll", "views"))
        out.append(StoreContestant("moontide", script, python, "memory", "sleep", "growth"))
    if "mooncake" in only:
        # Its servers have one setting; what differs between the waits is whether the client lets them fall asleep.
        python, script = ensure(MOONCAKE), "mooncake_store.py"
        for wait, part in (*((wait, "metadata") for wait in WAITS), ("poll", "data"), ("sleep", "growth")):
            out.append(StoreContestant("mooncake", script, python, "tcp", wait, part, MOONCAKE_SETTINGS))
    return out


class StoreRun:
    """The schedule, and what came of it."""

    def __init__(self, quick: bool, rounds: int, only: set[str], most: int | None) -> None:
        self.quick, self.schedule = quick, Schedule(rounds)
        self.stages: dict[str, list[Stage]] = {
            "metadata": metadata_stages(quick),
            "data": data_stages(quick),
            "views": view_stages(quick),
            "growth": growth_stages(quick, most),
        }
        self.contestants = store_contestants(only)
        self.results = StoreResults()

    def _stages(self, c: StoreContestant) -> list[Stage]:
        stages = self.stages[c.part]
        if c.part == "growth" and c.name != "moontide":
            return [Stage(stages[0].keys, ())]  # of the peer only what an object costs
        return stages

    def _turn(self, c: StoreContestant) -> None:
        limit_s = _GROWN_LIMIT_S if c.part == "growth" else TURN_LIMIT_S

        def attempt() -> Tried[StoreTurn]:
            turn = run_store_turn(c, self._stages(c), limit_s)
            return Tried(turn, turn.foreign, turn.error)

        # A turn that broke off keeps the cases it finished.
        turn = self.schedule.undisturbed(c.label, attempt)
        self.results.turns.setdefault((c.name, c.part, c.medium, c.wait), []).append(turn)

    def run(self) -> None:
        steps: list[Callable[[], None]] = [lambda c=c: self._turn(c) for c in self.contestants]  # type: ignore[misc]
        self.schedule.run(steps)

    def rows(self) -> list[dict[str, Any]]:
        metadata = self.stages["metadata"][0]
        rows = metadata_rows(self.results, metadata) + cpu_rows(self.results, metadata)
        rows += growth_rows(self.results, self.stages["growth"])
        rows += data_rows(self.results, self.stages["data"][0].cases)
        return rows + view_rows(self.results, self.stages["views"][0].cases)

    def document(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        versions: dict[str, str] = {}
        for turns in self.results.turns.values():
            for turn in turns:
                versions.update(turn.versions)
        settings = {c.label: c.settings for c in self.contestants if c.settings}
        return {**self.schedule.document(rows, self.quick), "versions": versions, "settings": settings}
