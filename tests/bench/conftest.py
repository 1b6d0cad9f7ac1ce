"""The bench is scripts, not a package: its folders go on the path for these tests."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"
for folder in (BENCH, BENCH / "peers"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
