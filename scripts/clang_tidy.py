"""Runs clang-tidy on the C++ files that changed, or on those that are named.

usage: clang_tidy.py [--base COMMIT] [--jobs N] [FILE...]
Without names: what differs from COMMIT, by default from the last tag, else from where this branch left main; new files
that are not committed count. A header is checked through one file that includes it. Ends with status 1 on findings.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATABASE = ROOT / "build" / "lint"
TOOLS = Path(sys.executable).parent
FOLDERS = ("csrc", "tests")


def git(*arguments: str) -> str | None:
    """What git says, or None where it refuses."""
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else None


def default_base() -> str:
    """The last tag before HEAD, else where this branch left main; HEAD on main itself."""
    tag = git("describe", "--tags", "--abbrev=0")
    if tag:
        return tag
    for main in ("origin/main", "main"):
        base = git("merge-base", "HEAD", main)
        if base:
            return base
    return "HEAD"


def changed_since(base: str) -> list[str]:
    """C++ files that differ from the commit, uncommitted and new ones included, deleted ones not."""
    differing = git("diff", "--name-only", "--diff-filter=d", base, "--", *FOLDERS)
    if differing is None:
        raise SystemExit(f"there is no commit {base!r} to compare with")
    new = git("ls-files", "--others", "--exclude-standard", "--", *FOLDERS) or ""
    return sorted(name for name in {*differing.splitlines(), *new.splitlines()} if name.endswith((".h", ".cpp")))


def source_of(header: str, texts: dict[str, str], tried: set[str]) -> str | None:
    """A source that includes the header, by way of other headers if need be: its own, else the first."""
    own = header.removesuffix(".h") + ".cpp"
    if own in texts:
        return own
    tried.add(header)
    include = f'#include "{header.split("/", 1)[1]}"'
    users = [name for name in sorted(texts) if include in texts[name]]
    for name in users:
        if name.endswith(".cpp"):
            return name
    for name in users:
        if name not in tried and (found := source_of(name, texts, tried)) is not None:
            return found
    return None


def units_of(names: Iterable[str]) -> list[str]:
    """The files to compile: sources as they are, for a header one that includes it."""
    paths = (path for folder in FOLDERS for end in ("*.h", "*.cpp") for path in (ROOT / folder).rglob(end))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}
    units = set()
    for name in names:
        unit = name if name.endswith(".cpp") else source_of(name, texts, set())
        if unit is None:
            print(f"{name}: no source includes it, so it is not checked")
        else:
            units.add(unit)
    return sorted(units)


def configure() -> None:
    """compile_commands.json for all sources, bindings and tests included. Nothing is compiled."""
    cmake_dir = subprocess.run(
        [sys.executable, "-m", "pybind11", "--cmakedir"], capture_output=True, text=True, check=True
    ).stdout.strip()
    options = [
        "-DSKBUILD=ON",
        "-DMOONTIDE_TESTS=ON",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={cmake_dir}",
    ]
    command = [str(TOOLS / "cmake"), "-S", "csrc", "-B", str(DATABASE), "-G", "Ninja", *options]
    command.append(f"-DCMAKE_MAKE_PROGRAM={TOOLS / 'ninja'}")
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(result.stdout + result.stderr)


def check(unit: str, headers: str) -> tuple[bool, str]:
    """(without findings, what clang-tidy says), paths from the root. Of headers only those that match."""
    command = [str(TOOLS / "clang-tidy"), "-p", str(DATABASE), "--quiet", f"--header-filter={headers}", unit]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = result.stdout if result.returncode == 0 or result.stdout.strip() else result.stdout + result.stderr
    return result.returncode == 0, said.replace(f"{ROOT}/", "").strip()


def main() -> int:
    parser = argparse.ArgumentParser(description="clang-tidy on changed files")
    parser.add_argument("--base", default="")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    base = options.base or default_base()
    names = options.files or changed_since(base)
    units = units_of(names)
    if not units:
        print(f"clang-tidy: no C++ file differs from {base}")
        return 0
    configure()
    # What a changed file includes is not its own fault: only headers that changed as well are looked at.
    headers = "|".join(f"/{re.escape(name)}$" for name in names if name.endswith(".h")) or "^$"
    bad = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for unit, (clean, said) in zip(units, pool.map(lambda unit: check(unit, headers), units), strict=True):
            bad += not clean
            if said:
                print(f"{unit}:\n{said}\n", flush=True)
    print(f"clang-tidy: {len(units)} files, {bad} with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
