"""Asks this machine. Each question changes nothing that stays, and ends by itself."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import re
import resource
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moontide._addresses import split_address
from moontide.config import Config, proxy_variables
from moontide.doctor.system import HugePages, Library, Nic, Port, Server, System
from moontide.errors import Invalid, MoontideError

__all__ = ["read_system"]

_LIBRARIES = (
    ("RDMA", ("libibverbs.so.1",), "/sys/class/infiniband", "*"),
    ("NVIDIA GPUs", ("libcuda.so.1",), "/dev", "nvidia[0-9]*"),
    ("GPUDirect Storage", ("libcufile.so.0", "libcufile.so"), "/dev", "nvidia-fs*"),
    ("AMD GPUs", ("libamdhip64.so", "libamdhip64.so.6", "libamdhip64.so.5"), "/dev", "kfd"),
    ("Ascend NPUs", ("libascendcl.so",), "/dev", "davinci[0-9]*"),
)
_PROVIDERS = ("/etc/libibverbs.d", "/usr/etc/libibverbs.d")
_CAPABILITIES = {"CAP_IPC_LOCK": 14, "CAP_SYS_PTRACE": 19}
# The same numbers on every architecture: system calls since 2019 are numbered together.
_IO_URING_SETUP, _PIDFD_OPEN = 425, 434
_F_ADD_SEALS, _F_SEAL_FUTURE_WRITE = 1033, 0x10
_STA_UNSYNC, _TIME_ERROR = 0x40, 5
_PASSWORD = re.compile(r"//[^/@]*@")

_libc = ctypes.CDLL(None, use_errno=True)


class _Timex(ctypes.Structure):
    """struct timex of <sys/timex.h> up to the status; the kernel fills what follows."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("frequency", ctypes.c_long),
        ("error_max", ctypes.c_long),
        ("error_estimate", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 40),
    )


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_system(config: Config, *, timeout: float = 3.0) -> System:
    """The facts about this machine, and about the addresses in `config`. `timeout`: seconds per server and name."""
    name = socket.gethostname()
    addresses, host_error = _resolved(name, timeout)
    synchronized, clock_error = _clock()
    soft_files, hard_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    capabilities, seccomp = _privileges(_text("/proc/self/status"))
    shm = _file_system("/dev/shm")
    return System(
        host_name=name,
        host_addresses=addresses,
        host_error=host_error,
        ports=[
            _port(option, getattr(config, option)) for option in ("listen", "http_listen") if _fixed(config, option)
        ],
        servers=_servers(config, timeout),
        nics=_nics(Path("/sys/class/net")),
        proxies={name: _PASSWORD.sub("//***@", value) for name, value in proxy_variables().items()},
        clock_synchronized=synchronized,
        clock_error=clock_error,
        kernel=platform.release(),
        pidfd_error=_descriptor(lambda: _libc.syscall(_PIDFD_OPEN, os.getpid(), 0)),
        memfd_error=_memfd(),
        io_uring_error=_descriptor(lambda: _libc.syscall(_IO_URING_SETUP, 1, ctypes.create_string_buffer(256))),
        io_uring_disabled=_number("/proc/sys/kernel/io_uring_disabled"),
        ptrace_scope=_number("/proc/sys/kernel/yama/ptrace_scope"),
        cross_memory_error=_cross_memory(),
        capabilities=capabilities,
        seccomp=seccomp,
        memlock_bytes=None if memlock == resource.RLIM_INFINITY else memlock,
        open_files=_limit(soft_files),
        open_files_max=_limit(hard_files),
        shm_bytes=None if shm is None else shm[0],
        shm_free_bytes=None if shm is None else shm[1],
        huge_pages=_huge_pages(Path("/sys/kernel/mm/hugepages")),
        libraries=[_library(*row) for row in _LIBRARIES],
        rdma_providers=sum(1 for folder in _PROVIDERS for _ in Path(folder).glob("*.driver")),
    )


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _number(path: str) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _limit(count: int) -> int:
    return 1 << 30 if count == resource.RLIM_INFINITY else count


def _words(number: int) -> str:
    return os.strerror(number)


# --- network ---


def _within(timeout: float, work: Callable[[], Any]) -> Any:
    """The work's result; TimeoutError. Name look-ups have no deadline of their own: one that hangs is left behind."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((work(), None))
        except Exception as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout)
    if not outcome:
        raise TimeoutError("timed out")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def _resolved(name: str, timeout: float) -> tuple[list[str], str]:
    try:
        found = _within(timeout, lambda: socket.getaddrinfo(name, None, type=socket.SOCK_STREAM))
    except OSError as error:
        return [], error.strerror or str(error)
    return sorted({str(item[4][0]) for item in found}), ""


def _fixed(config: Config, option: str) -> bool:
    address = getattr(config, option)
    return address is not None and not address.startswith("inproc:") and not address.endswith(":0")


def _port(option: str, address: str) -> Port:
    host, number = split_address(address)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, number))
            probe.listen(1)
    except OSError as error:
        return Port(option=option, address=address, error=error.strerror or str(error))
    return Port(option=option, address=address)


def _servers(config: Config, timeout: float) -> list[Server]:
    servers = []
    if config.master is not None and not config.master.startswith("inproc:"):
        servers.append(Server(option="master", address=config.master, error=_connect(config.master, timeout)))
    if config.directory != "direct":
        shown = _PASSWORD.sub("//***@", config.directory)
        servers.append(Server(option="directory", address=shown, error=_directory(config.directory, timeout)))
    return servers


def _connect(address: str, timeout: float) -> str:
    try:
        _within(timeout, lambda: socket.create_connection(split_address(address), timeout).close())
    except (OSError, Invalid) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _directory(url: str, timeout: float) -> str:
    from moontide.directory import Names

    names = Names(url, timeout=timeout)
    try:
        _within(2 * timeout, lambda: names.list(limit=1))
    except (MoontideError, OSError) as error:
        return str(error)
    finally:
        names.close()
    return ""


def _nics(folder: Path) -> list[Nic]:
    nics = []
    for place in sorted(folder.glob("*")):
        mtu, kind = _number(f"{place}/mtu"), _number(f"{place}/type")
        up = _text(f"{place}/operstate").strip() in ("up", "unknown")
        if kind == 1 and up and mtu is not None and not (place / "bridge").exists():  # 1: Ethernet
            nics.append(Nic(name=place.name, mtu=mtu, physical=(place / "device").exists()))
    return nics


# --- kernel ---


def _clock() -> tuple[bool | None, str]:
    state = _Timex()
    result = _libc.adjtimex(ctypes.byref(state))
    if result < 0:
        return None, _words(ctypes.get_errno())
    return result != _TIME_ERROR and not state.status & _STA_UNSYNC, ""


def _descriptor(call: Callable[[], int]) -> str:
    descriptor = call()
    if descriptor < 0:
        return _words(ctypes.get_errno())
    os.close(descriptor)
    return ""


def _memfd() -> str:
    try:
        descriptor = os.memfd_create("moontide-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        return _words(error.errno or errno.EIO)
    try:
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
    except OSError as error:
        return _words(error.errno or errno.EIO)
    finally:
        os.close(descriptor)
    return ""


def _cross_memory() -> str:
    """This process may always read itself, unless the system call is forbidden or not built in."""
    source, target = ctypes.create_string_buffer(b"moontide"), ctypes.create_string_buffer(9)
    local = _IoVec(ctypes.addressof(target), 9)
    remote = _IoVec(ctypes.addressof(source), 9)
    _libc.process_vm_readv.restype = ctypes.c_ssize_t
    count = _libc.process_vm_readv(os.getpid(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    if count < 0:
        return _words(ctypes.get_errno())
    return "" if target.value == source.value else "it reads something else"


def _privileges(status: str) -> tuple[list[str], bool]:
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    effective = int(fields.get("CapEff", "0"), 16)
    return [name for name, bit in _CAPABILITIES.items() if effective >> bit & 1], fields.get("Seccomp") == "2"


def _file_system(path: str) -> tuple[int, int] | None:
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def _huge_pages(folder: Path) -> list[HugePages]:
    pages = []
    for place in sorted(folder.glob("hugepages-*kB")):
        size = int(place.name.removeprefix("hugepages-").removesuffix("kB")) * 1024
        total, free = _number(f"{place}/nr_hugepages"), _number(f"{place}/free_hugepages")
        pages.append(HugePages(size=size, total=total or 0, free=free or 0))
    return pages


def _library(purpose: str, names: tuple[str, ...], folder: str, pattern: str) -> Library:
    devices = sorted(place.name for place in Path(folder).glob(pattern))
    error = ""
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError as loading:
            absent = f"{name}: cannot open shared object file" in str(loading)
            if not absent:
                return Library(name=name, purpose=purpose, error=str(loading), devices=devices)
            error = str(loading)
        else:
            return Library(name=name, purpose=purpose, devices=devices)
    return Library(name=names[0], purpose=purpose, error=error, missing=True, devices=devices)
