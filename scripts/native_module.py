"""What the compiled module may ask of the system it is loaded into, read from the file itself with binutils.

usage: native_module.py FILE.so or FILE.whl   prints what is wrong, and ends with status 1 if anything is
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

GLIBC = (2, 34)
"""Of the C library: the newest symbols that may be asked for (RHEL 9, Debian 12, Ubuntu 22.04 have them)."""
LIBRARIES = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
"""No libstdc++: torch and others bring their own into the process."""
ENTRY = "PyInit__core"


def _binutils(module: Path, *command: str) -> str:
    return subprocess.run([*command, str(module)], capture_output=True, text=True, check=True).stdout


def findings(module: Path) -> Iterator[str]:
    """What keeps the module from running everywhere, one sentence each."""
    needed = set(re.findall(r"NEEDED\s+(\S+)", _binutils(module, "objdump", "-p")))
    if "libc.so.6" not in needed:
        yield f"{module.name}: no list of libraries that it needs"
    if needed - LIBRARIES:
        yield f"{module.name} needs {', '.join(sorted(needed - LIBRARIES))}"
    exported = _binutils(module, "nm", "-D", "--defined-only", "--format=just-symbols").split()
    if exported != [ENTRY]:
        others = [symbol for symbol in exported if symbol != ENTRY]
        yield f"{module.name} exports {len(exported)} symbols, not {ENTRY} alone: {', '.join(others[:3])}"
    symbols = re.findall(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?\)?\s+(\S+)", _binutils(module, "objdump", "-T"))
    if not symbols:
        yield f"{module.name}: no symbol of the C library is found"
    new = sorted({f"{name} ({major}.{minor})" for major, minor, name in symbols if (int(major), int(minor)) > GLIBC})
    if new:
        yield f"{module.name} needs a C library newer than {GLIBC[0]}.{GLIBC[1]}: {', '.join(new)}"


def wheel_findings(wheel: Path) -> Iterator[str]:
    """The same for the modules of a wheel."""
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as scratch:
        modules = [name for name in archive.namelist() if name.endswith(".so")]
        if len(modules) != 1:
            yield f"{wheel.name} has {len(modules)} native modules: {modules}"
        for name in modules:
            yield from findings(Path(archive.extract(name, scratch)))


def main() -> int:
    path = Path(sys.argv[1])
    found = list(wheel_findings(path) if path.suffix == ".whl" else findings(path))
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
