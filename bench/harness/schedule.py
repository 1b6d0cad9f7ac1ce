"""Who is measured when: rounds there and back again, and each turn again while others disturb it."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from harness.watch import machine

FOREIGN_MAX = 0.05  # of one core
REPEATS_MAX = 3  # per turn; then the least disturbed one counts, and the file says so
TURN_LIMIT_S = 300.0

T = TypeVar("T")


class Tried(NamedTuple, Generic[T]):
    """One attempt at a turn: what it brought, what others used of a core meanwhile, why it broke off (or nothing)."""

    value: T
    foreign: float
    error: str


class Schedule:
    """The rounds of one run, and the log of their turns."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.log: list[dict[str, Any]] = []

    def undisturbed(self, label: str, attempt: Callable[[], Tried[T]]) -> T:
        """The first attempt that nobody disturbed, else the least disturbed one. One that broke off is not repeated."""
        began = time.monotonic()
        tried: list[Tried[T]] = []
        while len(tried) <= REPEATS_MAX:
            tried.append(attempt())
            if tried[-1].error or tried[-1].foreign <= FOREIGN_MAX:
                break
        complete = [one for one in tried if not one.error]
        chosen = min(complete, key=lambda one: one.foreign) if complete else tried[-1]
        self._note(label, [one.foreign for one in tried], time.monotonic() - began, chosen.error)
        return chosen.value

    def _note(self, label: str, foreign: list[float], seconds: float, error: str) -> None:
        entry: dict[str, Any] = {"turn": label, "foreign_cpu": [round(f, 3) for f in foreign]}
        entry["seconds"] = round(seconds, 1)
        if error:
            entry["error"] = error
        self.log.append(entry)
        busy = f"  others used {foreign[-1]:.0%} of a core" if foreign and foreign[-1] > FOREIGN_MAX else ""
        failed = f"  FAILED: {error.strip().splitlines()[-1]}" if error else ""
        print(f"  {label:<22} {entry['seconds']:>6} s{busy}{failed}", flush=True)

    def run(self, steps: Sequence[Callable[[], None]]) -> None:
        for k in range(self.rounds):
            print(f"round {k + 1} of {self.rounds}", flush=True)
            for step in steps if k % 2 == 0 else reversed(steps):
                step()

    def disturbed(self) -> list[str]:
        return [entry["turn"] for entry in self.log if min(entry["foreign_cpu"], default=0.0) > FOREIGN_MAX]

    def failed(self) -> list[str]:
        return sorted({entry["turn"] for entry in self.log if "error" in entry})

    def document(self, rows: list[dict[str, Any]], quick: bool) -> dict[str, Any]:
        """What every file says about its run."""
        return {
            "rows": rows,
            "machine": machine(),
            "taken": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "quick": quick,
            "turns_per_contestant": self.rounds,
            "order": "ABBA",
            "foreign_cpu_max": FOREIGN_MAX,
            "log": self.log,
        }
