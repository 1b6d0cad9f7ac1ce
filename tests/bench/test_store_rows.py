"""From turns of a pool to rows: medians, targets beside the peer, costs per key, growth; and the picture of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness.environments import SetupError
from harness.plot import draw, label_of, shares, target_share
from harness.rows import plain_row
from harness.store_cases import DEPTH, Stage, data_cases, growth_cases, metadata_cases, view_stages
from harness.store_rows import StoreResults, cpu_rows, data_rows, growth_rows, metadata_rows, store_table, view_rows
from harness.store_turns import StoreTurn

METADATA = Stage(2000, tuple(metadata_cases(quick=True)))
DATA = tuple(data_cases(quick=True))
REQUIRED = {"case", "metric", "unit", "better", "moontide", "peers", "limit", "medium", "cpu_s", "target", "met"}


def measured(p50_us: float, keys: int, master_us: float = 1.0, lo: float = 0.0, nbytes: int = 0) -> dict[str, Any]:
    """Ten calls of so many keys, at so many microseconds of the master for each key."""
    return {
        "p50_us": p50_us,
        "p99_us": 3 * p50_us,
        "mean_us": 2 * p50_us,
        "calls": 10,
        "keys_per_call": keys,
        "cpu_s": 0.5,
        "master_cpu_s": master_us * 10 * keys / 1e6,
        "payload_bytes": 10 * nbytes,
        "lo_bytes": int(10 * nbytes * lo),
    }


def turns(stage: Stage, *p50s: float, **more: Any) -> list[StoreTurn]:
    out = []
    for p50 in p50s:
        cases = {(stage.keys, c.name): measured(p50, c.count, nbytes=c.nbytes, **more) for c in stage.cases}
        out.append(StoreTurn("x", cases=cases))
    return out


def one(rows: list[dict[str, Any]], **what: Any) -> dict[str, Any]:
    found = [row for row in rows if all(row[name] == value for name, value in what.items())]
    assert len(found) == 1
    return found[0]


def test_single_calls_are_medians_beside_the_peer_in_each_wait() -> None:
    results = StoreResults(
        {
            ("moontide", "metadata", "memory", "poll"): turns(METADATA, 10.0, 30.0, 20.0),
            ("moontide", "metadata", "memory", "sleep"): turns(METADATA, 50.0),
            ("mooncake", "metadata", "tcp", "poll"): turns(METADATA, 59.0),
            ("mooncake", "metadata", "tcp", "sleep"): turns(METADATA, 59.0),
        }
    )
    rows = metadata_rows(results, METADATA)
    assert all(set(row) >= REQUIRED for row in rows if row["metric"] != "rate" or "at once" not in row["case"])
    polled = one(rows, case="exists", metric="p50", wait="poll")
    assert (polled["moontide"], polled["peers"], polled["turns"]) == (
        20.0,
        {"mooncake": 59.0},
        {"moontide": 3, "mooncake": 1},
    )
    assert polled["target"] == pytest.approx(59 / 3, rel=1e-3) and polled["met"] is False
    assert one(rows, case="exists", metric="rate", wait="poll")["moontide"] == pytest.approx(1e6 / 40)
    p99 = one(rows, case="exists", metric="p99", wait="poll")
    assert (p99["moontide"], p99["target"], p99["met"]) == (60.0, pytest.approx(177 / 2), True)
    slept = one(rows, case="exists", metric="p50", wait="sleep")
    assert (slept["target"], slept["target_is"], slept["met"]) == (59.0, "ahead of mooncake", True)


def test_a_batch_counts_its_keys_and_calls_at_once_have_no_target_of_their_own() -> None:
    results = StoreResults({("moontide", "metadata", "memory", "poll"): turns(METADATA, 64.0)})
    rows = metadata_rows(results, METADATA)
    batch = one(rows, case="exists, batch of 128", wait="poll")
    assert batch["moontide"] == pytest.approx(1e6)  # 128 keys in 128 us on the mean
    assert batch["target_is"] == "1.5 x mooncake"
    assert batch["target"] is None and batch["met"] is None  # no peer
    assert "target" not in one(rows, case=f"exists, {DEPTH} at once", wait="poll")


def test_the_master_s_cpu_is_per_key_and_of_a_master_that_sleeps() -> None:
    results = StoreResults(
        {
            ("moontide", "metadata", "memory", "poll"): turns(METADATA, 10.0, master_us=50.0),
            ("moontide", "metadata", "memory", "sleep"): turns(METADATA, 10.0, master_us=0.5),
        }
    )
    rows = cpu_rows(results, METADATA)
    assert len(rows) == 6
    values = {row["case"]: (row["moontide"], row["target"], row["met"]) for row in rows}
    assert values["master's CPU, exists, batch of 128"] == (0.5, 0.3, False)
    assert values["master's CPU, get of 64 bytes, batch of 128"] == (0.5, 0.6, True)
    assert values["master's CPU, put of 64 bytes, batch of 128"] == (0.5, 1.5, True)
    assert values[f"master's CPU, put of 64 bytes, {DEPTH} at once"] == (0.5, 2.0, True)


def test_growth_is_many_over_few_within_a_turn_and_memory_is_per_object() -> None:
    stages = [Stage(100, tuple(growth_cases(True))), Stage(1000, tuple(growth_cases(True)))]
    both = [StoreTurn("x", memory={100: 190.0, 1000: 250.0}) for _ in range(3)]
    for turn, grown in zip(both, (1.0, 1.5, 9.0), strict=True):
        for stage, cost in zip(stages, (2.0, 2.0 * grown), strict=True):
            turn.cases.update({(stage.keys, c.name): measured(1.0, c.count, cost) for c in stage.cases})
    results = StoreResults({("moontide", "growth", "memory", "sleep"): both})
    results.turns["mooncake", "growth", "tcp", "sleep"] = [StoreTurn("x", memory={100: 900.0}), StoreTurn("y")]
    rows = growth_rows(results, stages)
    values = {row["case"]: (row["moontide"], row["met"]) for row in rows}
    assert values["master's CPU, exists, batch of 128: 1,000 objects over 100"] == (1.5, True)
    assert values[f"master's CPU, exists, {DEPTH} at once: 1,000 objects over 100"] == (1.5, False)
    few = one(rows, case="master's memory for an object, 100 of them")
    assert (few["moontide"], few["peers"], few["met"]) == (190.0, {"mooncake": 900.0}, True)
    assert one(rows, case="master's memory for an object, 1,000 of them")["met"] is False


def test_bytes_count_only_on_their_medium_and_the_peer_has_one() -> None:
    stage = Stage(0, DATA)
    results = StoreResults(
        {
            ("moontide", "data", "memory", "poll"): turns(stage, 100.0),
            ("moontide", "data", "tcp", "poll"): turns(stage, 100.0, lo=0.5),
            ("mooncake", "data", "tcp", "poll"): turns(stage, 150.0, lo=1.0),
        }
    )
    rows = data_rows(results, DATA)
    case = next(case for case in DATA if case.name == "put 1 MiB x 32")
    within = one(rows, case=case.name, medium="memory")
    assert within["moontide"] == pytest.approx(case.nbytes / 100 / 1e3, rel=1e-3)
    assert within["target"] == pytest.approx(2 * case.nbytes / 150 / 1e3, rel=1e-3) and within["met"] is False
    assert within["cpu_s_per_gib"]["moontide"] > 0
    over = one(rows, case=case.name, medium="tcp")
    assert over["moontide"] is None and over["peers"]["mooncake"] is not None
    assert any("not on tcp" in note for note in over["notes"])
    assert "not on tcp" in store_table(rows) and "put 1 MiB x 32" in store_table(rows)


def test_a_view_s_growth_is_the_largest_over_the_smallest_within_a_turn() -> None:
    stage = view_stages(quick=True)[0]
    small, large = (case.name for case in stage.cases)
    found = [
        StoreTurn("x", cases={(0, small): measured(a, 1), (0, large): measured(b, 1)}) for a, b in ((10, 11), (5, 8))
    ]
    rows = view_rows(StoreResults({("moontide", "views", "memory", "poll"): found}), stage.cases)
    assert one(rows, case="view of 64 KiB")["moontide"] == 7.5
    growth = one(rows, metric="growth")
    assert growth["moontide"] == pytest.approx(1.35)
    assert growth["met"] is False
    assert one(view_rows(StoreResults(), stage.cases), metric="growth")["moontide"] is None


def test_a_share_is_of_the_best_and_the_target_lies_on_the_same_scale() -> None:
    row = plain_row("x", "p50", "us", 20.0, 10.0, {"mooncake": 5.0, "nixl": None})
    assert shares(row) == {"moontide": 0.25, "mooncake": 1.0}
    assert target_share(row) == pytest.approx(0.5)
    faster = {**row, "better": "higher", "target": 40.0}
    assert shares(faster) == {"moontide": 1.0, "mooncake": 0.25}
    assert target_share(faster) == pytest.approx(2.0)
    assert shares({**row, "void": True}) == {}
    assert target_share({**row, "moontide": None}) is None
    assert label_of({**row, "wait": "poll"}) == "cpu, poll, x, p50"


def test_the_picture_is_drawn_from_the_file(tmp_path: Path) -> None:
    row = plain_row("x", "p50", "us", 20.0, 10.0, {"mooncake": 5.0})
    document = {"rows": [row], "quick": True, "taken": "now", "machine": {"cpu": "c", "cores": 2}}
    draw(json.loads(json.dumps(document)), tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SetupError, match="nothing to draw"):
        draw({**document, "rows": [{**row, "peers": {}}]}, tmp_path / "none.png")
