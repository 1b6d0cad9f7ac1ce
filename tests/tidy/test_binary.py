"""The native core keeps to itself inside other people's processes, and asks little of the system."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from moontide import _core
from scripts.native_module import findings


def test_the_module_keeps_to_itself() -> None:
    place = _core.__file__
    assert place is not None
    assert not list(findings(Path(place)))


def library(folder: Path, source: str, *flags: str) -> Path:
    (folder / "library.cpp").write_text(source)
    module = folder / "library.so"
    subprocess.run(["g++", "-shared", "-fPIC", *flags, "-o", module, folder / "library.cpp"], check=True, timeout=60)
    return module


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ('extern "C" void PyInit__core() {}\nextern "C" void other() {}\n', "exports 2 symbols"),
        ("static int hidden;\n", "exports 0 symbols"),
        ('#include <iostream>\nextern "C" void PyInit__core() { std::cout << 1; }\n', "libstdc++.so.6"),
        (
            # A version that the C library of no machine has yet cannot be linked; the newest of this one's can.
            '#include <stdlib.h>\nextern "C" unsigned PyInit__core() { return arc4random(); }\n',
            "newer than 2.34: arc4random (2.36)",
        ),
    ],
)
def test_what_must_not_be_is_caught(tmp_path: Path, source: str, said: str) -> None:
    if "arc4random" in source and not hasattr(ctypes.CDLL(None), "arc4random"):
        pytest.skip("the C library of this machine is older than 2.36")
    assert any(said in finding for finding in findings(library(tmp_path, source)))


def test_a_plain_module_is_let_pass(tmp_path: Path) -> None:
    source = '#include <stdlib.h>\nextern "C" void* PyInit__core() { return malloc(1); }\n'
    assert not list(findings(library(tmp_path, source)))
