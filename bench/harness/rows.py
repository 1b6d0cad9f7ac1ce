"""From turns to rows: medians, the proof of the medium, what voids a row, and the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from harness.cases import GIB, MEDIA, WAITS, Case
from harness.limits import LimitRuns
from harness.turns import Turn

NAMES = ("moontide", "mooncake", "nixl")
_CPU = "cpu s/GiB m/m/n"
_SINGLE_TARGET_US, _BULK_TARGET = 2.0, 1.7  # of each by its best path
VOID_ABOVE = 1.03  # a contestant this much better than the limit shows that the limit's loop is a poor one
_ON_LOOPBACK = 0.98  # of the payload, at least, for a TCP row
_OFF_LOOPBACK = 0.25  # of the payload, at most, for a memory row: control messages may go there

Key = tuple[str, str, str]  # contestant, medium, wait


@dataclass
class Results:
    """The accepted turns of every contestant, and the bare loops."""

    turns: dict[Key, list[Turn]] = field(default_factory=dict)
    limits: dict[str, LimitRuns] = field(default_factory=dict)

    def of(self, key: Key, case: Case) -> list[dict[str, Any]]:
        name = case.plain if case.plain and key[0] != "moontide" else case.name
        return [turn.cases[name] for turn in self.turns.get(key, []) if name in turn.cases]


def on_medium(medium: str, result: dict[str, Any]) -> bool:
    """Whether `lo`'s counter says that the bytes went the way they should have gone."""
    share = result["lo_bytes"] / result["payload_bytes"]
    return bool(share >= _ON_LOOPBACK if medium == "tcp" else share <= _OFF_LOOPBACK)


@dataclass
class Cell:
    """One contestant in one row."""

    value: float
    cpu_s: float
    cpu_s_per_gib: float
    turns: int
    note: str = ""


def cell(results: Results, keys: Iterable[Key], case: Case, sample: str) -> Cell | None:
    """The median over the turns; of several keys (waits) the better one."""
    best: Cell | None = None
    for key in keys:
        found = results.of(key, case)
        if not found:
            continue
        proven = [result for result in found if on_medium(key[1], result)]
        if not proven:
            return Cell(float("nan"), 0.0, 0.0, len(found), f"{key[0]}: not on {key[1]}, as lo's counter shows")
        late = sum(result["late"] for result in proven)
        note = f"{key[0]}: said done before the bytes were there, {late} times" if late else ""
        value, cpu_s = (median(r[name] for r in proven) for name in (sample, "cpu_s"))
        per_gib = median(r["cpu_s"] / r["payload_bytes"] * GIB for r in proven)
        mine = Cell(value, cpu_s, per_gib, len(proven), note)
        if best is None or mine.value < best.value:
            best = mine
    return best


def keys_of(name: str, medium: str, waits: tuple[str, ...]) -> list[Key]:
    """Where a contestant's figures for a row come from. Peers go their own best way on one host; Mooncake has one."""
    if name == "mooncake":
        return [(name, "tcp", "poll")]
    if name == "nixl" and medium != "tcp":
        return [(name, "memory", wait) for wait in waits]
    return [(name, medium, wait) for wait in waits]


def _scaled(microseconds: float, case: Case) -> float:
    return microseconds if case.single else case.total / microseconds / 1e3


def rounded(value: float | None) -> float | None:
    return None if value is None or value != value else float(f"{value:.4g}")


def bound_of(results: Results, case: Case, media: Iterable[str], waits: tuple[str, ...]) -> tuple[str, float] | None:
    """(loop, microseconds) of the best bare loop over these media."""
    limits = [results.limits[medium] for medium in media if medium in results.limits]
    found = [limit.best(case, wait) for limit in limits for wait in waits]
    return min((bound for bound in found if bound is not None), key=lambda bound: bound[1], default=None)


def row(
    results: Results, case: Case, medium: str, waits: tuple[str, ...], sample: str, bounds: tuple[str, ...] = ()
) -> dict[str, Any]:
    """`waits`: one for a row about that wait, both where the better one counts. `bounds`: media, if not this one."""
    cells = {name: cell(results, keys_of(name, medium, waits), case, sample) for name in NAMES}
    bound = bound_of(results, case, bounds or (medium,), waits) if sample == "p50_us" else None
    values = {name: _scaled(c.value, case) if c else None for name, c in cells.items()}
    limit = _scaled(bound[1], case) if bound else None
    better = "lower" if case.single else "higher"
    notes = [c.note for c in cells.values() if c and c.note]
    void = limit is not None and any(beats(value, limit, better) for value in values.values())
    if void:
        notes.append(f"void: a contestant beats the limit ({bound[0] if bound else ''}) by over 3 %")
    return {
        "case": case.name,
        "metric": {"p50_us": "p50", "p99_us": "p99"}[sample] if case.single else "rate",
        "unit": "us" if case.single else "GB/s",
        "better": better,
        "moontide": rounded(values["moontide"]),
        "peers": {name: rounded(values[name]) for name in ("mooncake", "nixl")},
        "limit": rounded(limit),
        "limit_loop": bound[0] if bound else None,
        "medium": medium,
        "wait": waits[0] if len(waits) == 1 else "better of both",
        "cpu_s": {name: round(c.cpu_s, 4) for name, c in cells.items() if c},
        "cpu_s_per_gib": {name: rounded(c.cpu_s_per_gib) for name, c in cells.items() if c},
        "turns": {name: c.turns for name, c in cells.items() if c},
        "void": void,
        "notes": notes,
    }


def beats(value: float | None, limit: float, better: str) -> bool:
    if value is None or value != value:
        return False
    return value > limit * VOID_ABOVE if better == "higher" else value * VOID_ABOVE < limit


def transfer_rows(results: Results, cases: list[Case], media: tuple[str, ...] = MEDIA) -> list[dict[str, Any]]:
    out = []
    for medium in media:
        for case in cases:
            samples = ("p50_us", "p99_us") if case.single else ("p50_us",)
            for waits in _waits_of(case):
                out += [row(results, case, medium, waits, sample) for sample in samples]
    return out


def _waits_of(case: Case) -> list[tuple[str, ...]]:
    """A row for each. Two threads share a core: their target polls, or it would be asleep only now and then."""
    if case.threads > 1:
        return [("poll",)]
    return [(wait,) for wait in WAITS] if case.small else [WAITS]


def with_target(row: dict[str, Any], target: float | None, words: str) -> dict[str, Any]:
    """The row, and what it is to reach; `met` is unknown where a figure is missing or void."""
    value = row["moontide"]
    known = target is not None and value is not None and not row["void"]
    met = (value <= target if row["better"] == "lower" else value >= target) if known else None
    return {**row, "target": rounded(target), "target_is": words, "met": met}


def best_path_rows(results: Results, cases: list[Case]) -> list[dict[str, Any]]:
    """Each by the best way that it has on one host: lent memory, NIXL's own choice, Mooncake's TCP."""
    out = []
    for case in cases:
        if case.single:
            target, words = _SINGLE_TARGET_US, f"{_SINGLE_TARGET_US:g} us"
        elif (case.plain or case.name) == f"{case.op} 1 MiB x 64":
            target, words = None, f"{_BULK_TARGET} x nixl"
        else:
            continue
        best = row(results, case, "shm", WAITS, "p50_us", bounds=("shm", "cma"))
        nixl = best["peers"]["nixl"]
        if not case.single and nixl is not None:
            target = _BULK_TARGET * nixl
        best.update(case=f"{case.name}, each by its best path", medium="best")
        out.append(with_target(best, target, words))
    return out


def submission_rows(results: Results, case: Case) -> list[dict[str, Any]]:
    """What a call costs the caller in Python, over TCP, where no byte is copied in the call."""
    out = []
    for sample, name, target in (
        ("submit_us", "submit a batch of 32 from Python", 10.0),
        ("repost_us", "post a prepared batch of 32 again", 3.0),
    ):
        found = {who: [r[sample] for r in results.of((who, "tcp", "poll"), case)] for who in NAMES}
        values = {who: rounded(median(v)) if v else None for who, v in found.items()}
        mine = values.pop("moontide")
        out.append(plain_row(name, "p50", "us", mine, target, values))
    return out


def plain_row(
    case: str,
    metric: str,
    unit: str,
    value: float | None,
    target: float,
    peers: dict[str, float | None],
    medium: str = "cpu",
) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "case": case,
        "metric": metric,
        "unit": unit,
        "better": "lower",
        "moontide": value,
        "peers": peers,
        "limit": None,
        "medium": medium,
        "cpu_s": {},
        "void": False,
        "notes": [],
    }
    return with_target(plain, target, f"{target:g} {unit}")


def text_of(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(rows: list[dict[str, Any]]) -> str:
    head = ["medium", "wait", "case", "", "moontide", "mooncake", "nixl", "limit", "of limit", "target", _CPU, ""]
    lines = [head]
    for r in rows:
        mine, limit = r["moontide"], r["limit"]
        of = (mine / limit if r["better"] == "higher" else limit / mine) if mine and limit else None
        lines.append(
            [
                r["medium"],
                r.get("wait", "")[:6],
                r["case"],
                r["unit"] if r["metric"] == "rate" else f"{r['metric']} {r['unit']}",
                text_of(mine),
                text_of(r["peers"].get("mooncake")),
                text_of(r["peers"].get("nixl")),
                text_of(limit),
                f"{of:.2f}" if of else "",
                f"{'<' if r['better'] == 'lower' else '>'}{r['target']:g}" if r.get("target") else "",
                "/".join(text_of(r["cpu_s_per_gib"].get(name)) for name in NAMES) if r["cpu_s"] else "",
                "VOID" if r["void"] else "*" if r["notes"] else "",
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = []
    for line in lines:
        cells = zip(line, widths, strict=True)
        padded = [c.ljust(w) if i in (0, 1, 2, 3, 11) else c.rjust(w) for i, (c, w) in enumerate(cells)]
        text.append("  ".join(padded).rstrip())
    text += sorted({f"* {note}" for r in rows for note in r["notes"]})
    return "\n".join(text)
