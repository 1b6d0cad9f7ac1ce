"""Which addresses an engine listens at besides its own: what `rails` of the configuration means on this machine."""

from __future__ import annotations

import fcntl
import socket
import struct

from moontide.access import listening_address
from moontide.config import Config
from moontide.errors import Invalid
from moontide.topology import Topology, discover

__all__ = ["rail_addresses"]

_SIOCGIFADDR = 0x8915


def _address_of(interface: str) -> str | None:
    """The IPv4 address of a network interface; None where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(asker.fileno(), _SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _preferred(topology: Topology) -> list[str]:
    """The interfaces that are best for the memory of some NUMA node, in the order in which they were found."""
    best = {
        nic.name
        for location, ranks in topology.locations.items()
        if location.startswith("cpu:")
        for nic in ranks.nics
        if nic.usable and nic.preferred
    }
    return [nic.name for nic in topology.nics if nic.interface and nic.name in best]


def rail_addresses(config: Config) -> list[str]:
    """The addresses to listen at, numbers only, for `rails` of the configuration.

    Each is "host:port"; the host may be a network interface of this machine, or "auto": all interfaces that the
    topology prefers, without those of `nics_excluded`. Invalid: an interface without an IPv4 address, none found by
    "auto". Otherwise as `moontide.access.listening_address`.
    """
    interfaces = {name for _, name in socket.if_nameindex()}
    addresses: list[str] = []
    for rail in config.rails:
        host, _, port = rail.rpartition(":")
        if host == "auto":
            found = [address for name in _preferred(discover(config)) if (address := _address_of(name)) is not None]
            if not found:
                raise Invalid(f"rails = {rail!r}: no network interface with an IPv4 address but loopback")
            addresses += [f"{address}:{port}" for address in found]
        elif host in interfaces:
            own = _address_of(host)
            if own is None:
                raise Invalid(f"rails = {rail!r}: {host} has no IPv4 address")
            addresses.append(f"{own}:{port}")
        else:
            addresses.append(listening_address(rail, option="rails"))
    return addresses
