"""`moontide topology`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from moontide.cli.options import config_options
from moontide.config import Config
from moontide.errors import Invalid
from moontide.topology import Place, Ranked, Topology, discover, record
from moontide.topology.words import cpu_ranges, nic_facts, size_text

__all__ = ["topology"]


def _at(place: Place) -> str:
    where = [f"node {place.node}" if place.node is not None else "node not known"]
    if place.pci:
        where.append(" > ".join([place.root, *place.bridges, place.pci]))
    return ", ".join(where)


def _machine(found: Topology) -> Iterator[str]:
    for node in found.nodes:
        socket = "socket not known" if node.socket is None else f"socket {node.socket}"
        cpus = f"CPUs {cpu_ranges(node.cpus)}" if node.cpus else "no CPUs"
        yield f"node {node.id:<3} {socket}, {cpus}, {size_text(node.memory_bytes)}, distances {node.distances}"
    devices: list[tuple[str, str, Place]] = []
    devices += [(gpu.name, f"{gpu.vendor} {gpu.vendor_id:04x}:{gpu.device_id:04x}", gpu.place) for gpu in found.gpus]
    devices += [(nic.name, nic_facts(nic), nic.place) for nic in found.nics]
    devices += [(disk.name, disk.transport or "transport not known", disk.place) for disk in found.disks]
    names = max((len(name) for name, _, _ in devices), default=0)
    facts = max((len(fact) for _, fact, _ in devices), default=0)
    for name, fact, place in devices:
        yield f"{name:<{names}}  {fact:<{facts}}  {_at(place)}"


def _ranks(title: str, devices: list[Ranked]) -> Iterator[str]:
    groups: list[tuple[str, list[str]]] = []
    for device in devices:
        why = str(device.level) if device.usable else "not usable"
        if device.preferred:
            why += ", preferred"
        if not groups or groups[-1][0] != why:
            groups.append((why, []))
        groups[-1][1].append(device.name)
    for why, names in groups:
        yield f"  {title:<6} {' '.join(names)}  ({why})"
        title = ""


def _text(found: Topology) -> Iterator[str]:
    yield from _machine(found)
    for location, ranks in found.locations.items():
        yield ""
        yield location
        for title, devices in (("NICs", ranks.nics), ("GPUs", ranks.gpus), ("disks", ranks.disks)):
            yield from _ranks(title, devices)
    if found.notes:
        yield ""
    yield from (f"note: {note}" for note in found.notes)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}") from None


@click.command()
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Draw it into FILE.")
@click.option("--record", "recording", type=click.Path(path_type=Path), metavar="FILE", help="Record it into FILE.")
@click.option("--fixture", type=click.Path(path_type=Path), metavar="FILE", help="A recording instead of this machine.")
@config_options("nics", "nics_excluded", nics="NAMES", nics_excluded="NAMES")
def topology(as_json: bool, svg: Path | None, recording: Path | None, fixture: Path | None, config: Config) -> None:
    """Show which NICs, GPUs and disks are near to which memory, best first.

    A recording has the shape of the machine and nothing that tells which machine it is. FIXTURE may also be a folder
    that holds a copy of a sysfs.
    """
    if recording is not None:
        _write(recording, record(fixture=fixture))
    found = discover(config, fixture=fixture)
    if svg is not None:
        from moontide.topology.drawing import draw

        _write(svg, draw(found))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
    elif svg is None and recording is None:
        for line in _text(found):
            click.echo("".join(c if c.isprintable() else "?" for c in line))
