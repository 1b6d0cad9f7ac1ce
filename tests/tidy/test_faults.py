"""The page of faults names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`((?:\w+/)+\w+\.(?:py|cpp))(?:::([^`]+))?`")


def missing(page: str, tests: Path) -> list[str]:
    """`file::name` of what is not there: a function of Python, or the beginning of a case's name in C++."""
    found = []
    for file, name in NAMED.findall(page):
        path = tests / file
        text = path.read_text() if path.exists() else ""
        wanted = f"def {name}(" if file.endswith(".py") else name
        if not text or (name and wanted not in text):
            found.append(f"{file}::{name}")
    return found


def test_the_tests_on_the_page_of_faults_exist() -> None:
    page = (ROOT / "docs" / "design" / "faults.md").read_text()
    assert len(NAMED.findall(page)) > 100
    assert not missing(page, ROOT / "tests")


def test_what_does_not_exist_is_found() -> None:
    page = (
        "`tidy/test_faults.py::test_never` `tidy/gone.py::x` `tidy/test_faults.py::test_what_does_not_exist_is_found`"
    )
    assert missing(page, ROOT / "tests") == ["tidy/test_faults.py::test_never", "tidy/gone.py::x"]
