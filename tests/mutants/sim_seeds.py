"""Runs seeds of the simulation with a given core: sim_seeds.py PACKAGES CORE COUNT. Ends at the first that fails."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType


def load(packages: str, core: str) -> None:
    """`moontide` is the package of that folder, whatever is installed, with that extension module as its core."""
    package = ModuleType("moontide")
    package.__path__ = [f"{packages}/moontide"]
    sys.modules["moontide"] = package
    spec = importlib.util.spec_from_file_location("moontide._core", core)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["moontide._core"] = module
    spec.loader.exec_module(module)


def main(packages: str, core: str, count: int) -> int:
    load(packages, core)
    from moontide.sim.run import run_seed

    for seed in range(1, count + 1):
        report = run_seed(seed)
        if not report.ok:
            print(f"seed {seed}: {report.violations[0].splitlines()[0]}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
