"""Runs each file of inside/ with pytest in the environment that has a real vLLM, one engine per process."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build" / "vllm-env" / "bin" / "python"
INSIDE = Path(__file__).parent / "inside"
FILES = sorted(path.name for path in INSIDE.glob("test_*.py"))


@pytest.mark.frameworks
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FILES)
def test_inside_vllm(name: str, tmp_path: Path) -> None:
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} does not exist; make vllm-env makes it")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MOONTIDE_", "VLLM_"))}
    environment |= {"VLLM_LOGGING_LEVEL": "WARNING", "PYTHONUNBUFFERED": "1"}
    command = [str(PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=300", str(INSIDE / name)]
    log = tmp_path / "log"
    with log.open("wb") as file:
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False)
    text = log.read_text(errors="replace")
    assert done.returncode == 0, text[-20000:]
    passed = re.search(r"(\d+) passed", text)
    assert passed is not None and int(passed[1]) > 0, text[-5000:]
