"""The project's files, as the tidy checks see them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("core", "plugins", "csrc", "tests", "demo", "bench", "scripts", "docs", ".ci")
CPP = (".h", ".cpp")


@dataclass(frozen=True)
class Source:
    """A file: its path from the root and its text."""

    path: str
    text: str

    @property
    def python(self) -> bool:
        return self.path.endswith((".py", ".pyi"))

    @property
    def cpp(self) -> bool:
        return self.path.endswith(CPP)

    @property
    def test(self) -> bool:
        return self.path.startswith("tests/")


def _is_text(path: Path) -> bool:
    return path.suffix in {".py", ".pyi", ".h", ".cpp", ".sh", ".md", ".toml", ".txt", ".patch", ".json", ""}


def sources() -> Iterator[Source]:
    """All text files that are, or could be, committed."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in sorted(listing.stdout.split("\0")):
        path = ROOT / name
        if name and path.is_file() and not path.is_symlink() and _is_text(path):
            yield Source(name, path.read_text(encoding="utf-8"))
