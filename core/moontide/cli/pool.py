"""The subcommands that look into a pool and change what is in it: status, ls, stat, put, get, rm, pin, drain."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import click
import msgspec

from moontide.cli.options import config_options
from moontide.cli.serving import describe_counts
from moontide.config import Config, parse_duration
from moontide.errors import Invalid, MoontideError, NotFound
from moontide.store import ObjectInfo, Store
from moontide.store.keys import key_of, text_of

__all__ = ["drain", "get", "ls", "pin", "put", "rm", "stat", "status"]

_BATCH = 1000
_LOOK_EVERY_S = 0.5

_as_json = click.option("--json", "as_json", is_flag=True, help="JSON instead of words.")
_pool = config_options("master", master="HOST:PORT")


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say how long an object is kept."""
    pins = click.Choice(["none", "soft", "hard"])
    function = click.option("--ttl", default="", metavar="TIME", help="Gone after that; without: no end.")(function)
    return click.option("--pin", "how", type=pins, default="none", show_default=True, help="Evicted last, or never.")(
        function
    )


@contextlib.contextmanager
def _store(config: Config) -> Iterator[Store]:
    if config.master is None:
        raise Invalid("no pool is named: give --master HOST:PORT, or set `master`")
    with Store(config.master, config=config) as store:
        yield store


def _ttl(text: str) -> float | None:
    return parse_duration(text, option="--ttl") if text else None


def _line(info: ObjectInfo, as_json: bool) -> str:
    places = [place._asdict() for place in info.places]
    if as_json:
        told = {"key": text_of(info.key), "bytes": info.length, **({"places": places} if places else {})}
        return msgspec.json.encode(told).decode()
    return f"{info.length:>14} {text_of(info.key)}" + "".join(
        f"  {place.node}@{place.address}" for place in info.places
    )


def _report(keys: Sequence[str], results: Sequence[object]) -> None:
    """Says what went wrong, by key; ends with status 1 if anything did."""
    failed = [(key, result) for key, result in zip(keys, results, strict=True) if isinstance(result, MoontideError)]
    for key, error in failed:
        click.echo(f"{key}: {error}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


@click.command()
@_pool
@_as_json
def status(config: Config, as_json: bool) -> None:
    """Show the pool's numbers: nodes, objects, bytes, what was found, missed, evicted."""
    with _store(config) as store:
        counts = store.stats()
    click.echo(msgspec.json.encode(counts).decode() if as_json else describe_counts(counts), nl=as_json)


@click.command()
@click.argument("prefix", default="")
@click.option("--limit", type=click.IntRange(min=0), default=0, metavar="N", help="At most so many; 0: all.")
@_pool
@_as_json
def ls(prefix: str, limit: int, config: Config, as_json: bool) -> None:
    """List objects whose key begins with PREFIX: bytes and key, in the order of the keys.

    A key that is not printable text is shown, and may be given, as hex: and its bytes.
    """
    with _store(config) as store:
        found = store.list(key_of(prefix), limit=limit or None)
    for info in found:
        click.echo(_line(info, as_json))


@click.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@_pool
@_as_json
def stat(keys: tuple[str, ...], config: Config, as_json: bool) -> None:
    """Show the length of objects and where their replicas lie: node@address. Status 1 if one is not there."""
    with _store(config) as store:
        found = store.stat_many([key_of(key) for key in keys])
    for info in found:
        if isinstance(info, ObjectInfo):
            click.echo(_line(info, as_json))
    _report(keys, found)


@click.command()
@click.argument("key")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--replicas", type=click.IntRange(1, 8), default=1, show_default=True, help="On as many nodes.")
@_kept
@_pool
def put(key: str, file: IO[bytes], replicas: int, how: str, ttl: str, config: Config) -> None:
    """Store the bytes of FILE, or of standard input, under KEY. An object that is there already is not replaced."""
    with _store(config) as store:
        store.put(key_of(key), file.read(), pin=how, ttl=_ttl(ttl), replicas=replicas)


@click.command()
@click.argument("key")
@click.option("-o", "--output", type=click.File("wb", lazy=True), default="-", help="Instead of standard output.")
@_pool
def get(key: str, output: IO[bytes], config: Config) -> None:
    """Write the bytes of an object."""
    with _store(config) as store:
        value = store.get(key_of(key))
    output.write(value)


@click.command()
@click.argument("keys", nargs=-1, metavar="[KEY...]")
@click.option("--prefix", default="", help="Also all that begin so.")
@_pool
def rm(keys: tuple[str, ...], prefix: str, config: Config) -> None:
    """Remove objects. Status 1 if a KEY is not there."""
    if not keys and not prefix:
        raise click.UsageError("give a KEY or a --prefix")
    with _store(config) as store:
        results: list[object] = list(store.remove_many([key_of(key) for key in keys]))
        more = [info.key for info in store.list(key_of(prefix))] if prefix else []
        for begin in range(0, len(more), _BATCH):
            removed = store.remove_many(more[begin : begin + _BATCH])
            results += [None if isinstance(result, NotFound) else result for result in removed]
    _report([*keys, *map(text_of, more)], results)


@click.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@_kept
@_pool
def pin(keys: tuple[str, ...], how: str, ttl: str, config: Config) -> None:
    """Say anew how long objects are kept; without options like any other. Status 1 if one is not there."""
    with _store(config) as store:
        results = store.keep_many([key_of(key) for key in keys], pin=how, ttl=_ttl(ttl))
    _report(keys, results)


@click.command()
@click.argument("node")
@click.option("--wait", is_flag=True, help="Until nothing is left there.")
@click.option("--timeout", default="", metavar="TIME", help="With --wait: at most so long; without: no end.")
@click.option("--cancel", is_flag=True, help="No more: the node takes objects again.")
@_pool
def drain(node: str, wait: bool, timeout: str, cancel: bool, config: Config) -> None:
    """Have the objects of NODE go to other nodes, so that it may be stopped.

    NODE is an id, as `stat` and `segments` show it. Prints what still lies there; what no other node has room for
    stays. Status 1 if something is left at the end of --wait.
    """
    until = time.monotonic() + parse_duration(timeout, option="--timeout") if timeout else None
    with _store(config) as store:
        left = store.drain(node, cancel=cancel)
        click.echo(f"{left.objects} objects, {left.nbytes} bytes lie there")
        while wait and not cancel and left.objects and (until is None or time.monotonic() < until):
            time.sleep(_LOOK_EVERY_S)
            before, left = left, store.drain(node)
            if left != before:
                click.echo(f"{left.objects} objects, {left.nbytes} bytes are left")
    if wait and not cancel and left.objects:
        raise click.exceptions.Exit(1)
