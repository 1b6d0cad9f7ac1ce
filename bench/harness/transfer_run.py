"""The run of `compare.py transfer`: its contestants, their turns, and the rows that come of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.cases import (
    LEAVE_MEDIA,
    MEDIA,
    WAITS,
    Case,
    leave_cases,
    submission_case,
    threaded_cases,
    transfer_cases,
)
from harness.environments import (
    MOONCAKE,
    MOONCAKE_SETTINGS,
    NIXL,
    NIXL_SETTINGS,
    compile_limits,
    ensure,
    project_python,
)
from harness.innocent import MEDIA as INNOCENT_MEDIA
from harness.innocent import InnocentTurn, innocent_rows, innocent_turn
from harness.limits import LimitRuns, LimitTurn, loops_seen
from harness.rows import Results, best_path_rows, submission_rows, transfer_rows
from harness.schedule import TURN_LIMIT_S, Schedule, Tried
from harness.turns import Contestant, Memories, Turn, run_turn
from harness.watch import ForeignCpu

NAMES = ("moontide", "mooncake", "nixl", "limits")
_INNOCENT_S = 0.5  # of writes, beside each misbehaviour


def contestants(only: set[str]) -> list[Contestant]:
    out = []
    if "moontide" in only:
        python = project_python()
        out += [Contestant("moontide", "moontide_transfer.py", python, m, w) for m in MEDIA for w in WAITS]
    if "mooncake" in only:
        # Its target is driven by a thread of its own that sleeps; there is no other wait.
        out.append(Contestant("mooncake", "mooncake_transfer.py", ensure(MOONCAKE), "tcp", "poll", MOONCAKE_SETTINGS))
    if "nixl" in only:
        python = ensure(NIXL)
        for medium, tls in (("memory", {}), ("tcp", {"UCX_TLS": "tcp"})):
            settings = {**NIXL_SETTINGS, **tls}
            out += [Contestant("nixl", "nixl_transfer.py", python, medium, wait, settings) for wait in WAITS]
    threads = [replace(c, variant="threads") for c in out if c.wait == "poll"]
    leave = [replace(c, variant="leave") for c in out if c.name == "moontide" and c.medium in LEAVE_MEDIA]
    return out + threads + leave


class TransferRun:
    """The schedule, and what came of it."""

    def __init__(self, quick: bool, rounds: int, only: set[str], build: Path) -> None:
        self.quick, self.schedule = quick, Schedule(rounds)
        self.submission = submission_case(quick)
        self.cases: dict[str, list[Case]] = {
            "": transfer_cases(quick),
            "threads": threaded_cases(quick),
            "leave": leave_cases(quick),
        }
        self.contestants = contestants(only)
        limits = Path(__file__).resolve().parent.parent / "limits"
        programs = compile_limits(limits, build) if "limits" in only else {}
        names = {"shm": "copy", "cma": "cma", "tcp": "tcp"}
        self.results = Results(limits={m: LimitRuns(m, programs[names[m]]) for m in MEDIA if names[m] in programs})
        self.innocent = list(INNOCENT_MEDIA) if "moontide" in only else []
        self.innocent_turns: list[InnocentTurn] = []

    def _contestant_turn(self, c: Contestant, memories: Memories) -> None:
        extra = [self.submission] if (c.medium, c.wait, c.variant) == ("tcp", "poll", "") else []

        def attempt() -> Tried[Turn]:
            turn = run_turn(c, [*self.cases[c.variant], *extra], memories, TURN_LIMIT_S)
            return Tried(turn, turn.foreign, turn.error)

        # A turn that broke off keeps the cases it finished.
        turn = self.schedule.undisturbed(c.label, attempt)
        self.results.turns.setdefault((c.name, c.medium, c.wait), []).append(turn)

    def _limit_turn(self, limit: LimitRuns) -> None:
        def attempt() -> Tried[LimitTurn]:
            watch = ForeignCpu({os.getpid()})
            turn = limit.turn(self.cases[""], TURN_LIMIT_S)
            return Tried(turn, watch.share(), "; ".join(turn.errors))

        limit.accept(self.schedule.undisturbed(f"limit {limit.medium}", attempt))

    def _innocent_turn(self, medium: str) -> None:
        def attempt() -> Tried[InnocentTurn]:
            turn = innocent_turn(project_python(), medium, _INNOCENT_S, TURN_LIMIT_S)
            return Tried(turn, turn.foreign, turn.error)

        self.innocent_turns.append(self.schedule.undisturbed(f"innocent {medium}", attempt))

    def run(self) -> None:
        memories = Memories()
        steps: list[Callable[[], None]] = [lambda c=c: self._contestant_turn(c, memories) for c in self.contestants]  # type: ignore[misc]
        steps += [lambda limit=limit: self._limit_turn(limit) for limit in self.results.limits.values()]  # type: ignore[misc]
        steps += [lambda medium=medium: self._innocent_turn(medium) for medium in self.innocent]  # type: ignore[misc]
        try:
            self.schedule.run(steps)
        finally:
            memories.close()

    def rows(self) -> list[dict[str, Any]]:
        cases, leave = self.cases[""], self.cases["leave"]
        rows = transfer_rows(self.results, cases + self.cases["threads"])
        rows += transfer_rows(self.results, leave, LEAVE_MEDIA) + best_path_rows(self.results, cases + leave)
        rows += submission_rows(self.results, self.submission)
        return rows + (innocent_rows(self.innocent_turns) if self.innocent else [])

    def document(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        versions: dict[str, str] = {}
        for turns in self.results.turns.values():
            for turn in turns:
                versions.update(turn.versions)
        return {
            **self.schedule.document(rows, self.quick),
            "versions": versions,
            "settings": {c.label: c.settings for c in self.contestants if c.settings},
            "loops": {medium: loops_seen(runs) for medium, runs in self.results.limits.items()},
        }
