"""Checks of the kernel and of the limits it sets to this process."""

from __future__ import annotations

from collections.abc import Iterator

from moontide.doctor.system import Finding, Status, System

__all__ = [
    "check_cross_memory",
    "check_huge_pages",
    "check_io_uring",
    "check_kernel",
    "check_memlock",
    "check_open_files",
    "check_shared_memory",
]

_MEMLOCK_BYTES_MIN = 1 << 30
_FILES_MIN, _FILES_ENOUGH = 256, 4096
_SHM_BYTES_MIN = 1 << 30


def _size(count: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} bytes"


def check_kernel(system: System) -> Iterator[Finding]:
    """What memory of the same host is shared by: sealed memfds, and word of a peer's death."""
    errors = {
        "memfd with F_SEAL_FUTURE_WRITE (Linux 5.1)": system.memfd_error,
        "pidfd_open (Linux 5.3)": system.pidfd_error,
    }
    for what, error in errors.items():
        if not error:
            continue
        if error == "Operation not permitted" or (system.seccomp and error == "Function not implemented"):
            remedy = "a seccomp profile forbids it: use the container runtime's current default profile"
        else:
            remedy = "use a newer kernel"
        severe = "no memory can be lent" if what.startswith("memfd") else "peers of this host go by tcp"
        status: Status = "fail" if what.startswith("memfd") else "warn"
        yield Finding("kernel", status, f"Linux {system.kernel} without {what}: {error}; {severe}", remedy)
    if not any(errors.values()):
        yield Finding("kernel", "ok", f"Linux {system.kernel} with sealed memfds and pidfds")


def check_cross_memory(system: System) -> Iterator[Finding]:
    """The path `cma`: reading another process' memory. Without it memory that is no arena goes by tcp."""
    scope = system.ptrace_scope
    if system.cross_memory_error:
        yield Finding(
            "cross-memory reads",
            "warn",
            f"process_vm_readv: {system.cross_memory_error}; memory of other processes is copied by tcp",
            "a seccomp profile or the kernel's build forbids it: docker run --cap-add SYS_PTRACE, or a profile that "
            "allows process_vm_readv",
        )
    elif scope and not (scope < 3 and "CAP_SYS_PTRACE" in system.capabilities):
        who = {1: "a process' own descendants", 2: "administrators"}.get(scope, "nobody")
        yield Finding(
            "cross-memory reads",
            "warn",
            f"kernel.yama.ptrace_scope = {scope}: only for {who}; memory of other processes is copied by tcp",
            "where the host's users trust each other: sysctl -w kernel.yama.ptrace_scope=0 on the host"
            + (" after a reboot (3 cannot be taken back)" if scope >= 3 else "")
            + "; else lend memory with Engine.allocate, which peers map",
        )
    else:
        yield Finding("cross-memory reads", "ok", "allowed between processes of one user")


def check_memlock(system: System) -> Iterator[Finding]:
    limit = system.memlock_bytes
    if limit is None or "CAP_IPC_LOCK" in system.capabilities:
        yield Finding("locked memory", "ok", "unlimited" if limit is None else "unlimited by CAP_IPC_LOCK")
    elif limit < _MEMLOCK_BYTES_MIN:
        yield Finding(
            "locked memory",
            "warn",
            f"at most {_size(limit)}: devices that pin memory (RDMA) cannot register more",
            "ulimit -l unlimited; systemd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1; or CAP_IPC_LOCK",
        )
    else:
        yield Finding("locked memory", "ok", f"at most {_size(limit)}")


def check_open_files(system: System) -> Iterator[Finding]:
    limit, most = system.open_files, system.open_files_max
    if limit >= _FILES_ENOUGH:
        yield Finding("open files", "ok", f"at most {limit}")
        return
    remedy = "systemd: LimitNOFILE=65536; docker: --ulimit nofile=65536"
    if most > limit:
        remedy = f"ulimit -n {most}; {remedy}"
    status: Status = "fail" if limit < _FILES_MIN else "warn"
    yield Finding("open files", status, f"at most {limit}: each peer takes several", remedy)


def check_shared_memory(system: System) -> Iterator[Finding]:
    """Moontide's arenas are memfds and need no /dev/shm; the inference servers around it do."""
    size, free = system.shm_bytes, system.shm_free_bytes
    remedy = "docker: --shm-size 8g or --ipc host; Kubernetes: an emptyDir of medium Memory at /dev/shm"
    if size is None or free is None:
        yield Finding("shared memory", "warn", "no /dev/shm: inference servers with several processes need it", remedy)
    elif size < _SHM_BYTES_MIN:
        yield Finding("shared memory", "warn", f"/dev/shm has {_size(size)}: few for inference servers", remedy)
    elif free < size // 20:
        yield Finding(
            "shared memory",
            "warn",
            f"/dev/shm has {_size(free)} free of {_size(size)}",
            "look for files that processes left behind: ls -l /dev/shm",
        )
    else:
        yield Finding("shared memory", "ok", f"/dev/shm has {_size(free)} free of {_size(size)}")


def check_huge_pages(system: System) -> Iterator[Finding]:
    reserved = [pages for pages in system.huge_pages if pages.total]
    if not reserved:
        yield Finding("huge pages", "ok", "none reserved, and nothing in this version takes them")
    for pages in reserved:
        text = f"{pages.free} of {pages.total} of {_size(pages.size)} free"
        yield Finding("huge pages", "ok", f"{text}; nothing in this version takes them")


def check_io_uring(system: System) -> Iterator[Finding]:
    """No part of this version does without: it is told, since the kernel's word is hard to find."""
    if not system.io_uring_error:
        yield Finding("io_uring", "ok", "available")
        return
    if system.io_uring_disabled:
        remedy = f"kernel.io_uring_disabled = {system.io_uring_disabled}: sysctl -w kernel.io_uring_disabled=0"
    elif system.seccomp:
        remedy = "a seccomp profile forbids it, as container runtimes do by default"
    else:
        remedy = "use a kernel of 5.1 or newer, built with it"
    yield Finding(
        "io_uring", "ok", f"not available ({system.io_uring_error}); nothing in this version needs it", remedy
    )
