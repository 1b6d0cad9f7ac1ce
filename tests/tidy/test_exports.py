"""Stubs, exports and imports of the installed package."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

import moontide
from tidy.exports import check_exports, check_stub
from tidy.sources import ROOT

STUB = (ROOT / "core" / "moontide" / "_core.pyi").read_text()
IMPORT_CPU_SECONDS = 0.1


def public_modules() -> list[str]:
    """All modules a user may import: no private part in the name, neither commands nor adapters."""
    names = ["moontide"]
    for module in pkgutil.walk_packages(moontide.__path__, "moontide."):
        parts = module.name.split(".")
        if not any(part.startswith("_") for part in parts) and parts[1] not in ("cli", "plugins"):
            names.append(module.name)
    return names


@pytest.mark.parametrize("name", public_modules())
def test_exports(name: str) -> None:
    found = list(check_exports(importlib.import_module(name)))
    assert not found, "\n".join(["", *found])


def test_stub_is_the_core() -> None:
    found = list(check_stub(STUB, importlib.import_module("moontide._core")))
    assert not found, "\n".join(["", *found])


def test_wrong_exports_are_caught() -> None:
    module = ModuleType("made_up")
    exec("__all__ = ['gone']\ndef left_out(): pass\ndef _private(): pass\n", module.__dict__)
    assert len(list(check_exports(module))) == 2
    silent = ModuleType("silent")
    assert not list(check_exports(silent))
    exec("def left_out(): pass\n", silent.__dict__)
    assert len(list(check_exports(silent))) == 1


def test_wrong_stubs_are_caught() -> None:
    class Kind:
        def here(self) -> None: ...

    module = SimpleNamespace(Kind=Kind, function=len)
    assert not list(check_stub("class Kind:\n    def here(self): ...\ndef function(): ...\n", module))
    assert list(check_stub("class Kind:\n    def here(self): ...\n", module)) == [
        "function: in the module, not in the stub"
    ]
    assert len(list(check_stub("class Kind:\n    def gone(self): ...\ndef function(): ...\nlost: int\n", module))) == 3


def python(*code: str) -> str:
    command = [sys.executable, "-c", "\n".join(code)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_import_loads_nothing_heavy() -> None:
    loaded = set(python("import sys, moontide", "print(*sys.modules)").split())
    assert "moontide" in loaded
    assert not loaded & {"torch", "numpy", "aiohttp", "click", "prometheus_client", "vllm"}
    # Not heavy, yet together more than all of the package; what needs them loads them.
    assert not loaded & {"msgspec", "asyncio", "ssl", "http", "argparse", "logging", "socket", "tomllib"}


def test_import_is_cheap() -> None:
    code = ("import time", "start = time.process_time()", "import moontide", "print(time.process_time() - start)")
    # The least of several: what other processes do to the caches is not the import's cost.
    assert min(float(python(*code)) for _ in range(5)) < IMPORT_CPU_SECONDS


@pytest.mark.frameworks
def test_import_vllm_is_vllm() -> None:
    interpreter = ROOT / "build" / "vllm-env" / "bin" / "python"
    assert interpreter.exists(), "run `make vllm-env`"
    command = [str(interpreter), "-c", "import vllm; print(vllm.__file__)"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    place = result.stdout.strip().splitlines()[-1]
    assert "site-packages/vllm" in place and not place.startswith(str(ROOT / "plugins"))
