"""Runs the libFuzzer targets of a build folder: python tests/fuzz/run.py build/fuzz --seconds 30 --jobs 2

Each target starts from its own seeds, from inputs that once found a fault (tests/fuzz/found/TARGET) and from what
earlier runs collected in BUILD/corpus/TARGET. The canary has to crash; nothing else may. Inputs that crash are left in
BUILD/crashes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

FOUND = Path(__file__).resolve().parent / "found"
CANARY = "fuzz_canary"
CANARY_SIGN = "heap-buffer-overflow"
RUNS_MIN = 100  # fewer say that the target hardly started
# Of one target: resident memory, one allocation, seconds for one input, bytes of an input.
LIMITS = ["-rss_limit_mb=1024", "-malloc_limit_mb=64", "-timeout=20", "-max_len=4096"]


@dataclass(frozen=True)
class Outcome:
    """How the run of one target ended."""

    target: str
    failed: bool
    line: str
    output: str


def run_target(binary: Path, seconds: int) -> Outcome:
    """One target, until it crashes or its time is over."""
    name, build = binary.name, binary.parent
    corpus, crashes, seeds = build / "corpus" / name, build / "crashes", build / "seeds" / name
    corpus.mkdir(parents=True, exist_ok=True)
    crashes.mkdir(exist_ok=True)
    subprocess.run([binary, "--write-seeds", seeds], check=True)
    settings = [f"-max_total_time={seconds}", f"-artifact_prefix={crashes}/{name}-", "-print_final_stats=1"]
    starts = [folder for folder in (corpus, seeds, FOUND / name) if folder.is_dir()]
    began = time.monotonic()
    run = subprocess.run(
        [binary, *LIMITS, *settings, *starts], capture_output=True, text=True, errors="replace", check=False
    )
    took = time.monotonic() - began
    stat = re.search(r"stat::number_of_executed_units:\s*(\d+)", run.stderr)
    runs = int(stat[1]) if stat else 0
    covered = re.findall(r"cov: (\d+)", run.stderr) or ["?"]
    if name == CANARY:
        failed = run.returncode == 0 or CANARY_SIGN not in run.stderr
        word = "not found: crashes are not seen" if failed else "found, as it must be"
    else:
        failed = run.returncode != 0 or runs < RUNS_MIN
        word = f"exit status {run.returncode}" if run.returncode != 0 else f"{runs} runs"
    return Outcome(name, failed, f"{name}: {word}, {covered[-1]} edges, {took:.0f} s", run.stderr)


def main() -> int:
    """Exit status 0 when the canary was found and nothing else."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--seconds", type=int, default=30, help="for each target")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--only", default="", help="targets whose name contains this")
    options = parser.parse_args()
    binaries = [path.resolve() for path in sorted(options.build.glob("fuzz_*")) if path.is_file() and not path.suffix]
    binaries = [path for path in binaries if options.only in path.name]
    if not binaries:
        print(f"no target in {options.build}", file=sys.stderr)
        return 1
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(lambda binary: run_target(binary, options.seconds), binaries))
    for outcome in outcomes:
        print(("FAILED " if outcome.failed else "ok     ") + outcome.line)
    failed = [outcome for outcome in outcomes if outcome.failed]
    for outcome in failed:
        print(f"\n--- {outcome.target}\n{outcome.output[-8000:]}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
