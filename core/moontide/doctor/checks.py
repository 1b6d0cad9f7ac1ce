"""Each check looks at one thing of a `System`: pure functions, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from moontide._addresses import is_loopback
from moontide.doctor.devices import check_libraries, check_rdma
from moontide.doctor.limits import (
    check_cross_memory,
    check_huge_pages,
    check_io_uring,
    check_kernel,
    check_memlock,
    check_open_files,
    check_shared_memory,
)
from moontide.doctor.system import Finding, Nic, System

__all__ = ["examine"]


def examine(system: System) -> list[Finding]:
    """All findings, at least one per check."""
    return [finding for check in _CHECKS for finding in check(system)]


def _check_host_name(system: System) -> Iterator[Finding]:
    name, addresses = system.host_name, ", ".join(system.host_addresses)
    if system.host_error:
        yield Finding(
            "host name",
            "warn",
            f"{name!r} does not resolve: {system.host_error}",
            f"give {name} an address in /etc/hosts or DNS, or use addresses instead of names",
        )
    elif all(is_loopback(address) for address in system.host_addresses):
        yield Finding(
            "host name",
            "warn",
            f"{name!r} resolves to {addresses}: other hosts that are told so would connect to themselves",
            f"give {name} an address of the network in /etc/hosts, or configure addresses (listen, advertise=) and no "
            "host name",
        )
    else:
        yield Finding("host name", "ok", f"{name!r} resolves to {addresses}")


def _check_ports(system: System) -> Iterator[Finding]:
    for port in system.ports:
        number = port.address.rpartition(":")[2]
        remedies = {
            "Address already in use": f"see who has it: ss -ltnp 'sport = :{number}'; end that, or choose another port",
            "Permission denied": "choose a port above 1023",
            "Cannot assign requested address": "it is no address of this host: compare with `ip address`",
        }
        what = f"{port.option} = {port.address}"
        if port.error:
            remedy = remedies.get(port.error, "choose an address and port of this host")
            yield Finding("port", "fail", f"cannot listen at {what}: {port.error}", remedy)
        else:
            yield Finding("port", "ok", f"{what} is free")


def _check_servers(system: System) -> Iterator[Finding]:
    for server in system.servers:
        what = f"{server.option} = {server.address}"
        if not server.error:
            yield Finding("server", "ok", f"{what} answers")
            continue
        lower = server.error.lower()
        if "refused" in lower or "connect call failed" in lower:
            remedy = "nothing listens there: start it, or correct the address; a server on loopback is of its host only"
        elif "timed out" in lower or "did not answer" in lower:
            remedy = "a firewall drops it, the host is down, or the process is stopped: try it from the server's host"
        elif "not known" in lower or "resolution" in lower or "no address" in lower:
            remedy = "the name does not resolve here: correct it, or write an address"
        else:
            remedy = "check the address and what runs there"
        yield Finding("server", "fail", f"{what}: {server.error}", remedy)


def _mtus(nics: list[Nic]) -> str:
    return ", ".join(f"{nic.name} {nic.mtu}" for nic in nics)


def _check_mtu(system: System) -> Iterator[Finding]:
    physical = [nic for nic in system.nics if nic.physical]
    nics = physical or system.nics
    if len({nic.mtu for nic in nics}) > 1:
        yield Finding(
            "mtu",
            "warn",
            f"the interfaces differ: {_mtus(nics)}; where switches differ too, large packets vanish without a word",
            "set one MTU on all interfaces and switch ports of a network (ip link set NAME mtu N); check a path with "
            "ping -M do -s SIZE",
        )
    elif nics:
        yield Finding("mtu", "ok", _mtus(nics))
    else:
        yield Finding("mtu", "warn", "no interface is up but loopback", "no other host can be reached: ip link")


def _check_proxies(system: System) -> Iterator[Finding]:
    proxies = [name for name in system.proxies if name.lower() != "no_proxy"]
    if not proxies:
        yield Finding("proxies", "ok", "none in the environment")
        return
    words = {
        word.strip().lower()
        for name, value in system.proxies.items()
        if name.lower() == "no_proxy"
        for word in value.split(",")
    }
    wanted = [host for host in ("127.0.0.1", "localhost") if host not in words]
    if "127.0.0.0/8" in words and "127.0.0.1" in wanted:
        wanted.remove("127.0.0.1")
    if wanted and "*" not in words:
        yield Finding(
            "proxies",
            "warn",
            f"{', '.join(proxies)} without {' and '.join(wanted)} in no_proxy: Moontide goes past proxies, inference "
            "servers and curl do not",
            "export no_proxy=127.0.0.1,localhost and the cluster's own hosts, or unset the proxies",
        )
    else:
        yield Finding("proxies", "ok", f"{', '.join(proxies)}, and no_proxy leaves loopback out")


def _check_clock(system: System) -> Iterator[Finding]:
    if system.clock_synchronized:
        yield Finding("clock", "ok", "synchronized")
        return
    state = "is not synchronized" if system.clock_synchronized is False else f"says nothing: {system.clock_error}"
    yield Finding(
        "clock",
        "warn",
        f"the kernel's clock {state}; no byte depends on it, times in logs of several hosts do",
        "run chrony or systemd-timesyncd on the host (timedatectl shows its state); a container has the host's clock",
    )


_CHECKS: tuple[Callable[[System], Iterator[Finding]], ...] = (
    _check_host_name,
    _check_ports,
    _check_servers,
    _check_mtu,
    _check_proxies,
    _check_clock,
    check_kernel,
    check_cross_memory,
    check_memlock,
    check_open_files,
    check_shared_memory,
    check_huge_pages,
    check_io_uring,
    check_rdma,
    check_libraries,
)
