"""The facts that `moontide doctor` goes by, as they are recorded, and what is said about them.

An `error` is the system's own words, empty where all is well. None is "this system does not say".
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Finding", "HugePages", "Library", "Nic", "Port", "Server", "Status", "System"]


Status = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """One answer. `fail`: something that was asked for cannot work. `warn`: it works, and not as it could."""

    check: str
    status: Status
    text: str
    remedy: str = ""


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """An address of the configuration, listened at for a moment."""

    option: str
    address: str
    error: str = ""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server of the configuration, connected to for a moment."""

    option: str
    address: str
    error: str = ""


class Nic(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface that is up, loopback left out. `physical`: there is a device behind it."""

    name: str
    mtu: int
    physical: bool = True


class HugePages(msgspec.Struct, frozen=True, kw_only=True):
    """Reserved pages of one size."""

    size: int
    total: int
    free: int


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """A device library, loaded for a moment, and the devices that would need it."""

    name: str
    purpose: str
    error: str = ""
    missing: bool = False
    """The loader found no such file; else the error is about a file that is there."""
    devices: list[str] = []


class System(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as this process sees it. The defaults are what a healthy one says."""

    host_name: str = "node"
    host_addresses: list[str] = []
    host_error: str = ""
    ports: list[Port] = []
    servers: list[Server] = []
    nics: list[Nic] = []
    proxies: dict[str, str] = {}
    """Variable → value; a password in it is not recorded."""
    clock_synchronized: bool | None = True
    clock_error: str = ""
    kernel: str = "6.1.0"
    pidfd_error: str = ""
    memfd_error: str = ""
    io_uring_error: str = ""
    io_uring_disabled: int | None = 0
    """sysctl kernel.io_uring_disabled: 0 for nobody, 1 for the unprivileged, 2 for all."""
    ptrace_scope: int | None = 0
    """sysctl kernel.yama.ptrace_scope: 0 same user, 1 descendants, 2 administrators, 3 nobody."""
    cross_memory_error: str = ""
    capabilities: list[str] = []
    """Those of CAP_IPC_LOCK and CAP_SYS_PTRACE that this process has."""
    seccomp: bool = False
    memlock_bytes: int | None = None
    """None: unlimited."""
    open_files: int = 65536
    open_files_max: int = 65536
    shm_bytes: int | None = 8 << 30
    """Size of /dev/shm; None: it is not there."""
    shm_free_bytes: int | None = 8 << 30
    huge_pages: list[HugePages] = []
    libraries: list[Library] = []
    rdma_providers: int = 0
    """Files that tell libibverbs which driver is for which device."""
