"""The picture of a run: for each row how the project and its peers stand to one another."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from harness.environments import SetupError

_COLOURS = {"moontide": "#1f77b4", "mooncake": "#ff7f0e", "nixl": "#2ca02c"}
_ROW_INCHES = 0.22


def shares(row: dict[str, Any]) -> dict[str, float]:
    """Each contestant's figure over the best one's, so that 1 is best whatever is measured."""
    values = {"moontide": row["moontide"], **row["peers"]}
    known = {name: value for name, value in values.items() if value is not None and value > 0}
    if not known or row["void"]:
        return {}
    if row["better"] == "higher":
        best = max(known.values())
        return {name: value / best for name, value in known.items()}
    best = min(known.values())
    return {name: best / value for name, value in known.items()}


def target_share(row: dict[str, Any]) -> float | None:
    """Where the row's target lies on the same scale."""
    target, drawn = row.get("target"), shares(row)
    if target is None or "moontide" not in drawn:
        return None
    ratio = target / row["moontide"]
    return float(drawn["moontide"] * (ratio if row["better"] == "higher" else 1 / ratio))


def label_of(row: dict[str, Any]) -> str:
    words = [row["medium"], row.get("wait", ""), row["case"], "" if row["metric"] == "rate" else row["metric"]]
    return ", ".join(word for word in words if word)


def draw(document: dict[str, Any], path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise SetupError("a picture needs matplotlib: run `make build`, which brings it") from None
    rows = [row for row in document["rows"] if len(shares(row)) > 1]
    if not rows:
        raise SetupError("nothing to draw: no row has figures of two contestants")
    figure = Figure(figsize=(11, 1.5 + _ROW_INCHES * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, colour in _COLOURS.items():
        drawn = [(shares(row)[name], at) for at, row in enumerate(rows) if name in shares(row)]
        if drawn:
            axes.plot(*zip(*drawn, strict=True), "o", color=colour, label=name, markersize=5)
    targets = [(share, at) for at, row in enumerate(rows) if (share := target_share(row)) is not None]
    if targets:
        axes.plot(*zip(*targets, strict=True), "|", color="black", label="target", markersize=11)
    axes.set_yticks(range(len(rows)), [label_of(row) for row in rows], fontsize=7)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xscale("log")
    lowest = min((share for share, _ in targets), default=1.0)
    lowest = min([lowest, *(min(shares(row).values()) for row in rows)])
    axes.set_xlim(10 ** (math.floor(math.log10(lowest) * 2) / 2 - 0.05), None)
    axes.set_xlabel("figure of the row over the best one in it (1: the best; further left: worse by so much)")
    axes.grid(axis="both", linewidth=0.3)
    quick = ", --quick: not to be quoted" if document["quick"] else ""
    axes.set_title(f"{document['machine']['cpu']}, {document['machine']['cores']} cores, {document['taken']}{quick}")
    axes.legend(loc="lower left", fontsize=8)
    figure.savefig(path, dpi=110)
