#!/usr/bin/env python3
"""What several network devices deliver together, and what one that fails costs. Needs root (network namespaces).

usage: rails.py [--mbit N] [--json FILE]

Two namespaces with cables of equal, limited rate between them; the project alone, 64 MiB per copy, medians of five.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support import two_hosts
from support.peer_process import Peer
from support.two_hosts import TwoHosts

SIZE = 64 << 20
COPIES = 5


def copy_seconds(reader: Peer, op: str) -> float:
    reader.ask("start", op=op, length=SIZE)
    answer = reader.ask("finish")
    if "error" in answer:
        raise SystemExit(answer["error"])
    return float(answer["seconds"])


def pair(hosts: TwoHosts) -> Peer:
    owner, reader = hosts.engine("b", size=SIZE), hosts.engine("a", size=SIZE)
    reader.ask("open", address=owner.address)
    copy_seconds(reader, "read")  # rates are learned
    return reader


def rate(cables: int, mbit: int, op: str) -> float:
    """MB/s over so many cables."""
    with TwoHosts([mbit] * cables) as hosts:
        reader = pair(hosts)
        return SIZE / 1e6 / median(copy_seconds(reader, op) for _ in range(COPIES))


def lost_to_a_cut(mbit: int, cable: int, one: float) -> float:
    """Seconds that a copy takes longer than its bytes need, when one of two cables is pulled in the middle."""
    with TwoHosts([mbit, mbit]) as hosts:
        reader = pair(hosts)
        reader.ask("start", op="read", length=SIZE)
        while (moved := reader.ask("progress")["moved"]) < SIZE // 3:
            time.sleep(0.002)
        begin = time.monotonic()
        hosts.unplug(cable)
        pulled = time.monotonic() - begin  # the command itself takes a while, in which both may deliver
        answer = reader.ask("finish")
        rest = (SIZE - moved) / 1e6 - pulled * 2 * one
        return float(time.monotonic() - begin - pulled - rest / one) if "error" not in answer else float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbit", type=int, default=400)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if why := two_hosts.missing():
        raise SystemExit(why)
    rows: list[dict[str, Any]] = []
    for op in ("read", "write"):
        one = rate(1, options.mbit, op)
        for cables in (1, 2, 3):
            value = one if cables == 1 else rate(cables, options.mbit, op)
            rows.append(
                {"case": f"{op}, {cables} x {options.mbit} Mbit/s", "MB/s": value, "of_n": value / one / cables}
            )
        if op == "read":
            for cable in (0, 1):
                lost = lost_to_a_cut(options.mbit, cable, one)
                rows.append({"case": f"cable {cable} of 2 pulled in mid-read", "seconds_lost": lost})
    for row in rows:
        print("  ".join(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
