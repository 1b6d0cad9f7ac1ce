"""`moontide bench transfer`, for real: two processes, every path, the bytes compared."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from moontide.bench.transfer import PATHS


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "moontide.cli", "bench", "transfer", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def test_every_path_moves_the_bytes_both_ways() -> None:
    done = run("--batch", "4KiBx8", "--batch", "1MiBx2", "--time", "20ms", "--json")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(m["path"], m["op"], m["size"], m["count"]) for m in lines} == {
        (path, op, size, count)
        for path in PATHS
        for op in ("read", "write")
        for size, count in ((4096, 8), (1 << 20, 2))
    }
    assert all(m["batches"] >= 5 and m["p50_us"] > 0 and m["gb_per_s"] > 0 for m in lines)
    # A forced path is the one that carried the bytes; a write within a host is the other side's pull.
    assert {m["carried_by"] for m in lines if m["op"] == "read"} == {"shm", "cma", "tcp"}
    assert {m["carried_by"] for m in lines if m["path"] == "tcp"} == {"tcp"}


def test_the_table_has_a_line_per_measurement() -> None:
    done = run("--path", "shm", "--batch", "4KiBx1", "--time", "10ms")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


@pytest.mark.parametrize("batch", ["", "4KiB", "x3", "4KiBx0", "4KiBx-1", "0x1", "1TiBx9", "4 cowsx1"])
def test_a_bad_batch_is_an_error_that_says_what_to_write(batch: str) -> None:
    done = run("--batch", batch)
    assert done.returncode != 0
    assert "1MiBx64" in done.stderr or "not a size" in done.stderr
    assert "Traceback" not in done.stderr
