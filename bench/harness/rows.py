"""From turns to rows: medians, the proof of the medium, what voids a row, and the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from harness.cases import MEDIA, WAITS, Case
from harness.limits import LimitRuns
from harness.turns import Turn

NAMES = ("moontide", "mooncake", "nixl")
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
        return [turn.cases[case.name] for turn in self.turns.get(key, []) if case.name in turn.cases]


def on_medium(medium: str, result: dict[str, Any]) -> bool:
    """Whether `lo`'s counter says that the bytes went the way they should have gone."""
    share = result["lo_bytes"] / result["payload_bytes"]
    return bool(share >= _ON_LOOPBACK if medium == "tcp" else share <= _OFF_LOOPBACK)


@dataclass
class Cell:
    """One contestant in one row."""

    value: float
    cpu_s: float
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
            return Cell(float("nan"), 0.0, len(found), f"{key[0]}: not on {key[1]}, as lo's counter shows")
        late = sum(result["late"] for result in proven)
        note = f"{key[0]}: said done before the bytes were there, {late} times" if late else ""
        mine = Cell(median(r[sample] for r in proven), median(r["cpu_s"] for r in proven), len(proven), note)
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
    return microseconds if case.single else case.nbytes / microseconds / 1e3


def _rounded(value: float | None) -> float | None:
    return None if value is None or value != value else float(f"{value:.4g}")


def row(results: Results, case: Case, medium: str, waits: tuple[str, ...], sample: str) -> dict[str, Any]:
    """`waits`: one for a row about that wait, both where the better one counts."""
    cells = {name: cell(results, keys_of(name, medium, waits), case, sample) for name in NAMES}
    bounds = [results.limits[medium].best(case, wait) for wait in waits] if medium in results.limits else []
    bound = min((b for b in bounds if b is not None), key=lambda b: b[1], default=None) if sample == "p50_us" else None
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
        "moontide": _rounded(values["moontide"]),
        "peers": {name: _rounded(values[name]) for name in ("mooncake", "nixl")},
        "limit": _rounded(limit),
        "limit_loop": bound[0] if bound else None,
        "medium": medium,
        "wait": waits[0] if len(waits) == 1 else "better of both",
        "cpu_s": {name: round(c.cpu_s, 4) for name, c in cells.items() if c},
        "turns": {name: c.turns for name, c in cells.items() if c},
        "void": void,
        "notes": notes,
    }


def beats(value: float | None, limit: float, better: str) -> bool:
    if value is None or value != value:
        return False
    return value > limit * VOID_ABOVE if better == "higher" else value * VOID_ABOVE < limit


def transfer_rows(results: Results, cases: list[Case]) -> list[dict[str, Any]]:
    out = []
    for medium in MEDIA:
        for case in cases:
            samples = ("p50_us", "p99_us") if case.single else ("p50_us",)
            for waits in [(wait,) for wait in WAITS] if case.small else [WAITS]:
                out += [row(results, case, medium, waits, sample) for sample in samples]
    return out


def submission_rows(results: Results, case: Case) -> list[dict[str, Any]]:
    """What a call costs the caller in Python, over TCP, where no byte is copied in the call."""
    out = []
    for sample, name, target in (
        ("submit_us", "submit a batch of 32 from Python", 10.0),
        ("repost_us", "post a prepared batch of 32 again", 3.0),
    ):
        found = {who: [r[sample] for r in results.of((who, "tcp", "poll"), case)] for who in NAMES}
        values = {who: _rounded(median(v)) if v else None for who, v in found.items()}
        mine = values.pop("moontide")
        out.append(plain_row(name, "p50", "us", mine, target, values))
    return out


def plain_row(
    case: str, metric: str, unit: str, value: float | None, target: float, peers: dict[str, float | None]
) -> dict[str, Any]:
    return {
        "case": case,
        "metric": metric,
        "unit": unit,
        "better": "lower",
        "moontide": value,
        "peers": peers,
        "limit": None,
        "target": target,
        "medium": "cpu",
        "cpu_s": {},
        "void": False,
        "notes": [],
    }


def _text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(rows: list[dict[str, Any]]) -> str:
    head = ["medium", "wait", "case", "", "moontide", "mooncake", "nixl", "limit", "of limit", "cpu s m/m/n", ""]
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
                _text(mine),
                _text(r["peers"].get("mooncake")),
                _text(r["peers"].get("nixl")),
                _text(limit) if limit else f"<{r['target']:g}" if "target" in r else "-",
                f"{of:.2f}" if of else "",
                "/".join(_text(r["cpu_s"].get(name)) for name in NAMES) if r["cpu_s"] else "",
                "VOID" if r["void"] else "*" if r["notes"] else "",
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = []
    for line in lines:
        cells = zip(line, widths, strict=True)
        padded = [c.ljust(w) if i in (0, 1, 2, 3, 10) else c.rjust(w) for i, (c, w) in enumerate(cells)]
        text.append("  ".join(padded).rstrip())
    text += sorted({f"* {note}" for r in rows for note in r["notes"]})
    return "\n".join(text)
