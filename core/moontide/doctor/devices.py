"""Checks of devices and the libraries that drive them."""

from __future__ import annotations

from collections.abc import Iterator

from moontide.doctor.system import Finding, System

__all__ = ["check_libraries", "check_rdma"]

_RDMA = "RDMA"


def check_libraries(system: System) -> Iterator[Finding]:
    """A library matters where its devices are; one that is there and does not load matters anywhere."""
    for library in system.libraries:
        devices = ", ".join(library.devices[:4]) + (", ..." if len(library.devices) > 4 else "")
        if not library.error:
            seen = f"devices: {devices}" if devices else "no devices"
            yield Finding("device library", "ok", f"{library.name} ({library.purpose}) loads; {seen}")
        elif not library.missing:
            yield Finding(
                "device library",
                "warn",
                f"{library.name} ({library.purpose}) is there and does not load: {library.error}",
                "install what it names, or remove a library of another version",
            )
        elif devices:
            yield Finding(
                "device library",
                "warn",
                f"{library.name} ({library.purpose}) is missing, and there are devices: {devices}",
                f"install the package that brings {library.name}, or mount it into the container",
            )
        else:
            yield Finding("device library", "ok", f"no {library.name} ({library.purpose}), and no device needs it")


def check_rdma(system: System) -> Iterator[Finding]:
    """libibverbs sees no device without a word when the file that names its driver is missing."""
    for library in system.libraries:
        if library.purpose != _RDMA or library.error or not library.devices:
            continue
        if system.rdma_providers == 0:
            yield Finding(
                "rdma",
                "warn",
                f"0 usable RDMA devices of {len(library.devices)}: the provider files are missing",
                "install ibverbs-providers (or the vendor's package) in this container or host",
            )
        else:
            yield Finding("rdma", "ok", f"{len(library.devices)} devices, {system.rdma_providers} provider files")
