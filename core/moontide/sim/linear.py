"""Is there an order of a key's operations that explains all answers?

A key is a register that is absent or holds the contents of one put. Puts and upserts set it, removes empty it, a get
that found bytes saw them in it. Each operation takes effect at one moment between its call and its answer; one without
a clear outcome may take effect later, or never.

What a client sees of its own put_async before that is committed is its own view, and orders nothing for the others.

A get by a lease that a stopped or runaway clock kept alive may find what was superseded. It proves its bytes like any
other (check_bytes), but not the moment.

In a run with faults a miss tells nothing: the object may be evicted, its node away or cut off. In a calm run (no
faults, room for everything) a miss says that the key was absent, and a put succeeds only on an absent key; but beside a
remove or an upsert it says nothing, since those end an object at the master first and at its node then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moontide.sim.calls import FOREVER, Call

ABSENT = 0
UNSEEN = -1  # contents that nobody saw: all alike


@dataclass(frozen=True)
class Step:
    """One thing that happened to a key, or was seen of it."""

    kind: str  # set, clear, saw (this value), present (any value), absent
    value: int
    begin_ns: int
    end_ns: int
    required: bool
    call: Call


def steps_of(key: str, calls: Sequence[Call], calm: bool) -> list[Step]:
    """The steps of one key, in the order of their begin."""
    steps: list[Step] = []
    own = {(call.client, call.value) for call in calls if call.kind == "put_async" and call.key == key}

    def add(call: Call, kind: str, *, value: int = 0, end_ns: int = -1, required: bool = True) -> None:
        end = call.returned_ns if end_ns < 0 else end_ns
        steps.append(Step(kind, value, call.invoked_ns, end, required, call))

    ends = [call for call in calls if call.kind in ("remove", "upsert") and call.key == key and call.ok]

    def tells_absence(call: Call) -> bool:
        return calm and not any(
            end.invoked_ns <= call.returned_ns and call.invoked_ns <= end.returned_ns for end in ends
        )

    for call in calls:
        if call.is_put and call.key == key:
            surely = call.ok and call.kind != "put_async"
            add(call, "set", value=call.value, end_ns=call.effect_until_ns, required=surely)
        elif call.kind == "remove" and call.key == key:
            if call.ok:
                add(call, "clear")
            elif call.code == "NOT_FOUND" and tells_absence(call):
                add(call, "absent")
        elif call.kind == "get" and call.key == key:
            if call.ok and not call.lease_in_doubt and (call.client, call.value) not in own:
                add(call, "saw", value=call.value)
            elif call.code == "NOT_FOUND" and tells_absence(call):
                add(call, "absent")
        elif call.kind == "exists" and call.key == key:
            if call.ok:
                if not any(client == call.client for client, _ in own):
                    add(call, "present")
            elif call.code == "NOT_FOUND" and tells_absence(call):
                add(call, "absent")
        elif call.kind == "list" and call.ok and key.startswith(call.key):
            if key in call.listed:
                add(call, "present")
            elif tells_absence(call):
                add(call, "absent")
    return sorted(steps, key=lambda step: (step.begin_ns, step.call.number))


def explain(steps: Sequence[Step], calm: bool) -> bool:
    """Whether some order of the steps explains them all (Wing and Gong's search, remembering where it has been).

    Contents that nobody saw are as good as any other such: of those that may be set next, only the ones that have to be
    set first are tried, so that many at once do not multiply the orders.
    """
    saw = {step.value for step in steps if step.kind == "saw"}
    required = sum(1 << i for i, step in enumerate(steps) if step.required)
    seen: set[tuple[int, int]] = set()
    stack: list[tuple[int, int]] = [(0, ABSENT)]
    while stack:
        done, state = stack.pop()
        if done & required == required:
            return True
        if (done, state) in seen:
            continue
        seen.add((done, state))
        open_ends = [step.end_ns for i, step in enumerate(steps) if step.required and not done >> i & 1]
        latest_begin = min(open_ends)
        begun_ns = max((step.begin_ns for i, step in enumerate(steps) if done >> i & 1), default=0)
        branches: list[tuple[int, int]] = []
        alike: tuple[int, int] | None = None  # the step that nobody saw and that ends first: when, and which
        for i, step in enumerate(steps):
            if step.begin_ns > latest_begin:
                break
            if done >> i & 1 or step.end_ns < begun_ns:
                continue
            after = _after(step, state, calm)
            if after is None:
                continue
            if step.kind == "set" and step.value not in saw:
                after = UNSEEN
                if step.call.kind == "upsert" or not calm:
                    alike = min(alike or (step.end_ns, i), (step.end_ns, i))
                    continue
            if step.kind not in ("set", "clear"):
                # What was seen and fits now changes nothing: taking it at once loses no order that would do.
                branches, alike = [(done | 1 << i, state)], None
                break
            branches.append((done | 1 << i, after))
        if alike is not None:
            branches.append((done | 1 << alike[1], UNSEEN))
        stack += branches
    return False


def _after(step: Step, state: int, calm: bool) -> int | None:
    """The register after the step; None when the step cannot happen in this state."""
    if step.kind == "set":
        only_free = calm and step.required and step.call.kind != "upsert"
        return None if only_free and state != ABSENT else step.value
    if step.kind == "clear":
        return ABSENT
    fits = {"saw": state == step.value, "present": state != ABSENT, "absent": state == ABSENT}[step.kind]
    return state if fits else None


def _telling(steps: Sequence[Step]) -> list[Step]:
    """Without what explains nothing: unsure puts whose contents nobody saw, and sights of *some* contents that may
    have been those of such a put."""
    saw = {step.value for step in steps if step.kind == "saw"}
    unsure = [step for step in steps if step.kind == "set" and not step.required and step.value not in saw]
    first_unsure_ns = min((step.begin_ns for step in unsure), default=FOREVER)

    def tells(step: Step) -> bool:
        if step.kind == "present":
            return step.end_ns < first_unsure_ns
        return step.required or step.value in saw

    return [step for step in steps if tells(step)]


def check_key(key: str, calls: Sequence[Call], calm: bool) -> str:
    """An account of the key's history when no order explains it, else the empty string."""
    steps = steps_of(key, calls, calm)
    if explain(_telling(steps), calm):
        return ""
    lines = [f"no order of the operations on {key} explains the answers:"]
    lines += [f"  {call.text()}" for call in calls if call.key == key or (call.kind == "list" and key in call.listed)]
    return "\n".join(lines)


def check_bytes(calls: Sequence[Call]) -> list[str]:
    """Gets that returned something else than what they asked for of the contents of one put of their key."""
    put = {(call.key, call.value): call.length for call in calls if call.is_put}
    return [
        f"a get returned bytes of no put of its key: {call.text()}"
        for call in calls
        if call.kind == "get"
        and call.ok
        and call.length != min(put.get((call.key, call.value), -1), call.first or FOREVER)
    ]


def check_failed_puts(calls: Sequence[Call]) -> list[str]:
    """Gets that found what a put had brought that had been refused for good before."""
    refused = {(call.key, call.value): call.returned_ns for call in calls if call.failed_for_good}
    return [
        f"a get found what a put brought that had failed: {call.text()}"
        for call in calls
        if call.kind == "get"
        and call.ok
        and not call.lease_in_doubt
        and call.invoked_ns > refused.get((call.key, call.value), FOREVER)
    ]


def check_history(calls: Sequence[Call], calm: bool) -> list[str]:
    """Everything that is wrong with a run's answers."""
    keys = sorted({call.key for call in calls if call.kind != "list"})
    wrong = check_bytes(calls) + check_failed_puts(calls)
    wrong += [account for key in keys if (account := check_key(key, calls, calm))]
    return wrong


__all__ = [
    "ABSENT",
    "FOREVER",
    "Step",
    "check_bytes",
    "check_failed_puts",
    "check_history",
    "check_key",
    "explain",
    "steps_of",
]
