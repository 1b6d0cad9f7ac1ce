"""The subcommands that ask a master's HTTP listener: health, segments."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from moontide.config import show
from moontide.errors import Invalid, Unavailable

__all__ = ["health", "segments"]

_BODY_BYTES_MAX = 4 << 20

_address = click.argument("address", metavar="ADDRESS")
_timeout = click.option("--timeout", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Seconds.")
_as_json = click.option("--json", "as_json", is_flag=True, help="JSON instead of words.")


def _ask(address: str, path: str, timeout: float) -> Any:
    """The JSON at http://ADDRESS/PATH, also that of an error's status. Unavailable: no such answer."""
    url = address if "://" in address else f"http://{address}"
    if not url.startswith(("http://", "https://")):
        raise Invalid(f"{address!r}: write HOST:PORT or an http URL")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        try:
            answer = opener.open(url.rstrip("/") + path, timeout=timeout)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return msgspec.json.decode(answer.read(_BODY_BYTES_MAX))
    except (OSError, msgspec.DecodeError) as error:
        raise Unavailable(f"{url}{path}: {error}") from None


@click.command()
@_address
@_timeout
@_as_json
def health(address: str, timeout: float, as_json: bool) -> None:
    """Say whether the pool can be used; status 1 if it cannot, or does not answer.

    The master puts, reads, compares and removes an object of its own. ADDRESS is its http_listen.
    """
    found = _ask(address, "/health", timeout)
    if as_json:
        click.echo(json.dumps(found))
    else:
        click.echo("\n".join([found["state"], *(f"  {reason}" for reason in found["reasons"])]))
    if found["state"] == "unready":
        raise click.exceptions.Exit(1)


@click.command()
@_address
@_timeout
@_as_json
def segments(address: str, timeout: float, as_json: bool) -> None:
    """Show the nodes of the pool and what they lend. ADDRESS is the master's http_listen."""
    nodes = _ask(address, "/v1/pool", timeout)["nodes"]
    if as_json:
        for node in nodes:
            click.echo(json.dumps(node))
        return
    click.echo(f"{'address':<24} {'state':<8} {'objects':>9} {'in use':>12} {'lent':>10}  hot cache")
    for node in nodes:
        used = sum(node[f"{kind}_bytes"] for kind in ("committed", "unfinished", "retiring"))
        lent = show("lend", node["capacity_bytes"])
        row = f"{node['address']:<24} {node['state']:<8} {node['objects']:>9} {used:>12} {lent:>10}"
        click.echo(f"{row}  {_hot_cache(node)}")


def _hot_cache(node: Mapping[str, Any]) -> str:
    if not node["hot_capacity_bytes"]:
        return "-"
    size = show("hot_cache", node["hot_capacity_bytes"])
    return f"{node['hot_used_bytes']} of {size}, {node['hot_hits']} hits, {node['hot_misses']} misses"
