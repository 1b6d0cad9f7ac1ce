"""Runs seeds: `python -m moontide.sim --seeds 1000 [--first 1] [--jobs 2]`, or one: `--seed 17`."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from moontide.sim.run import Report, run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m moontide.sim", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="run this one, twice, and tell what happened")
    which.add_argument("--seeds", type=int, default=100, help="how many to run")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep-going", action="store_true", help="run all of them, also after a failure")
    options = parser.parse_args()
    if options.seed is not None:
        return _replay(options.seed)
    return _many(range(options.first, options.first + options.seeds), options.jobs, options.keep_going)


def _replay(seed: int) -> int:
    report = run_seed(seed)
    again = run_seed(seed)
    events = sorted([(call.invoked_ns, call.text()) for call in report.calls])
    for _, text in events:
        print(text)
    for text in report.faults:
        print(text)
    _print_summary(report)
    if again.trace != report.trace:
        print(f"NOT REPRODUCIBLE: trace {report.trace:016x}, then {again.trace:016x}")
        return 1
    return 0 if report.ok else 1


def _print_summary(report: Report) -> None:
    kind = "calm" if report.calm else f"{len(report.faults)} faults"
    print(
        f"seed {report.seed}: {kind}, paths {report.paths}, {len(report.calls)} operations, {report.events} events, "
        f"{report.virtual_ns / 1e9:.0f} s of virtual time, trace {report.trace:016x}"
    )
    print("  " + ", ".join(f"{name} {count}" for name, count in sorted(report.counters.items())))
    for violation in report.violations:
        print(f"  VIOLATION: {violation}")


def _many(seeds: range, jobs: int, keep_going: bool) -> int:
    started = time.monotonic()
    failed: list[int] = []
    done = operations = events = 0
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for report in pool.map(run_seed, seeds):
            done += 1
            operations += len(report.calls)
            events += report.events
            if not report.ok:
                failed.append(report.seed)
                _print_summary(report)
                print(f"  replay it with: {report.replay}", flush=True)
                if not keep_going:
                    pool.shutdown(cancel_futures=True)
                    break
            if done % 100 == 0:
                print(f"{done} seeds, {time.monotonic() - started:.0f} s", flush=True)
    print(
        f"{done} seeds, {operations} operations, {events} events in {time.monotonic() - started:.1f} s: "
        + (f"seeds {failed} failed" if failed else "all hold")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
