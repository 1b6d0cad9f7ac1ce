"""Whole turns of a pool: how its three processes are started, measured, checked, reported; then our own, for real."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from harness import store_turns
from harness.cases import KIB
from harness.rows import on_medium
from harness.store_cases import (
    BUFFER_BYTES,
    POOL_BYTES,
    Stage,
    StoreCase,
    data_cases,
    growth_stages,
    metadata_cases,
    view_stages,
)
from harness.store_turns import StoreContestant, StoreTurn, run_store_turn

HERE, BENCH = Path(__file__).parent, Path(store_turns.__file__).parents[1]
FAKE = StoreContestant("remembering", str(HERE / "remembering.py"), Path(sys.executable), "memory", "poll", "metadata")
OURS = replace(FAKE, name="moontide", script=str(BENCH / "peers" / "moontide_store.py"))
KINDS = ("single", "batch", "pipelined")
CASES = tuple(
    StoreCase(f"{op} {kind}", kind, op, 64, 1 if kind == "single" else 16, 64, 5.0)
    for op in ("exists", "get", "put")
    for kind in KINDS
)
DATA = tuple(StoreCase(f"{op} data", "data", op, 64 * KIB, 3, 6, 5.0) for op in ("put", "get"))


def turn(*cases: StoreCase, fault: str = "", keys: int = 100, of: StoreContestant = FAKE) -> StoreTurn:
    return run_store_turn(replace(of, settings={"FAULT": fault}), [Stage(keys, cases)], 60)


def test_every_case_is_timed_and_counted_with_its_cpu() -> None:
    done = turn(*CASES, *DATA)
    assert done.error == ""
    assert done.versions == {"remembering": "1"}
    assert set(done.cases) == {(100, case.name) for case in CASES + DATA}
    for case in CASES + DATA:
        result = done.cases[100, case.name]
        assert 0 < result["p50_us"] <= result["p99_us"]
        assert result["mean_us"] > 0 and result["cpu_s"] > 0 and result["master_cpu_s"] >= 0
    assert {done.cases[100, f"{op} single"]["calls"] for op in ("exists", "get", "put")} == {64}
    assert done.cases[100, "get batch"]["keys_per_call"] == 16
    # 64 calls make one piece; three are the least.
    piece = done.cases[100, "put pipelined"]
    assert (piece["calls"], piece["keys_per_call"]) == (3, 64)
    assert done.cases[100, "get data"]["payload_bytes"] == 6 * 3 * 64 * KIB


def test_the_clock_is_of_the_call_and_its_end_is_of_the_case_s_time() -> None:
    slow = replace(CASES[KINDS.index("single") + 6], iterations=10_000, seconds=0.1)
    assert slow.op == "put"
    result = turn(slow).cases[100, slow.name]
    assert result["p50_us"] >= 500 and result["mean_us"] >= 500
    assert 3 <= result["calls"] <= 200
    none = replace(slow, seconds=0.0)
    assert turn(none).cases[100, none.name]["calls"] == 3


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("corrupt", "not what was put"),
        ("forgets", "not what was put"),
        ("no master", "the master has ended"),
        ("no lender", "no memory to lend"),
    ],
)
def test_a_wrong_answer_or_a_server_that_ends_is_the_turn_s_error(fault: str, says: str) -> None:
    done = turn(CASES[0], DATA[1], fault=fault)
    assert says in done.error
    assert (100, DATA[1].name) not in done.cases


def test_the_pool_of_a_turn_holds_what_its_cases_put() -> None:
    for quick in (True, False):
        for case in data_cases(quick):
            assert case.nbytes <= BUFFER_BYTES
            assert 3 * case.nbytes <= POOL_BYTES  # before, now, and what is being removed
        names = [case.name for case in metadata_cases(quick)]
        assert len(set(names)) == len(names)
    assert [stage.keys for stage in growth_stages(False)] == [100_000, 1_000_000]
    assert [stage.keys for stage in growth_stages(False, 10_000_000)] == [100_000, 1_000_000, 10_000_000]
    assert [stage.keys for stage in growth_stages(False, 100_000)] == [100_000]


@pytest.mark.parametrize("wait", ["poll", "sleep"])
def test_our_pool_answers_every_case(wait: str) -> None:
    small = [replace(case, iterations=20) for case in CASES]
    done = turn(*small, *DATA, of=replace(OURS, wait=wait))
    assert done.error == ""
    assert len(done.cases) == len(CASES + DATA)
    assert list(done.memory) == [100]


def test_our_views_are_in_place_and_have_the_bytes() -> None:
    done = turn(*view_stages(quick=True)[0].cases, keys=0, of=OURS)
    assert done.error == ""
    assert {case for _, case in done.cases} == {"view of 64 KiB", "view of 64 MiB"}


def test_our_bytes_go_over_tcp_where_they_are_told_to() -> None:
    done = turn(*DATA, keys=0, of=replace(OURS, medium="tcp"))
    assert done.error == ""
    assert all(on_medium("tcp", done.cases[0, case.name]) for case in DATA)
