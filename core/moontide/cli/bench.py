"""`moontide bench`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from moontide.bench.policy import draw, table
from moontide.bench.policy import measure as measure_policies
from moontide.bench.traces import FAMILIES, generate, read_trace, write_trace
from moontide.bench.transfer import PATHS, Measurement, Shape, measure
from moontide.cli.options import config_options
from moontide.config import Config, parse_duration, parse_size
from moontide.errors import Invalid, MoontideError

_DEFAULT_BATCHES = ("4KiBx1", "4KiBx1024", "1MiBx64")
_BATCH_MAX = 4 << 30


@click.group()
def bench() -> None:
    """Measure transfers on this machine, and eviction policies on a trace."""


def _parse_batch(text: str) -> Shape:
    size, cross, count = text.partition("x")
    if cross and count.isdigit() and int(count) > 0:
        shape = Shape(parse_size(size, option="--batch"), int(count))
        if shape.size > 0 and shape.nbytes <= _BATCH_MAX:
            return shape
    raise Invalid(f"--batch = {text!r}: write SIZExCOUNT, for example 1MiBx64, of at most 4GiB in all")


def _line(m: Measurement) -> str:
    batch = f"{m.size // 1024} KiB x {m.count}" if m.size % 1024 == 0 else f"{m.size} B x {m.count}"
    figures = f"{m.p50_us:>12.1f} {m.p99_us:>12.1f} {m.gb_per_s:>9.2f} {m.batches:>9}"
    return f"{m.path:<6} {m.op:<6} {batch:<16} {figures}  {m.carried_by}"


@bench.command()
@click.option("--path", "paths", multiple=True, type=click.Choice(list(PATHS)), help="Only this path; may be repeated.")
@click.option("--batch", "batches", multiple=True, metavar="SIZExCOUNT", help="For example 1MiBx64; may be repeated.")
@click.option("--time", "duration", default="1s", metavar="VALUE", help="How long to measure each line.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line instead of a table.")
@config_options("spin_us", "tcp_streams")
def transfer(paths: tuple[str, ...], batches: tuple[str, ...], duration: str, as_json: bool, config: Config) -> None:
    """Copy batches between this process and another one that it starts, over each path.

    Reads come before writes. What a path is good for depends on the machine: compare lines, not machines.
    """
    shapes = [_parse_batch(text) for text in batches or _DEFAULT_BATCHES]
    seconds = parse_duration(duration, option="--time")

    def report(measurement: Measurement) -> None:
        click.echo(msgspec.json.encode(measurement).decode() if as_json else _line(measurement))

    if not as_json:
        columns = f"{'p50 us':>12} {'p99 us':>12} {'GB/s':>9} {'batches':>9}"
        click.echo(f"{'path':<6} {'op':<6} {'batch':<16} {columns}  carried by")
    failed = []
    for path in paths or PATHS:
        try:
            measure(path, shapes, seconds, config, report)
        except MoontideError as error:
            failed.append(path)
            click.echo(f"{path}: {error}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror or error}") from error


@bench.command()
@click.option("--trace", metavar="FILE", help="Replay this one: a JSON object a line, see the manual.")
@click.option("--generate", "family", type=click.Choice(list(FAMILIES)), help="Make a trace of this family instead.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the trace that is made.")
@click.option(
    "--requests", type=click.IntRange(1, 1_000_000), default=6000, show_default=True, help="How many to make."
)
@click.option("--out", metavar="FILE", help="Write the trace that was made into FILE.")
@click.option("--json", "as_json", metavar="FILE", help="Write the figures into FILE.")
@click.option("--svg", metavar="FILE", help="Draw them into FILE.")
def policy(
    trace: str | None,
    family: str | None,
    seed: int,
    requests: int,
    out: str | None,
    as_json: str | None,
    svg: str | None,
) -> None:
    """Replay a trace of requests against every eviction policy, beside one that knows the future.

    A block hits when the whole prefix before it hits. Capacities are shares of the trace's unique blocks.
    """
    if (trace is None) == (family is None):
        raise Invalid("give one of --trace FILE and --generate FAMILY")
    if trace is not None:
        told, name = read_trace(trace), Path(trace).name
    else:
        assert family is not None
        told, name = generate(family, seed, requests), f"{family}, seed {seed}"
    if out is not None:
        write_trace(out, told)
    report = measure_policies(told, name)
    for line in table(report):
        click.echo(line)
    if as_json is not None:
        _write(as_json, msgspec.json.format(msgspec.json.encode(report)).decode() + "\n")
    if svg is not None:
        _write(svg, draw(report))
