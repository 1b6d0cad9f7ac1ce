"""Simulation of a whole pool in one thread under virtual time: seeded work, seeded faults, and checkers.

`python -m moontide.sim --seeds 100` runs seeds 1 to 100; `--seed 17` runs one and tells what happened.
"""

from __future__ import annotations

from moontide.sim.calls import Call
from moontide.sim.linear import check_history
from moontide.sim.run import Report, run_seed

__all__ = ["Call", "Report", "check_history", "run_seed"]
