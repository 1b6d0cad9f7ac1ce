"""Whole turns of a contestant that only copies: how both processes measure, check and report."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from harness import turns
from harness.cases import KIB, MIB, Case, leave_cases, threaded_cases, transfer_cases
from harness.turns import Contestant, Memories, Turn, run_turn

POOL = 2 * MIB
COPYING = Contestant("copying", str(Path(__file__).with_name("copying.py")), Path(sys.executable), "shm", "poll")
BATCH = Case("read 4 KiB x 16", "read", 4 * KIB, 16, "shuffled", 2, 50, 5.0)


@pytest.fixture
def memories(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memories]:
    monkeypatch.setattr(turns, "POOL_BYTES", POOL)
    made = Memories()
    yield made
    made.close()


def turn(memories: Memories, *cases: Case, variant: str = "") -> Turn:
    return run_turn(replace(COPYING, variant=variant), list(cases), memories, 60)


@pytest.mark.parametrize("op", ["read", "write"])
@pytest.mark.parametrize("threads", [1, 2])
def test_every_batch_is_timed_and_counted(memories: Memories, op: str, threads: int) -> None:
    done = turn(memories, replace(BATCH, op=op, threads=threads))
    assert done.error == ""
    result = done.cases[BATCH.name]
    assert result["batches"] == 50 * threads
    assert result["payload_bytes"] == 50 * threads * BATCH.nbytes
    assert result["late"] == 0
    assert result["p50_us"] > 0 and result["p99_us"] > 0 and result["cpu_s"] > 0


def test_the_rate_of_two_threads_is_of_the_time_that_both_took(memories: Memories) -> None:
    done = turn(memories, replace(BATCH, threads=2, iterations=200))
    result = done.cases[BATCH.name]
    # Per thread one batch at a time, and a core for both: the CPU seconds cannot be fewer than a part of the wall's.
    assert result["cpu_s"] <= 2.5 * result["p50_us"] * 1e-6 * 200 + 0.05
    assert result["payload_bytes"] == 400 * BATCH.nbytes


@pytest.mark.parametrize("threads", [1, 2])
def test_a_slow_contestant_stops_after_its_seconds_and_does_a_few_at_least(memories: Memories, threads: int) -> None:
    slow = replace(BATCH, iterations=10_000, seconds=0.05, threads=threads)
    result = turn(memories, slow, variant="early").cases[BATCH.name]
    assert 3 * threads <= result["batches"] < 10_000
    none = turn(memories, replace(slow, seconds=0.0)).cases[BATCH.name]
    assert none["batches"] == 3 * threads


@pytest.mark.parametrize("threads", [1, 2])
def test_done_before_the_bytes_are_there_is_seen_and_the_clock_runs_on(memories: Memories, threads: int) -> None:
    result = turn(memories, replace(BATCH, iterations=5, threads=threads), variant="early").cases[BATCH.name]
    assert result["late"] > 0
    assert result["p50_us"] >= 1500


@pytest.mark.parametrize("op", ["read", "write"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_wrong_byte_ends_the_turn(memories: Memories, op: str, threads: int) -> None:
    done = turn(memories, replace(BATCH, op=op, threads=threads), variant="corrupt")
    assert done.cases == {}
    assert "are not the bytes that were sent" in done.error


def test_writes_are_seen_and_compared_where_the_target_says_that_they_land(memories: Memories) -> None:
    write = replace(BATCH, op="write")
    done = turn(memories, write, variant="landing")
    assert done.error == ""
    assert done.cases[BATCH.name]["late"] == 0
    # Nothing came into the memory where they land otherwise.
    with mmap.mmap(memories.fds["target_sink"], POOL) as sink:
        assert sink[:] == bytes(POOL)


def test_the_cases_fit_the_memory_and_every_thread_has_a_window() -> None:
    for quick in (True, False):
        cases = transfer_cases(quick) + threaded_cases(quick) + leave_cases(quick)
        names = [case.name for case in cases]
        assert len(set(names)) == len(names)
        for case in cases:
            assert case.windows * case.nbytes <= turns.POOL_BYTES
            assert case.windows >= case.threads
            assert not case.like or case.like in names
