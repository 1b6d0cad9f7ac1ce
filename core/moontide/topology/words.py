"""Facts of a machine in a few words, for text and drawing alike."""

from __future__ import annotations

from collections.abc import Iterable

from moontide.topology import Nic

__all__ = ["cpu_ranges", "nic_facts", "size_text", "speed_text"]


def cpu_ranges(cpus: Iterable[int]) -> str:
    """``[0, 1, 2, 8]`` as ``0-2,8``."""
    ranges: list[list[int]] = []
    for cpu in cpus:
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def size_text(nbytes: int) -> str:
    """Bytes as GiB with one digit; small sizes as MiB."""
    if nbytes >= 1 << 30:
        return f"{nbytes / (1 << 30):.1f} GiB"
    return f"{nbytes / (1 << 20):.0f} MiB"


def speed_text(mbps: int) -> str:
    """Mbit/s as Gb/s."""
    return f"{mbps / 1000:g} Gb/s" if mbps else "speed not known"


def nic_facts(nic: Nic) -> str:
    """ "400 Gb/s, up, mlx5_0 InfiniBand"."""
    facts = [speed_text(nic.speed_mbps), "up" if nic.up else "down"]
    if not nic.physical:
        facts.append("virtual")
    if nic.master:
        facts.append(f"port of {nic.master}")
    if nic.rdma_device:
        layers = sorted({port.link_layer for port in nic.rdma_ports if port.link_layer})
        facts.append(" ".join([nic.rdma_device, *layers]))
    return ", ".join(facts)
