"""From turns to rows: medians, the medium's proof, the void rule, the file's format, the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from harness.cases import GIB, MEDIA, MIB, WAITS, Case, leave_cases, submission_case, threaded_cases, transfer_cases
from harness.imports import import_row
from harness.limits import LimitRuns, LimitTurn, loops_for, shape_arguments
from harness.rows import Results, best_path_rows, on_medium, row, submission_rows, table, transfer_rows, with_target
from harness.turns import Turn

CASES = transfer_cases(quick=False)
BULK = next(case for case in CASES if case.name == "read 1 MiB x 64")
ONE = next(case for case in CASES if case.name == "read one 4 KiB")
REQUIRED = {"case", "metric", "unit", "better", "moontide", "peers", "limit", "medium", "cpu_s"}


def measured(case: Case, p50_us: float, *, lo: float = 0.0, late: int = 0) -> dict[str, Any]:
    payload = case.nbytes * case.iterations
    return {
        "p50_us": p50_us,
        "p99_us": p50_us * 2,
        "cpu_s": 0.5,
        "batches": case.iterations,
        "lo_bytes": int(payload * lo),
        "payload_bytes": payload,
        "late": late,
    }


def turns(case: Case, *values: float, **kwargs: Any) -> list[Turn]:
    return [Turn("x", cases={case.name: measured(case, value, **kwargs)}) for value in values]


def limit_runs(medium: str, case: Case, **loops: list[float]) -> LimitRuns:
    runs = LimitRuns(medium, Path("unused"))
    for wait in WAITS:
        runs.results[runs.key(case, wait)] = {name: list(values) for name, values in loops.items()}
    return runs


def test_a_row_is_the_median_over_turns_as_a_rate_and_has_the_agreed_keys() -> None:
    results = Results(
        turns={
            ("moontide", "shm", "poll"): turns(BULK, 5000, 9000, 4000, 100_000, 6000),
            ("mooncake", "tcp", "poll"): turns(BULK, 30_000, 30_000, 30_000, lo=1.0),
        },
        limits={"shm": limit_runs("shm", BULK, memcpy=[4000.0, 4200.0, 4100.0], slow=[9000.0, 9000.0, 9000.0])},
    )
    got = row(results, BULK, "shm", ("poll", "sleep"), "p50_us")
    assert set(got) >= REQUIRED
    assert got["moontide"] == pytest.approx(64 * MIB / 6000 / 1e3, rel=1e-3)
    assert got["limit"] == pytest.approx(64 * MIB / 4100 / 1e3, rel=1e-3)
    assert got["limit_loop"] == "memcpy"
    assert got["peers"]["mooncake"] == pytest.approx(64 * MIB / 30_000 / 1e3, rel=1e-3)
    assert got["peers"]["nixl"] is None
    assert (got["unit"], got["better"], got["metric"], got["void"]) == ("GB/s", "higher", "rate", False)
    assert got["cpu_s"] == {"moontide": 0.5, "mooncake": 0.5}
    assert got["cpu_s_per_gib"]["moontide"] == pytest.approx(0.5 / (BULK.nbytes * BULK.iterations / GIB), rel=1e-3)
    assert got["turns"] == {"moontide": 5, "mooncake": 3}


def test_in_bulk_the_better_wait_counts_and_in_small_rows_only_its_own() -> None:
    results = Results(
        turns={
            ("moontide", "shm", "poll"): turns(BULK, 9000.0),
            ("moontide", "shm", "sleep"): turns(BULK, 5000.0),
        }
    )
    assert row(results, BULK, "shm", WAITS, "p50_us")["moontide"] == pytest.approx(64 * MIB / 5000 / 1e3, rel=1e-3)
    assert row(results, BULK, "shm", ("poll",), "p50_us")["moontide"] == pytest.approx(64 * MIB / 9000 / 1e3, rel=1e-3)


@pytest.mark.parametrize(("value", "void"), [(97.5, False), (96.0, True)])
def test_a_latency_row_is_void_when_somebody_beats_the_limit_by_over_3_percent(value: float, void: bool) -> None:
    results = Results(
        turns={("nixl", "memory", "poll"): turns(ONE, value)}, limits={"cma": limit_runs("cma", ONE, loop=[100.0])}
    )
    got = row(results, ONE, "cma", ("poll",), "p50_us")
    assert got["void"] is void
    assert any("void" in note for note in got["notes"]) is void
    assert ("VOID" in table([got])) is void


@pytest.mark.parametrize(("rate", "void"), [(1.02, False), (1.04, True)])
def test_a_rate_row_is_void_likewise(rate: float, void: bool) -> None:
    results = Results(
        turns={("moontide", "shm", "poll"): turns(BULK, 4000 / rate)},
        limits={"shm": limit_runs("shm", BULK, loop=[4000.0])},
    )
    assert row(results, BULK, "shm", WAITS, "p50_us")["void"] is void


@pytest.mark.parametrize(
    ("medium", "lo", "proven"),
    [("tcp", 1.01, True), ("tcp", 0.5, False), ("shm", 0.0, True), ("cma", 0.05, True), ("memory", 1.0, False)],
)
def test_the_loopback_counter_proves_the_medium(medium: str, lo: float, proven: bool) -> None:
    assert on_medium(medium, measured(BULK, 1.0, lo=lo)) is proven


def test_a_contestant_on_the_wrong_medium_has_no_value_and_the_row_says_so() -> None:
    results = Results(turns={("moontide", "shm", "poll"): turns(BULK, 5000.0, 5000.0, lo=1.0)})
    got = row(results, BULK, "shm", WAITS, "p50_us")
    assert got["moontide"] is None
    assert any("not on shm" in note for note in got["notes"])


def test_done_before_the_bytes_are_there_is_noted() -> None:
    results = Results(turns={("mooncake", "tcp", "poll"): turns(BULK, 5000.0, lo=1.0, late=3)})
    assert any("3 times" in note for note in row(results, BULK, "tcp", WAITS, "p50_us")["notes"])


def test_a_limit_of_a_polling_row_may_also_be_a_loop_that_blocks_but_not_the_other_way_round() -> None:
    runs = LimitRuns("tcp", Path("unused"))
    runs.results = {(ONE.name, "poll"): {"a": [9.0]}, (ONE.name, "sleep"): {"a": [8.0]}}
    assert runs.best(ONE, "poll") == ("a", 8.0)
    runs.results = {(ONE.name, "poll"): {"a": [7.0]}, (ONE.name, "sleep"): {"a": [8.0]}}
    assert runs.best(ONE, "sleep") == ("a", 8.0)


def test_a_lucky_loop_of_one_turn_does_not_become_the_limit() -> None:
    runs = limit_runs("shm", BULK, kept=[5.0, 5.0, 5.0], dropped=[1.0])
    assert runs.best(BULK, "poll") == ("kept", 5.0)


def test_only_accepted_turns_of_the_loops_count() -> None:
    runs = LimitRuns("shm", Path("unused"))
    runs.accept(LimitTurn([(runs.key(BULK, "poll"), "memcpy", 7.0)]))
    assert runs.best(BULK, "sleep") == ("memcpy", 7.0)
    assert runs.best(ONE, "poll") is None


def test_a_case_like_another_is_bound_by_its_rate_and_runs_no_loops_of_its_own() -> None:
    runs = limit_runs("shm", BULK, memcpy=[4000.0])
    runs.batches[BULK.name] = BULK.nbytes
    two = next(case for case in threaded_cases(quick=False) if case.name == "read 1 MiB x 64, 2 threads")
    assert two.like == BULK.name and two.total == 2 * BULK.nbytes
    assert runs.best(two, "poll") == ("memcpy", 8000.0)
    results = Results(turns={("moontide", "shm", "poll"): turns(two, 10_000.0)}, limits={"shm": runs})
    got = row(results, two, "shm", ("poll",), "p50_us")
    assert got["moontide"] / got["limit"] == pytest.approx(0.8, rel=1e-3)
    # One entry of each of two threads is bound by the latency of one.
    single = next(case for case in threaded_cases(quick=False) if case.single)
    runs = limit_runs("shm", ONE, loop=[2.0])
    runs.batches[ONE.name] = ONE.nbytes
    assert runs.best(single, "poll") == ("loop", 2.0)
    # `false` fails when it is run.
    assert LimitRuns("shm", Path("/bin/false")).turn([two], 5).errors == []
    assert LimitRuns("shm", Path("/bin/false")).turn([BULK], 5).errors != []


@pytest.mark.parametrize(("nixl", "moontide", "met"), [(10_000, 5000, True), (10_000, 6000, False), (None, 5000, None)])
def test_each_by_its_best_path_has_the_targets(nixl: float | None, moontide: float, met: bool | None) -> None:
    results = Results(
        turns={
            ("moontide", "shm", "poll"): turns(BULK, moontide),
            ("nixl", "memory", "sleep"): turns(BULK, nixl) if nixl else [],
            ("mooncake", "tcp", "poll"): turns(BULK, 30_000, lo=1.0),
        },
        limits={"shm": limit_runs("shm", BULK, a=[4900.0]), "cma": limit_runs("cma", BULK, b=[4800.0])},
    )
    got = next(r for r in best_path_rows(results, CASES) if r["case"].startswith("read 1 MiB x 64"))
    assert (got["medium"], got["met"], got["limit_loop"]) == ("best", met, "b")
    assert got["target"] == (pytest.approx(1.7 * got["peers"]["nixl"], rel=1e-3) if nixl else None)
    assert with_target({**got, "void": True}, 1.0, "1")["met"] is None
    assert got["peers"]["mooncake"] is not None
    single = next(r for r in best_path_rows(results, CASES) if r["case"].startswith("read one 4 KiB"))
    assert (single["target"], single["met"]) == (2.0, None)


def test_a_write_by_leave_stands_beside_what_the_peers_do_without_and_under_the_same_limit() -> None:
    plain = next(case for case in CASES if case.name == "write 1 MiB x 64")
    leave = next(case for case in leave_cases(quick=False) if case.plain == plain.name)
    runs = limit_runs("cma", plain, loop=[4000.0])
    runs.batches[plain.name] = plain.nbytes
    results = Results(
        turns={
            ("moontide", "cma", "poll"): turns(plain, 9000.0) + turns(leave, 5000.0),
            ("nixl", "memory", "poll"): turns(plain, 8000.0),
        },
        limits={"cma": runs},
    )
    got = row(results, leave, "cma", WAITS, "p50_us")
    assert got["case"] == "write 1 MiB x 64, by leave"
    assert got["moontide"] == pytest.approx(leave.nbytes / 5000 / 1e3, rel=1e-3)
    assert got["peers"]["nixl"] == pytest.approx(leave.nbytes / 8000 / 1e3, rel=1e-3)
    assert got["limit"] == pytest.approx(leave.nbytes / 4000 / 1e3, rel=1e-3)
    best = [r["case"] for r in best_path_rows(results, CASES + leave_cases(quick=False))]
    assert len(set(best)) == len(best) == 6


def test_every_case_has_a_row_on_every_medium_and_the_file_is_json() -> None:
    cases = CASES + threaded_cases(quick=False)
    rows = transfer_rows(Results(), cases) + best_path_rows(Results(), CASES)
    rows += submission_rows(Results(), submission_case(quick=True))
    assert {(r["medium"], r["case"]) for r in rows} >= {(medium, case.name) for medium in MEDIA for case in cases}
    for wait in WAITS:
        assert any(r.get("wait") == wait and r["case"] == "write 4 KiB x 1024" for r in rows)
    assert all(set(r) >= REQUIRED and r["better"] in ("higher", "lower") for r in rows)
    assert json.loads(json.dumps({"rows": rows}, allow_nan=False))["rows"] == rows
    assert len(table(rows).splitlines()) >= len(rows) + 1


@pytest.mark.parametrize("medium", MEDIA)
def test_the_loops_cover_what_the_rules_name(medium: str) -> None:
    loops = loops_for(medium, BULK)
    if medium == "tcp":
        assert {f"{n} x {kib} buffers 0" for n in (1, 2, 4) for kib in (64, 128, 256, 512)} <= set(loops)
    elif medium == "cma":
        assert {"readv 64 x 1", "readv 256 x 1", "readv 1024 x 1"} <= set(loops)
    else:
        assert "memcpy" in loops and any("non-temporal" in loop for loop in loops)


def test_entries_that_lie_side_by_side_are_one_piece_for_a_bare_loop() -> None:
    straight = next(case for case in CASES if case.name == "read 4 KiB x 1024")
    shuffled = next(case for case in CASES if case.name == "read 4 KiB x 1024, scattered")
    assert shape_arguments(straight, 7)[:2] == [str(4 * MIB), "1"]
    assert shape_arguments(shuffled, 7)[:2] == ["4096", "1024"]


def test_the_import_row_is_the_cost_over_a_bare_start() -> None:
    got = import_row(Path(sys.executable), 2)
    assert set(got) >= REQUIRED
    assert 0 < got["moontide"] < 10 * got["target"]
    assert got["notes"] == []
