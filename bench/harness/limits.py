"""The bare loops: which ones run for which case, and what the best of them reached."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from harness.cases import MIB, WAITS, Case

_KEPT = 5  # after a first, short look at all of them, only the best so many loops run on
_FIRST_LOOK = 3  # a part of the iterations


def loops_for(medium: str, case: Case) -> list[str]:
    """Names that the program of that medium understands."""
    if medium == "shm":
        return ["memcpy", "rep movsb", "non-temporal avx2", "non-temporal avx512", "non-temporal avx512 in halves"]
    if medium == "cma":
        if case.single:
            return [f"{verb} 4 x 1" for verb in ("readv", "writev")]
        if case.order == "shuffled":
            return [f"{verb} 4 x {n}" for verb in ("readv", "writev") for n in (16, 64, 256, 1024)]
        return [f"{verb} {piece} x {n}" for verb in ("readv", "writev") for piece in (64, 256, 1024) for n in (1, 16)]
    if case.single:
        return ["1 x 64 buffers 0"]
    plain = [f"{sockets} x {chunk} buffers 0" for sockets in (1, 2, 4) for chunk in (64, 128, 256, 512, 1024)]
    large = [f"{sockets} x {chunk} buffers {b}" for sockets in (1, 2) for chunk in (512, 1024) for b in (2048, 4096)]
    return plain + large


def shape_arguments(case: Case, iterations: int) -> list[str]:
    """Entries that lie side by side are one piece of memory to a loop that knows it."""
    size, count = (case.size, case.count) if case.order == "shuffled" or case.size >= MIB else (case.nbytes, 1)
    pool = case.windows * case.nbytes
    return [str(size), str(count), str(pool), str(iterations), case.order]


@dataclass
class LimitTurn:
    """((case, wait), loop, median in microseconds for one batch), and what did not run."""

    results: list[tuple[tuple[str, str], str, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass
class LimitRuns:
    """Results of all turns of the bare loops of one medium: (case, wait) → loop → median of each turn, microseconds.

    Only TCP needs the other side's hand; elsewhere one loop serves both waits, and both directions.
    """

    medium: str
    program: Path
    results: dict[tuple[str, str], dict[str, list[float]]] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)  # case → bytes of a batch

    def key(self, case: Case, wait: str) -> tuple[str, str]:
        name = case.like or case.name
        return (name, wait) if self.medium == "tcp" else (name.removeprefix(f"{case.op} "), "either")

    def _wanted(self, key: tuple[str, str], case: Case) -> list[str]:
        seen = self.results.get(key)
        if not seen:
            return loops_for(self.medium, case)
        return sorted(seen, key=lambda loop: min(seen[loop]))[:_KEPT]

    def turn(self, cases: list[Case], limit_s: float) -> LimitTurn:
        """One pass over all cases. Counts only once `accept` got it."""
        turn = LimitTurn()
        tried = set()
        for case in cases:
            if case.like:
                continue
            self.batches[case.name] = case.nbytes
            for wait in WAITS:
                key = self.key(case, wait)
                if key in tried:
                    continue
                tried.add(key)
                mode = [case.op, wait] if self.medium == "tcp" else []
                iterations = case.iterations if self.results.get(key) else max(3, case.iterations // _FIRST_LOOK)
                loops = self._wanted(key, case)
                command = [str(self.program), *shape_arguments(case, iterations), *mode, *loops]
                try:
                    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
                except subprocess.TimeoutExpired:
                    turn.errors.append(f"{self.medium} {case.name}: over {limit_s} s")
                    continue
                if done.returncode != 0:
                    turn.errors.append(f"{self.medium} {case.name}: {done.stderr.strip() or done.returncode}")
                    continue
                for line in done.stdout.splitlines():
                    event = json.loads(line)
                    turn.results.append((key, event["loop"], event["p50_us"]))
        return turn

    def accept(self, turn: LimitTurn) -> None:
        for key, loop, p50_us in turn.results:
            self.results.setdefault(key, {}).setdefault(loop, []).append(p50_us)

    def best(self, case: Case, wait: str) -> tuple[str, float] | None:
        """(loop, median over its turns in microseconds), scaled to what one iteration of the case moves.

        A poller may also block; a loop seen once counts only if no other was kept.
        """
        found: list[tuple[float, str]] = []
        for mode in WAITS if wait == "poll" else (wait,):
            runs = self.results.get(self.key(case, mode), {})
            most = max((len(values) for values in runs.values()), default=0)
            for loop, values in runs.items():
                if len(values) == most:
                    found.append((median(values), loop))
        if not found:
            return None
        p50_us, loop = min(found)
        times = 1.0 if case.single else case.total / self.batches.get(case.like or case.name, case.total)
        return loop, p50_us * times


def loops_seen(runs: LimitRuns) -> dict[str, dict[str, float]]:
    """Every loop's median, for the file."""
    return {
        f"{name} ({wait})": {loop: median(values) for loop, values in loops.items()}
        for (name, wait), loops in runs.results.items()
    }
