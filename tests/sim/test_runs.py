"""Whole simulated runs. `make sim` runs many more seeds than these."""

from __future__ import annotations

import subprocess
import sys

import pytest

from moontide._core import SimCluster
from moontide.errors import Invalid, NotFound
from moontide.sim import run_seed


@pytest.mark.parametrize("seed", [3, 4])
def test_a_seed_replays_bit_for_bit_and_holds(seed: int) -> None:
    first, again, other = run_seed(seed), run_seed(seed), run_seed(seed + 100)
    assert first.violations == []
    assert (first.trace, first.events, first.calls) == (again.trace, again.events, again.calls)
    assert first.trace != other.trace


def test_runs_meet_what_they_are_for() -> None:
    reports = [run_seed(seed) for seed in range(200, 260)]
    assert [report.violations for report in reports if not report.ok] == []
    seen = {name: sum(report.counters[name] for report in reports) for name in reports[0].counters}
    for name in ("pulls", "retired", "evicted", "adopted", "proofs_failed", "located_from_cache"):
        assert seen[name] > 0, f"no run had any {name}"
    assert {report.paths for report in reports} == {"sim", "tcp", "both"}
    assert any(report.calm for report in reports)
    faults = "\n".join(line for report in reports for line in report.faults)
    for word in ("crashes", "goes dark", "stops", "no way", "drifts", "steps"):
        assert word in faults


def test_the_command_prints_a_seed_and_its_trace() -> None:
    command = [sys.executable, "-m", "moontide.sim", "--seed", "7"]
    one, two = (subprocess.run(command, text=True, capture_output=True, check=True).stdout for _ in range(2))
    assert one == two
    assert "seed 7: " in one and "trace " in one


def test_bad_orders_are_refused() -> None:
    cluster = SimCluster(1, "both", 2, 3, 1 << 20)
    with pytest.raises(NotFound):
        cluster.pause("nowhere")
    with pytest.raises(Invalid, match="is alive"):
        cluster.restart("node0")
    with pytest.raises(Invalid, match="no operation"):
        cluster.start(0, 1, "fetch", "k")
    with pytest.raises(Invalid, match="8 to 65536"):
        cluster.start(0, 1, "put", "k", 1, 7)
    with pytest.raises(Invalid, match="none of sim, tcp, both"):
        SimCluster(1, "rdma", 2, 3, 1 << 20)
    assert not cluster.start(9, 1, "get", "k")
