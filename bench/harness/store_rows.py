"""From turns of a pool to rows: what a call costs, what the master pays for a key, and how fast bytes come and go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from harness.cases import GIB, WAITS
from harness.rows import on_medium, rounded, text_of, with_target
from harness.store_cases import Stage, StoreCase
from harness.store_turns import StoreTurn

NAMES = ("moontide", "mooncake")
PEER = "mooncake"
_PER_SECOND_OF_PEER = {"poll": 3.0, "sleep": 1.0}  # single calls
_P99_OF_PEER = 0.5
_BATCH_OF_PEER = 1.5
_BATCH_CPU_US = {"exists": 0.3, "get": 0.6, "put": 1.5}
_PIPELINED_CPU_US = 2.0
_GROWTH = {"pipelined": 1.3, "batch": 2.0}
_BYTES_PER_OBJECT = 200.0
_VIEW_GROWTH = 1.2  # of the time that a view takes, from the smallest object to the largest
_DATA_OF_PEER = {"memory": 2.0, "tcp": 1.0}

Key = tuple[str, str, str, str]  # contestant, part, medium, wait
Value = Callable[[dict[str, Any]], float]


@dataclass
class StoreResults:
    """The accepted turns of every contestant."""

    turns: dict[Key, list[StoreTurn]] = field(default_factory=dict)

    def of(self, key: Key, keys: int, case: StoreCase) -> list[dict[str, Any]]:
        return [turn.cases[keys, case.name] for turn in self.turns.get(key, []) if (keys, case.name) in turn.cases]


def _key(name: str, part: str, medium: str, wait: str) -> Key:
    """Where a contestant's figures for a row come from: Mooncake has one way for bytes."""
    return name, part, "tcp" if name == PEER else medium, wait


def _row(
    case: str, metric: str, unit: str, better: str, values: dict[str, float | None], **more: Any
) -> dict[str, Any]:
    peers = {name: rounded(value) for name, value in values.items() if name != "moontide"}
    mine = rounded(values.get("moontide"))
    row: dict[str, Any] = {"case": case, "metric": metric, "unit": unit, "better": better, "moontide": mine}
    row.update(peers=peers, limit=None, medium="best", wait="", cpu_s={}, turns={}, void=False, notes=[])
    return {**row, **more}


def _beside(row: dict[str, Any], times: float) -> dict[str, Any]:
    """The row with its target: so many times the peer's figure."""
    peer = row["peers"].get(PEER)
    target = None if peer is None else times * peer
    return with_target(row, target, f"{times:.3g} x {PEER}" if times != 1 else f"ahead of {PEER}")


def _medians(found: dict[str, list[dict[str, Any]]], value: Value) -> dict[str, float | None]:
    return {name: median(map(value, each)) if each else None for name, each in found.items()}


def _columns(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """CPU seconds of all processes for a call, and how many turns the medians are of."""
    cpu = _medians(found, lambda r: r["cpu_s"] / r["calls"])
    return {
        "cpu_s": {name: rounded(value) for name, value in cpu.items() if value is not None},
        "turns": {name: len(each) for name, each in found.items() if each},
    }


def keys_per_second(result: dict[str, Any]) -> float:
    return float(result["keys_per_call"] / result["mean_us"] * 1e6)


def master_us_per_key(result: dict[str, Any]) -> float:
    return float(result["master_cpu_s"] * 1e6 / (result["calls"] * result["keys_per_call"]))


def gb_per_second(result: dict[str, Any]) -> float:
    return float(result["payload_bytes"] / result["calls"] / result["p50_us"] / 1e3)


def metadata_rows(results: StoreResults, stage: Stage) -> list[dict[str, Any]]:
    out = []
    for wait in WAITS:
        for case in stage.cases:
            found = {n: results.of(_key(n, "metadata", "memory", wait), stage.keys, case) for n in NAMES}
            more = {"wait": wait, **_columns(found)}
            rate = _row(case.name, "rate", "keys/s", "higher", _medians(found, keys_per_second), **more)
            if case.kind != "single":
                out.append(_beside(rate, _BATCH_OF_PEER) if case.kind == "batch" else rate)
                continue
            times = _PER_SECOND_OF_PEER[wait]
            p50, p99 = (
                _row(case.name, metric, "us", "lower", _medians(found, lambda r, m=metric: r[f"{m}_us"]), **more)  # type: ignore[misc]
                for metric in ("p50", "p99")
            )
            out += [_beside(p50, 1 / times), _beside(p99, _P99_OF_PEER), _beside(rate, times)]
    return out


def cpu_rows(results: StoreResults, stage: Stage) -> list[dict[str, Any]]:
    """What the master pays for a key. It sleeps when there is nothing to do, or polling would be counted."""
    out = []
    for case in stage.cases:
        if case.kind == "single":
            continue
        found = {n: results.of(_key(n, "metadata", "memory", "sleep"), stage.keys, case) for n in NAMES}
        name = f"master's CPU, {case.name}"
        row = _row(name, "CPU", "us/key", "lower", _medians(found, master_us_per_key), wait="sleep", **_columns(found))
        target = _BATCH_CPU_US[case.op] if case.kind == "batch" else _PIPELINED_CPU_US
        out.append(with_target(row, target, f"{target:g} us"))
    return out


def growth_rows(results: StoreResults, stages: list[Stage]) -> list[dict[str, Any]]:
    """The master's CPU per key with many objects over that with few, within a turn; and its memory per object."""
    out = []
    first = stages[0]
    key = _key("moontide", "growth", "memory", "sleep")
    turns = results.turns.get(key, [])
    for stage in stages[1:]:
        for case in stage.cases:
            ratios = [
                master_us_per_key(turn.cases[stage.keys, case.name])
                / master_us_per_key(turn.cases[first.keys, case.name])
                for turn in turns
                if (stage.keys, case.name) in turn.cases
            ]
            name = f"master's CPU, {case.name}: {stage.keys:,} objects over {first.keys:,}"
            values = {"moontide": median(ratios) if ratios else None}
            row = _row(name, "growth", "x", "lower", values, wait="sleep", turns={"moontide": len(ratios)})
            out.append(with_target(row, _GROWTH[case.kind], f"{_GROWTH[case.kind]:g} x"))
    return out + [memory_row(results, stage) for stage in stages]


def memory_row(results: StoreResults, stage: Stage) -> dict[str, Any]:
    values: dict[str, float | None] = {}
    turns: dict[str, int] = {}
    for name in NAMES:
        found = [
            turn.memory[stage.keys]
            for turn in results.turns.get(_key(name, "growth", "memory", "sleep"), [])
            if stage.keys in turn.memory
        ]
        values[name] = median(found) if found else None
        if found:
            turns[name] = len(found)
    name = f"master's memory for an object, {stage.keys:,} of them"
    row = _row(name, "RSS", "bytes", "lower", values, turns=turns)
    return with_target(row, _BYTES_PER_OBJECT, f"{_BYTES_PER_OBJECT:g} bytes")


def data_rows(results: StoreResults, cases: tuple[StoreCase, ...]) -> list[dict[str, Any]]:
    out = []
    for medium in ("memory", "tcp"):
        for case in cases:
            found, notes = {}, []
            for name in NAMES:
                key = _key(name, "data", medium, "poll")
                each = results.of(key, 0, case)
                found[name] = [r for r in each if on_medium(key[2], r)]
                if each and not found[name]:
                    notes.append(f"{name}: not on {key[2]}, as lo's counter shows")
            row = _row(case.name, "rate", "GB/s", "higher", _medians(found, gb_per_second), medium=medium, notes=notes)
            row.update(_columns(found))
            per_gib = _medians(found, lambda r: r["cpu_s"] / r["payload_bytes"] * GIB)
            row["cpu_s_per_gib"] = {name: rounded(value) for name, value in per_gib.items() if value is not None}
            out.append(_beside(row, _DATA_OF_PEER[medium]))
    return out


def view_rows(results: StoreResults, cases: tuple[StoreCase, ...]) -> list[dict[str, Any]]:
    """No peer has views: what one costs, and that it costs the same for all sizes."""
    out = []
    key = _key("moontide", "views", "memory", "poll")
    for case in cases:
        found = {"moontide": results.of(key, 0, case)}
        p50 = _medians(found, lambda r: r["p50_us"])
        out.append(_row(case.name, "p50", "us", "lower", p50, medium="memory", wait="poll", **_columns(found)))
    first, last = (results.of(key, 0, case) for case in (cases[0], cases[-1]))
    ratios = [large["p50_us"] / small["p50_us"] for small, large in zip(first, last, strict=False)]
    values = {"moontide": median(ratios) if ratios else None}
    name = f"{cases[-1].name} over that of {cases[0].name.removeprefix('view of ')}"
    row = _row(name, "growth", "x", "lower", values, medium="memory", wait="poll", turns={"moontide": len(ratios)})
    return [*out, with_target(row, _VIEW_GROWTH, f"{_VIEW_GROWTH:g} x")]


def store_table(rows: list[dict[str, Any]]) -> str:
    lines = [["medium", "wait", "case", "", *NAMES, "target", "met"]]
    for r in rows:
        target = f"{'<' if r['better'] == 'lower' else '>'}{text_of(r['target'])}" if r.get("target") else ""
        met = {True: "yes", False: "no", None: ""}[r.get("met")]
        unit = r["unit"] if r["metric"] == "rate" else f"{r['metric']} {r['unit']}"
        values = [text_of(r["moontide"]), text_of(r["peers"].get(PEER))]
        lines.append([r["medium"], r["wait"], r["case"], unit, *values, target, met + ("*" if r["notes"] else "")])
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = []
    for line in lines:
        cells = enumerate(zip(line, widths, strict=True))
        text.append("  ".join(c.rjust(w) if i in (4, 5, 6) else c.ljust(w) for i, (c, w) in cells).rstrip())
    return "\n".join(text + sorted({f"* {note}" for r in rows for note in r["notes"]}))
