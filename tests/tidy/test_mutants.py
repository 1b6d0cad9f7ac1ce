"""Every mutant is of the source as it is: a patch that applies no more tries nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted((ROOT / "tests" / "mutants").glob("*.patch"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    for folder in ("csrc", "core"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return tree


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_applies(patch: Path, sources: Path) -> None:
    # Outside of any repository as far as git can tell, so that it takes the folder for what the patch speaks of.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(sources.parent)}
    command = ["git", "apply", "--check", "--unidiff-zero", str(patch)]
    assert subprocess.run(command, cwd=sources, env=environment).returncode == 0
