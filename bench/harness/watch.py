"""What else the machine did meanwhile, and what machine it is."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from pathlib import Path
from typing import Any

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_KERNEL_THREAD = 0x00200000


def _stat_fields(pid: int) -> list[str]:
    """The fields after the command's name, which may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


class ForeignCpu:
    """CPU seconds used by processes that do not belong to the turn, or taken by the hypervisor, since it was made.

    The times of reaped children are counted with their parents, so that a short-lived compiler is not missed. Kernel
    threads are left out: on loopback they work for the contestant. `own` may grow until `share` is asked.
    """

    def __init__(self, own: set[int]) -> None:
        self._own = own
        self._began = time.monotonic()
        self._ticks = self._sample()

    def _sample(self) -> int:
        total = 0
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) in self._own:
                continue
            with contextlib.suppress(OSError, IndexError):
                fields = _stat_fields(int(entry.name))
                if not int(fields[6]) & _KERNEL_THREAD:
                    total += sum(int(field) for field in fields[11:15])
        cpu = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return total + (int(cpu[8]) if len(cpu) > 8 else 0)

    def share(self) -> float:
        """Of one core, since this was made."""
        elapsed = time.monotonic() - self._began
        return max(0.0, (self._sample() - self._ticks) * _TICK_S / elapsed) if elapsed > 0 else 0.0


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    pages = {name: _text(f"/sys/kernel/mm/transparent_hugepage/{name}") for name in ("enabled", "shmem_enabled")}
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "l3_cache": _text("/sys/devices/system/cpu/cpu0/cache/index3/size"),
        "huge_pages": pages,
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "?"
