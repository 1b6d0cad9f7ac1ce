"""`moontide top`."""

from __future__ import annotations

import threading

import click
import msgspec

from moontide.config import parse_duration
from moontide.observe.top import Look, Watcher, table

__all__ = ["top"]

_CLEAR = "\x1b[H\x1b[2J"


@click.command()
@click.argument("addresses", nargs=-1, required=True, metavar="ADDRESS...")
@click.option("--interval", default="1s", metavar="TIME", show_default=True, help="Between two looks.")
@click.option("--once", is_flag=True, help="Look twice, print once, and end; status 1 if an address does not answer.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per address and line.")
def top(addresses: tuple[str, ...], interval: str, once: bool, as_json: bool) -> None:
    """Show what processes with an HTTP listener (http_listen) do: rates, times per path and stage, the oldest transfer.

    An ADDRESS is HOST:PORT, or a URL to which /metrics is added.
    """
    seconds = parse_duration(interval, option="--interval")
    watcher = Watcher(addresses)
    pause = threading.Event()
    watcher.look()
    while True:
        pause.wait(seconds)
        looks = watcher.look()
        click.echo(_shown(looks, as_json, clear=not once and not as_json))
        if once:
            raise click.exceptions.Exit(1 if any(look.error for look in looks) else 0)


def _shown(looks: list[Look], as_json: bool, clear: bool) -> str:
    if as_json:
        return "\n".join(msgspec.json.encode(look).decode() for look in looks)
    return (_CLEAR if clear else "") + table(looks)
