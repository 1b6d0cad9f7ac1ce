"""`moontide bench`."""

from __future__ import annotations

import click
import msgspec

from moontide.bench.transfer import PATHS, Measurement, Shape, measure
from moontide.cli.options import config_options
from moontide.config import Config, parse_duration, parse_size
from moontide.errors import Invalid, MoontideError

_DEFAULT_BATCHES = ("4KiBx1", "4KiBx1024", "1MiBx64")
_BATCH_MAX = 4 << 30


@click.group()
def bench() -> None:
    """Measure transfers on this machine."""


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
