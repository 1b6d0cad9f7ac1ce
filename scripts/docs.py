"""Builds the documentation's site with Sphinx; warnings are errors.

The pages are those of docs, the site comes into build/docs.
What it needs is the extra "docs" of pyproject.toml; it is installed into the running environment where it is missing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PIP = ("-m", "pip", "-q", "--disable-pip-version-check")


def requirements() -> list[str]:
    """What the site is built with, as pip takes it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted: list[str] = project["optional-dependencies"]["docs"]
    return wanted


def install() -> None:
    """Quick when nothing changed. The marker is written last, so that an interrupted install is completed."""
    wanted = "\n".join(requirements())
    marker = Path(sys.prefix) / ".docs-requirements-done"
    if not marker.exists() or marker.read_text(encoding="utf-8") != wanted:
        subprocess.run([sys.executable, *PIP, "install", *requirements()], check=True)
        marker.write_text(wanted, encoding="utf-8")


def build(source: Path, output: Path) -> subprocess.CompletedProcess[str]:
    """What went wrong is in stderr, all of it and not only the first.

    Builds everything each time: of a page that has not changed Sphinx would not repeat the warnings.
    """
    options = ["-W", "--keep-going", "-q", "-E", "-a", "-b", "html", "-d", f"{output}-doctrees"]
    command = [sys.executable, "-m", "sphinx", *options, str(source), str(output)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def main() -> None:
    output = ROOT / "build" / "docs"
    install()
    done = build(ROOT / "docs", output)
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    print(output / "index.html")


if __name__ == "__main__":
    main()
