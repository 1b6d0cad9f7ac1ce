"""`moontide bench policy`: a trace of requests replayed against each eviction policy, beside one that knows the future.

A block hits when the whole prefix before it hits too: a prefix cache can use nothing else. What a request misses is
stored after it, and then victims go until the capacity holds. Capacities are shares of the trace's unique blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import msgspec

from moontide import _core
from moontide.bench.traces import Request

__all__ = ["CAPACITIES", "OPTIMUM", "Report", "draw", "measure", "table"]

CAPACITIES = (1, 2, 5, 10, 20, 50)
OPTIMUM = "optimum"
_COLOURS = ("#0b6e4f", "#1f6fb2", "#c8553d", "#8a6fb0", "#555555")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result. Hit ratios are per cent of all blocks, one per capacity."""

    trace: str
    requests: int
    blocks: int
    unique_blocks: int
    capacities_percent: list[int]
    hit_percent: dict[str, list[float]]  # by policy, the optimum last


def measure(requests: Sequence[Request], name: str, capacities: Sequence[int] = CAPACITIES) -> Report:
    """Replays the requests, which are in the order of their times, at each capacity."""
    trace = _core.Trace(
        [request.timestamp for request in requests],
        [len(request.hash_ids) for request in requests],
        [block for request in requests for block in request.hash_ids],
    )

    def ratios(policy: str) -> list[float]:
        counts = [max(1, trace.unique_blocks * percent // 100) for percent in capacities]
        hits = [trace.replay_optimum(n) if policy == OPTIMUM else trace.replay(policy, n) for n in counts]
        return [round(100 * hit / trace.blocks, 2) for hit in hits]

    return Report(
        trace=name,
        requests=len(requests),
        blocks=trace.blocks,
        unique_blocks=trace.unique_blocks,
        capacities_percent=list(capacities),
        hit_percent={policy: ratios(policy) for policy in (*_core.policy_names, OPTIMUM)},
    )


def table(report: Report) -> Iterator[str]:
    """Lines of text: a row per policy, a column per capacity, and the mean."""
    yield f"{report.trace}: {report.requests} requests, {report.blocks} blocks, {report.unique_blocks} unique"
    yield f"{'hit %':<10}" + "".join(f"{f'{c} %':>8}" for c in report.capacities_percent) + f"{'mean':>8}"
    for policy, ratios in report.hit_percent.items():
        mean = sum(ratios) / len(ratios)
        yield f"{policy:<10}" + "".join(f"{ratio:>8.2f}" for ratio in ratios) + f"{mean:>8.2f}"


def draw(report: Report) -> str:
    """The same as a picture (SVG): hit ratio over capacity."""
    width, height, left, bottom, top, right = 640, 360, 56, 44, 34, 110
    capacities = report.capacities_percent
    most = max(10.0, *(ratio for ratios in report.hit_percent.values() for ratio in ratios))
    step = 10 if most <= 60 else 20
    ceiling = step * (int(most / step) + 1)

    def x(index: int) -> float:
        return left + (width - left - right) * index / max(1, len(capacities) - 1)

    def y(ratio: float) -> float:
        return height - bottom - (height - bottom - top) * ratio / ceiling

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        "<style>text{font-size:12px}</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="20">{escape(report.trace)}: blocks found, % of all</text>',
    ]
    for ratio in range(0, ceiling + 1, step):
        lines.append(f'<line x1="{left}" x2="{x(len(capacities) - 1):.1f}" y1="{y(ratio):.1f}" y2="{y(ratio):.1f}" '
                     f'stroke="#ddd"/>')  # fmt: skip
        lines.append(f'<text x="{left - 8}" y="{y(ratio) + 4:.1f}" text-anchor="end">{ratio}</text>')
    for index, capacity in enumerate(capacities):
        lines.append(f'<text x="{x(index):.1f}" y="{height - 24}" text-anchor="middle">{capacity} %</text>')
    lines.append(f'<text x="{left}" y="{height - 6}">capacity, share of the unique blocks</text>')
    for number, (policy, ratios) in enumerate(report.hit_percent.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        dashes = ' stroke-dasharray="5 4"' if policy == OPTIMUM else ""
        points = " ".join(f"{x(index):.1f},{y(ratio):.1f}" for index, ratio in enumerate(ratios))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        row = top + 16 * number + 8
        lines.append(f'<line x1="{width - right + 14}" x2="{width - right + 34}" y1="{row}" y2="{row}" '
                     f'stroke="{colour}" stroke-width="2"{dashes}/>')  # fmt: skip
        lines.append(f'<text x="{width - right + 40}" y="{row + 4}">{escape(policy)}</text>')
    return "\n".join([*lines, "</svg>", ""])
