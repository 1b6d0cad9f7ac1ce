"""The checker of histories: it accepts what some order explains, and nothing else."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moontide.sim import Call, check_history
from moontide.sim.calls import FOREVER
from moontide.sim.linear import ABSENT, Step, explain, steps_of


def call(kind: str, begin: int, end: int, code: str = "OK", value: int = 0, **more: object) -> Call:
    fields = {"number": begin, "client": 0, "key": "k", "length": 10 if value else 0} | more
    return Call(kind=kind, value=value, invoked_ns=begin, returned_ns=end, code=code, **fields)  # type: ignore[arg-type]


PUT_1 = call("put", 1, 2, value=1)
REMOVE = call("remove", 3, 4)
PUT_2 = call("put", 5, 6, value=2)

GOOD = {
    "a put is seen": [PUT_1, call("get", 3, 4, value=1)],
    "a miss tells nothing when faults are about": [PUT_1, call("get", 3, 4, "NOT_FOUND"), call("get", 5, 6, value=1)],
    "a get beside a remove sees either": [PUT_1, call("remove", 3, 9), call("get", 4, 5, value=1)],
    "a remove beside a put may come first": [
        call("put", 1, 9, value=1),
        call("remove", 2, 3),
        call("get", 10, 11, value=1),
    ],
    "a put without an outcome may take effect late": [
        call("put", 1, FOREVER, "", value=1),
        call("get", 50, 51, "NOT_FOUND"),
        call("get", 90, 91, value=1),
    ],
    "a put that timed out may have taken effect": [call("put", 1, 5, "TIMED_OUT", value=1), call("get", 8, 9, value=1)],
    "a failed put may be seen while it is tried": [call("put", 1, 9, "STALE", value=1), call("get", 3, 4, value=1)],
    "an own view before the commit orders nothing": [
        PUT_1,
        call("put_async", 3, 4, value=2),
        call("get", 5, 6, value=2),
        call("get", 7, 8, value=1, client=1),
    ],
    "by a lease in doubt": [PUT_1, REMOVE, call("get", 5, 6, value=1, lease_in_doubt=True)],
    "a list that shows it": [PUT_1, call("list", 3, 4, key="", listed=["k"])],
}

BAD = {
    "after a remove": [PUT_1, REMOVE, call("get", 5, 6, value=1)],
    "after something newer": [PUT_1, REMOVE, PUT_2, call("get", 7, 8, value=1)],
    "back and forth": [
        call("put", 1, 20, value=1),
        call("put", 1, 20, value=2, number=99),
        call("get", 21, 22, value=1),
        call("get", 23, 24, value=2),
        call("get", 25, 26, value=1),
    ],
    "before it was put": [call("get", 1, 2, value=1), call("put", 3, 4, value=1)],
    "a put that is over cannot be seen later": [call("put", 1, 2, "STALE", value=1), call("get", 5, 6, value=1)],
    "exists after a remove": [PUT_1, REMOVE, call("exists", 5, 6)],
    "listed after a remove": [PUT_1, REMOVE, call("list", 5, 6, key="", listed=["k"])],
    "nobody's bytes": [PUT_1, call("get", 3, 4, value=0)],
    "another length": [PUT_1, call("get", 3, 4, value=1, length=9)],
    "another key's bytes": [call("put", 1, 2, value=1, key="j"), call("get", 3, 4, value=1)],
    "nobody's bytes, by a lease in doubt": [PUT_1, call("get", 3, 4, value=7, lease_in_doubt=True)],
}

CALM_ONLY = {
    "a miss while it is there": [PUT_1, call("get", 3, 4, "NOT_FOUND")],
    "exists says no while it is there": [PUT_1, call("exists", 3, 4, "NOT_FOUND")],
    "not listed while it is there": [PUT_1, call("list", 3, 4, key="", listed=[])],
    "remove finds nothing while it is there": [PUT_1, call("remove", 3, 4, "NOT_FOUND")],
    "put twice": [PUT_1, call("put", 3, 4, value=2)],
}


@pytest.mark.parametrize("name", GOOD)
def test_explained(name: str) -> None:
    assert check_history(GOOD[name], calm=False) == []


@pytest.mark.parametrize("name", BAD)
def test_not_explained(name: str) -> None:
    assert check_history(BAD[name], calm=False) != []


@pytest.mark.parametrize("name", CALM_ONLY)
def test_a_calm_run_is_judged_more_strictly(name: str) -> None:
    assert check_history(CALM_ONLY[name], calm=False) == []
    assert check_history(CALM_ONLY[name], calm=True) != []


def _step(state: int, step: Step) -> int | None:
    if step.kind == "set":
        return step.value
    if step.kind == "clear":
        return ABSENT
    return state if (state == step.value if step.kind == "saw" else state != ABSENT) else None


def _any_order(steps: list[Step]) -> bool:
    """By trying them all."""
    sure = [step for step in steps if step.required]
    unsure = [step for step in steps if not step.required]
    for count in range(len(unsure) + 1):
        for some in itertools.combinations(unsure, count):
            for order in itertools.permutations([*sure, *some]):
                if any(late.end_ns < early.begin_ns for early, late in itertools.combinations(order, 2)):
                    continue
                state: int | None = ABSENT
                for step in order:
                    state = None if state is None else _step(state, step)
                if state is not None:
                    return True
    return False


@st.composite
def histories(draw: st.DrawFn) -> list[Call]:
    calls = []
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["put", "put", "get", "get", "remove", "exists"]))
        begin = draw(st.integers(0, 12))
        value = number + 1 if kind == "put" else draw(st.integers(1, 6)) if kind == "get" else 0
        code = draw(st.sampled_from(["OK", "OK", "TIMED_OUT", "STALE"])) if kind == "put" else "OK"
        calls.append(call(kind, begin, begin + draw(st.integers(0, 8)), code, value=value, number=number))
    return calls


@settings(max_examples=300, deadline=None)
@given(histories())
def test_the_search_agrees_with_trying_every_order(calls: list[Call]) -> None:
    steps = steps_of("k", calls, calm=False)
    assert explain(steps, calm=False) == _any_order(steps)
