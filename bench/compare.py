#!/usr/bin/env python3
"""The project beside its peers and beside bare loops, in one run on one machine.

usage: compare.py transfer --json FILE [--quick] [--only NAME,...] [--turns N]

Each contestant has the machine to itself in its turn; the order is there and back again (ABBA); a turn in which others
used more than 5 % of a core is repeated. Ratios within one run are what counts; absolute times are this machine's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

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
from harness.environments import MOONCAKE, NIXL, SetupError, compile_limits, ensure
from harness.imports import import_row
from harness.innocent import MEDIA as INNOCENT_MEDIA
from harness.innocent import InnocentTurn, innocent_rows, innocent_turn
from harness.limits import LimitRuns, LimitTurn, loops_seen
from harness.rows import Results, best_path_rows, submission_rows, table, transfer_rows
from harness.turns import Contestant, Memories, Turn, run_turn
from harness.watch import ForeignCpu, machine

FOREIGN_MAX = 0.05  # of one core
REPEATS_MAX = 3  # per turn; then the least disturbed one counts, and the file says so
TURN_LIMIT_S = 300.0
INNOCENT_S = 0.5  # of writes, beside each misbehaviour

# Each peer's best documented setting on one host with loopback only; what each one does was looked up and tried.
_MOONCAKE_SETTINGS = {
    "MC_TCP_BIND_ADDRESS": "127.0.0.1",
    "MC_TCP_ENABLE_CONNECTION_POOL": "1",
    "MC_LOG_LEVEL": "ERROR",
}
_NIXL_SETTINGS = {"UCX_MODULES": "^ib", "NIXL_LOG_LEVEL": "WARN", "UCX_LOG_LEVEL": "error"}


def project_python() -> Path:
    """An interpreter that has the project: this one, or the one that `make` built."""
    for python in (Path(sys.executable), Path(__file__).resolve().parent.parent / ".venv" / "bin" / "python"):
        check = [str(python), "-c", "import moontide; moontide.Engine"]
        if python.exists() and subprocess.run(check, capture_output=True, check=False).returncode == 0:
            return python
    raise SetupError("moontide is not installed for this Python: run `make build` and use .venv/bin/python")


def contestants(only: set[str]) -> list[Contestant]:
    out = []
    if "moontide" in only:
        python = project_python()
        out += [Contestant("moontide", "moontide_transfer.py", python, m, w) for m in MEDIA for w in WAITS]
    if "mooncake" in only:
        # Its target is driven by a thread of its own that sleeps; there is no other wait.
        out.append(Contestant("mooncake", "mooncake_transfer.py", ensure(MOONCAKE), "tcp", "poll", _MOONCAKE_SETTINGS))
    if "nixl" in only:
        python = ensure(NIXL)
        for medium, tls in (("memory", {}), ("tcp", {"UCX_TLS": "tcp"})):
            settings = {**_NIXL_SETTINGS, **tls}
            out += [Contestant("nixl", "nixl_transfer.py", python, medium, wait, settings) for wait in WAITS]
    threads = [replace(c, variant="threads") for c in out if c.wait == "poll"]
    leave = [replace(c, variant="leave") for c in out if c.name == "moontide" and c.medium in LEAVE_MEDIA]
    return out + threads + leave


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


class Run:
    """The schedule, and what came of it."""

    def __init__(self, quick: bool, turns: int, only: set[str], build: Path) -> None:
        self.quick, self.rounds = quick, turns
        self.submission = submission_case(quick)
        self.cases: dict[str, list[Case]] = {
            "": transfer_cases(quick),
            "threads": threaded_cases(quick),
            "leave": leave_cases(quick),
        }
        self.contestants = contestants(only)
        programs = compile_limits(Path(__file__).resolve().parent / "limits", build) if "limits" in only else {}
        names = {"shm": "copy", "cma": "cma", "tcp": "tcp"}
        self.results = Results(limits={m: LimitRuns(m, programs[names[m]]) for m in MEDIA if names[m] in programs})
        self.innocent = list(INNOCENT_MEDIA) if "moontide" in only else []
        self.innocent_turns: list[InnocentTurn] = []
        self.log: list[dict[str, Any]] = []

    def _note(self, label: str, foreign: list[float], began: float, error: str = "") -> None:
        seconds = round(time.monotonic() - began, 1)
        entry: dict[str, Any] = {"turn": label, "foreign_cpu": [round(f, 3) for f in foreign], "seconds": seconds}
        if error:
            entry["error"] = error
        self.log.append(entry)
        busy = f"  others used {foreign[-1]:.0%} of a core" if foreign and foreign[-1] > FOREIGN_MAX else ""
        print(f"  {label:<22} {seconds:>6} s{busy}" + (f"  FAILED: {_last_line(error)}" if error else ""), flush=True)

    def _contestant_turn(self, c: Contestant, memories: Memories) -> None:
        began = time.monotonic()
        extra = [self.submission] if (c.medium, c.wait, c.variant) == ("tcp", "poll", "") else []
        tried: list[Turn] = []
        while len(tried) <= REPEATS_MAX:
            turn = run_turn(c, [*self.cases[c.variant], *extra], memories, TURN_LIMIT_S)
            tried.append(turn)
            if turn.error or turn.foreign <= FOREIGN_MAX:
                break
        complete = [turn for turn in tried if not turn.error]
        chosen = min(complete, key=lambda turn: turn.foreign) if complete else tried[-1]
        # A turn that broke off keeps the cases it finished.
        self.results.turns.setdefault((c.name, c.medium, c.wait), []).append(chosen)
        self._note(c.label, [turn.foreign for turn in tried], began, chosen.error)

    def _limit_turn(self, limit: LimitRuns) -> None:
        began = time.monotonic()
        tried: list[tuple[float, LimitTurn]] = []
        while len(tried) <= REPEATS_MAX:
            watch = ForeignCpu({os.getpid()})
            turn = limit.turn(self.cases[""], TURN_LIMIT_S)
            tried.append((watch.share(), turn))
            if tried[-1][0] <= FOREIGN_MAX:
                break
        chosen = min(tried, key=lambda pair: pair[0])[1]
        limit.accept(chosen)
        self._note(f"limit {limit.medium}", [foreign for foreign, _ in tried], began, "; ".join(chosen.errors))

    def _innocent_turn(self, medium: str) -> None:
        began = time.monotonic()
        tried: list[InnocentTurn] = []
        while len(tried) <= REPEATS_MAX:
            tried.append(innocent_turn(project_python(), medium, INNOCENT_S, TURN_LIMIT_S))
            if tried[-1].error or tried[-1].foreign <= FOREIGN_MAX:
                break
        complete = [turn for turn in tried if not turn.error]
        chosen = min(complete, key=lambda turn: turn.foreign) if complete else tried[-1]
        self.innocent_turns.append(chosen)
        self._note(f"innocent {medium}", [turn.foreign for turn in tried], began, chosen.error)

    def run(self) -> None:
        memories = Memories()
        steps: list[Callable[[], None]] = [lambda c=c: self._contestant_turn(c, memories) for c in self.contestants]  # type: ignore[misc]
        steps += [lambda limit=limit: self._limit_turn(limit) for limit in self.results.limits.values()]  # type: ignore[misc]
        steps += [lambda medium=medium: self._innocent_turn(medium) for medium in self.innocent]  # type: ignore[misc]
        try:
            for k in range(self.rounds):
                print(f"round {k + 1} of {self.rounds}", flush=True)
                for step in steps if k % 2 == 0 else reversed(steps):
                    step()
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
            "rows": rows,
            "machine": machine(),
            "taken": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "quick": self.quick,
            "turns_per_contestant": self.rounds,
            "order": "ABBA",
            "foreign_cpu_max": FOREIGN_MAX,
            "versions": versions,
            "settings": {c.label: c.settings for c in self.contestants if c.settings},
            "log": self.log,
            "loops": {medium: loops_seen(runs) for medium, runs in self.results.limits.items()},
        }


def transfer(options: argparse.Namespace) -> None:
    only = set(options.only.split(",")) if options.only else {"moontide", "mooncake", "nixl", "limits"}
    rounds = options.turns or (2 if options.quick else 5)
    with tempfile.TemporaryDirectory(prefix="moontide-bench-") as build:
        run = Run(options.quick, rounds, only, Path(build))
        if options.quick:
            print(f"--quick: {rounds} turns per contestant and few iterations; medians of fewer than five turns")
        run.run()
        rows = run.rows()
        if "moontide" in only:
            rows.append(import_row(project_python(), 3 if options.quick else 9))
    Path(options.json).write_text(json.dumps(run.document(rows), indent=1) + "\n")
    print(table(rows))
    disturbed = [entry["turn"] for entry in run.log if min(entry["foreign_cpu"], default=0.0) > FOREIGN_MAX]
    if disturbed:
        print(f"{len(disturbed)} turns were disturbed even after {REPEATS_MAX} repeats: do not quote this run")
    print(f"written to {options.json}")
    failed = sorted({entry["turn"] for entry in run.log if "error" in entry})
    if failed:
        sys.exit(f"bench: turns that broke off (the file says why): {', '.join(failed)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("transfer", help="batches of KV blocks between two processes")
    command.add_argument("--json", required=True, metavar="FILE", help="where the figures go")
    command.add_argument("--quick", action="store_true", help="two turns each, few iterations")
    command.add_argument("--only", metavar="NAMES", help="of moontide,mooncake,nixl,limits; for work on the bench")
    command.add_argument("--turns", type=int, metavar="N", help="turns per contestant")
    options = parser.parse_args()
    try:
        transfer(options)
    except SetupError as error:
        sys.exit(f"bench: {error}")


if __name__ == "__main__":
    main()
