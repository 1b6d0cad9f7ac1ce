"""The row about an innocent peer: real processes that misbehave, and what makes a turn worthless."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from harness import innocent
from harness.innocent import InnocentTurn, Part, innocent_rows, innocent_turn, misbehaviours

PYTHON = Path(sys.executable)


@pytest.mark.parametrize("medium", innocent.MEDIA)
def test_every_misbehaviour_happens_and_has_its_ratio(medium: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests may use the loopback device meanwhile; test_rows has the proof by its counter.
    monkeypatch.setattr(innocent, "on_medium", lambda medium, result: True)
    # The third process runs where a core is idle, and beside other tests that is not often.
    monkeypatch.setattr(innocent, "_OFTEN", 1)
    turn = innocent_turn(PYTHON, medium, 0.5, 60)
    assert turn.error == ""
    assert turn.baseline_us > 0
    assert list(turn.ratios) == misbehaviours(medium)
    assert all(ratio > 0 for ratio in turn.ratios.values())
    rows = innocent_rows([turn])
    assert [row["moontide"] is not None for row in rows] == [row["medium"] == medium for row in rows]


def test_a_turn_on_another_medium_has_no_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(innocent, "on_medium", lambda medium, result: False)
    monkeypatch.setattr(innocent, "_MISBEHAVIOUR", {})
    turn = innocent_turn(PYTHON, "shm", 0.05, 60)
    assert "not on shm" in turn.error
    assert turn.ratios == {}


def test_misbehaviour_that_did_not_happen_makes_the_turn_worthless(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = dict(innocent._MISBEHAVIOUR)
    monkeypatch.setattr(
        innocent, "_MISBEHAVIOUR", {"garbage": (lambda bad, server: lambda: innocent._often(bad), ("shm",))}
    )
    turn = innocent_turn(PYTHON, "shm", 0.05, 60)
    assert "misbehaved only 0 times" in turn.error
    # A peer that is not stopped is read on.
    monkeypatch.setattr(innocent, "_MISBEHAVIOUR", {"read": kinds["a peer stopped while it is read"]})
    monkeypatch.setattr(Part, "stop", lambda self: None)
    turn = innocent_turn(PYTHON, "tcp", 0.3, 60)
    assert "reads on" in turn.error


def test_processes_end_when_their_time_is_up_and_with_a_program_that_fails() -> None:
    assert innocent_turn(PYTHON, "shm", 30, 1).error != ""
    assert "has ended" in innocent_turn(Path("/bin/false"), "shm", 0.1, 10).error


def test_the_rows_are_medians_beside_their_target() -> None:
    turns = [InnocentTurn("tcp", 20.0, dict.fromkeys(misbehaviours("tcp"), ratio)) for ratio in (1.0, 7.0, 6.0)]
    turns.append(InnocentTurn("tcp", error="broke off"))
    rows = innocent_rows(turns)
    tcp = [row for row in rows if row["medium"] == "tcp"]
    assert len(tcp) == len(misbehaviours("tcp"))
    assert all((row["moontide"], row["target"], row["met"]) == (6.0, 5.0, False) for row in tcp)
    assert all(row["baseline_p99_us"] == 20.0 and row["turns"] == {"moontide": 3} for row in tcp)
    assert all(row["moontide"] is None and row["met"] is None for row in rows if row["medium"] == "shm")
