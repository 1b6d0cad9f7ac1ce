"""Builds a wheel for each supported Python of this machine, installs it into a fresh environment and tries it there.

usage: wheels.py [VERSION...]   for example 3.10 3.12; without any: all that the project supports
The wheels come into dist/wheels. A version that is not on the machine is named, and is an error if it was asked for.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "dist" / "wheels"
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
TOOLS = ("scikit-build-core>=0.10", "pybind11>=2.13", "cmake>=3.25", "ninja>=1.11")
PIP = ("-m", "pip", "-q", "--disable-pip-version-check")


def run(*command: str | Path, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
    """The output. A command that fails shows what it said. The environment is added to this process's."""
    whole = {**os.environ, **(environment or {})}
    words = [str(part) for part in command]
    result = subprocess.run(words, cwd=cwd, env=whole, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return result.stdout


def _is(candidate: Path, version: str) -> bool:
    code = "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"
    result = subprocess.run([str(candidate), "-c", code], capture_output=True, text=True, check=False)
    return result.returncode == 0 and result.stdout.strip() == version


def find_python(version: str) -> Path | None:
    """An interpreter of that version: on the path, or among pyenv's, whose commands on the path may lead nowhere."""
    candidates = [Path(found) for found in (shutil.which(f"python{version}"),) if found]
    if shutil.which("pyenv"):
        home = Path(run("pyenv", "root").strip()) / "versions"
        candidates += sorted(home.glob(f"{version}.*/bin/python{version}"), reverse=True)
    return next((candidate for candidate in candidates if _is(candidate, version)), None)


def tools_for(python: Path, version: str) -> Path:
    """An environment with what building needs. Made once: the compiler cache knows only files with the same names."""
    if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
        return Path(sys.prefix)
    tools = ROOT / "build" / f"wheel-tools-{version}"
    if not (tools / "ready").exists():
        run(python, "-m", "venv", "--clear", tools)
        run(tools / "bin" / "python", *PIP, "install", *TOOLS)
        (tools / "ready").touch()
    return tools


def build(python: Path, version: str) -> Path:
    """The wheel."""
    tools = tools_for(python, version)
    # As deep as the build folder of `make build`, so that the compiler cache serves both: it sees relative paths.
    # The long option: the pip that comes with Python 3.10 has no -C.
    settings = f"--config-settings=build-dir={ROOT / 'build' / f'wheel-{version}'}"
    environment = {
        "PATH": f"{tools / 'bin'}:{os.environ['PATH']}",
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_BASEDIR": str(ROOT),
    }
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as made:
        builder = (tools / "bin" / "python", *PIP, "wheel", "--no-build-isolation", "--no-deps", settings)
        run("nice", "-n", "5", *builder, "-w", made, ".", environment=environment)
        wheel = next(Path(made).glob("moontide-*.whl"))
        OUT.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, OUT / wheel.name))


def check(python: Path, version: str, wheel: Path) -> str:
    """Installs the wheel into an environment that is new, and runs the smoke test in it, far from the repository."""
    run(sys.executable, ROOT / "scripts" / "native_module.py", wheel)
    fresh = ROOT / "build" / f"wheel-fresh-{version}"
    run(python, "-m", "venv", "--clear", fresh)
    run(fresh / "bin" / "python", *PIP, "install", wheel)
    with tempfile.TemporaryDirectory() as elsewhere:
        smoke = Path(elsewhere) / "smoke.py"
        shutil.copy(ROOT / "scripts" / "wheel_smoke.py", smoke)
        return run(fresh / "bin" / "python", "-I", smoke, cwd=Path(elsewhere)).strip()


def main() -> int:
    asked = sys.argv[1:]
    missing = []
    for version in asked or VERSIONS:
        python = find_python(version)
        if python is None:
            missing.append(version)
            print(f"Python {version}: not on this machine")
            continue
        wheel = build(python, version)
        print(f"Python {version}: {wheel.name}, {wheel.stat().st_size >> 10} KiB; {check(python, version, wheel)}")
    return 1 if missing and (asked or len(missing) == len(VERSIONS)) else 0


if __name__ == "__main__":
    sys.exit(main())
