"""What `import moontide` costs, as an installed package costs it: with its bytecode on disk."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from harness.environments import SetupError
from harness.rows import plain_row

_TARGET_MS = 100.0
_HEAVY = ("torch", "numpy", "aiohttp")


def _command(python: Path, bytecode: str, statement: str) -> list[str]:
    # A checkout that may not write bytecode would be compiled anew each time; no user has that.
    keep = ["env", "-u", "PYTHONDONTWRITEBYTECODE"]
    return [*keep, str(python), "-X", f"pycache_prefix={bytecode}", "-c", statement]


def _cpu_ms(command: list[str]) -> float:
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SetupError(f"{command[-1]!r} failed")
    return (usage.ru_utime + usage.ru_stime) * 1e3


def import_row(python: Path, repeats: int) -> dict[str, Any]:
    """CPU of `import moontide` over that of a bare start, and whether it dragged in what it must not."""
    with tempfile.TemporaryDirectory(prefix="moontide-bench-") as bytecode:
        imported, bare = (_command(python, bytecode, statement) for statement in ("import moontide", "pass"))
        # The first pair only leaves the bytecode behind.
        pairs = [(_cpu_ms(imported), _cpu_ms(bare)) for _ in range(repeats + 1)][1:]
    value = median(with_it - without for with_it, without in pairs)
    row = plain_row("import moontide", "CPU", "ms", float(f"{value:.3g}"), _TARGET_MS, {})
    heavy = f"import moontide, sys; print(*sorted({set(_HEAVY)} & set(sys.modules)))"
    loaded = subprocess.run([str(python), "-c", heavy], capture_output=True, text=True, check=True).stdout.split()
    if loaded:
        row["notes"].append(f"import moontide also loads {', '.join(loaded)}")
    return row
