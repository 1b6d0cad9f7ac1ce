"""The native core keeps to itself inside other people's processes, and asks little of the system."""

from __future__ import annotations

import re
import subprocess

from moontide import _core

GLIBC = (2, 34)
LIBRARIES = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def binutils(*command: str) -> str:
    place = _core.__file__
    assert place is not None
    return subprocess.run([*command, place], capture_output=True, text=True, check=True).stdout


def test_it_needs_only_the_c_library() -> None:
    needed = set(re.findall(r"NEEDED\s+(\S+)", binutils("objdump", "-p")))
    assert "libc.so.6" in needed
    assert needed <= LIBRARIES


def test_it_exports_its_entry_only() -> None:
    assert binutils("nm", "-D", "--defined-only", "--format=just-symbols").split() == ["PyInit__core"]


def test_it_runs_with_an_old_c_library() -> None:
    versions = {
        tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_(\d+\.\d+)", binutils("objdump", "-T"))
    }
    assert versions
    assert max(versions) <= GLIBC
