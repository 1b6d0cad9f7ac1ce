"""What is near to what in a machine: memory, NICs, accelerators, disks.

``discover()`` reads it from the kernel; `moontide topology` shows it. All values are plain and can be encoded as JSON.
Speeds are in Mbit/s, sizes in bytes; None is what the machine does not say.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from moontide import _core
from moontide.config import Config
from moontide.errors import Invalid, NotFound

__all__ = [
    "Disk",
    "Gpu",
    "Level",
    "Nic",
    "Node",
    "Place",
    "Ranked",
    "Ranks",
    "RdmaPort",
    "Topology",
    "discover",
    "record",
]

Level = Literal["same-switch", "same-root-complex", "same-node", "same-socket", "other-socket", "unknown"]
"""Nearest first. The first two are about PCI and exist between devices only."""

_RECORDING_BYTES_MAX = 16 << 20


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node."""

    id: int
    socket: int | None
    cpus: list[int]
    """Empty: memory without CPUs (CXL)."""
    memory_bytes: int
    distances: list[int]
    """To each of the nodes, in their order; 10 is local."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a device is attached."""

    pci: str
    """Its address, or empty for what is on no PCI bus."""
    root: str
    """The root complex."""
    bridges: list[str]
    """From the root port down to the one right above the device."""
    node: int | None
    """NUMA node."""


class RdmaPort(msgspec.Struct, frozen=True, kw_only=True):
    """A port of an RDMA device."""

    number: int
    active: bool
    link_layer: str
    speed_mbps: int


class Nic(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface, an RDMA device, or both."""

    name: str
    """Of the interface; of the RDMA device where there is no interface."""
    place: Place
    interface: bool
    physical: bool
    """False for a bridge, a veth, a tunnel."""
    up: bool
    operstate: str
    master: str
    """The bond or bridge that it is a port of; that one is to be used then."""
    mtu: int
    speed_mbps: int
    """0: not known."""
    rdma_device: str
    rdma_ports: list[RdmaPort]


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """An accelerator. Numbered by PCI address, as CUDA does with CUDA_DEVICE_ORDER=PCI_BUS_ID."""

    name: str
    place: Place
    vendor: str
    vendor_id: int
    device_id: int


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """An NVMe controller."""

    name: str
    place: Place
    transport: str


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """A device as seen from some memory."""

    name: str
    level: Level
    numa_distance: int
    """0: not known."""
    hops: int
    """Bridges on the way, below a common switch."""
    preferred: bool
    """Of the best group; empty groups aside, that is the one to use."""
    usable: bool
    """False for a NIC that is down, or is a port of a bond or bridge."""


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The devices, best first."""

    nics: list[Ranked]
    gpus: list[Ranked]
    disks: list[Ranked]


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """A machine."""

    nodes: list[Node]
    nics: list[Nic]
    gpus: list[Gpu]
    disks: list[Disk]
    locations: dict[str, Ranks]
    """Memory → its devices. "cpu:0": of NUMA node 0; "cxl:2": of node 2, without CPUs; "gpu:3": of that accelerator."""
    notes: list[str]
    """What was strange."""


def _source(fixture: str | Path | None) -> tuple[str, bool]:
    """(a folder, False) or (the text of a recording, True)."""
    path = Path("/sys" if fixture is None else fixture)
    if path.is_dir():
        return str(path), False
    try:
        with path.open("rb") as file:
            data = file.read(_RECORDING_BYTES_MAX + 1)
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}") from None
    try:
        return data.decode("ascii"), True
    except UnicodeDecodeError:
        raise Invalid(f"{path}: no recording: it is no plain text") from None


def discover(config: Config | None = None, *, fixture: str | Path | None = None) -> Topology:
    """The topology of this machine, or of `fixture`: a file made by `record`, or a folder with a sysfs in it.

    The NICs are those that the configuration allows (`nics`, `nics_excluded`). Blocks while the drivers answer. Raises
    NotFound if `fixture` or every NIC in `nics` is missing, Invalid for a recording that is none.
    """
    config = config or Config()
    source, recording = _source(fixture)
    found = _core.discover_topology(source, recording, list(config.nics), list(config.nics_excluded))
    return msgspec.convert(found, Topology)


def record(*, fixture: str | Path | None = None) -> str:
    """A text from which `discover` finds the same as from the kernel.

    It holds what discovery reads and nothing that tells which machine it is: no addresses, serial numbers or host
    names; interfaces with names that somebody chose, or that are made from an address, are renamed.
    """
    source, recording = _source(fixture)
    return _core.record_topology(source, recording)
