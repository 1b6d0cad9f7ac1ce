#!/usr/bin/env python3
"""The project beside its peers and beside bare loops, in one run on one machine.

usage: compare.py transfer --json FILE [--plot FILE] [--quick] [--only NAME,...] [--turns N]
       compare.py store --json FILE [--plot FILE] [--quick] [--only NAME,...] [--turns N] [--keys N]
       compare.py plot --json FILE --plot FILE

Each contestant has the machine to itself in its turn; the order is there and back again (ABBA); a turn in which others
used more than 5 % of a core is repeated. Ratios within one run are what counts; absolute times are this machine's.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import store_run, transfer_run
from harness.environments import SetupError, project_python
from harness.imports import import_row
from harness.plot import draw
from harness.rows import table
from harness.schedule import REPEATS_MAX, Schedule
from harness.store_rows import store_table


def _only(options: argparse.Namespace, names: tuple[str, ...]) -> set[str]:
    return set(options.only.split(",")) if options.only else set(names)


def _rounds(options: argparse.Namespace) -> int:
    rounds: int = options.turns or (2 if options.quick else 5)
    if options.quick:
        print(f"--quick: {rounds} turns per contestant and few iterations; medians of fewer than five turns")
    return rounds


def _write(options: argparse.Namespace, document: dict[str, Any], text: str, schedule: Schedule) -> None:
    Path(options.json).write_text(json.dumps(document, indent=1) + "\n")
    print(text)
    if schedule.disturbed():
        print(
            f"{len(schedule.disturbed())} turns were disturbed even after {REPEATS_MAX} repeats: do not quote this run"
        )
    print(f"written to {options.json}")
    if options.plot:
        draw(document, Path(options.plot))
        print(f"drawn to {options.plot}")
    if schedule.failed():
        sys.exit(f"bench: turns that broke off (the file says why): {', '.join(schedule.failed())}")


def transfer(options: argparse.Namespace) -> None:
    only = _only(options, transfer_run.NAMES)
    with tempfile.TemporaryDirectory(prefix="moontide-bench-") as build:
        run = transfer_run.TransferRun(options.quick, _rounds(options), only, Path(build))
        run.run()
        rows = run.rows()
        if "moontide" in only:
            rows.append(import_row(project_python(), 3 if options.quick else 9))
    _write(options, run.document(rows), table(rows), run.schedule)


def store(options: argparse.Namespace) -> None:
    run = store_run.StoreRun(options.quick, _rounds(options), _only(options, store_run.NAMES), options.keys)
    run.run()
    rows = run.rows()
    _write(options, run.document(rows), store_table(rows), run.schedule)


def plot(options: argparse.Namespace) -> None:
    draw(json.loads(Path(options.json).read_text()), Path(options.plot))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for function, names, words in (
        (transfer, transfer_run.NAMES, "batches of KV blocks between two processes"),
        (store, store_run.NAMES, "a pool: its master, a process that lends memory, a client"),
    ):
        command = commands.add_parser(function.__name__, help=words)
        command.set_defaults(function=function)
        command.add_argument("--json", required=True, metavar="FILE", help="where the figures go")
        command.add_argument("--plot", metavar="FILE", help="a picture of them (PNG)")
        command.add_argument("--quick", action="store_true", help="two turns each, few iterations")
        command.add_argument("--only", metavar="NAMES", help=f"of {','.join(names)}; for work on the bench")
        command.add_argument("--turns", type=int, metavar="N", help="turns per contestant")
        if function is store:
            words = "objects at most in the rows about growth; 10000000 needs 20 GiB of memory"
            command.add_argument("--keys", type=int, metavar="N", help=words)
    command = commands.add_parser("plot", help="the picture of a file that is there")
    command.set_defaults(function=plot)
    command.add_argument("--json", required=True, metavar="FILE", help="the figures")
    command.add_argument("--plot", required=True, metavar="FILE", help="where the picture goes (PNG)")
    return parser.parse_args()


def main() -> None:
    options = _arguments()
    try:
        options.function(options)
    except SetupError as error:
        sys.exit(f"bench: {error}")


if __name__ == "__main__":
    main()
