#!/usr/bin/env python3
"""Makes build/vllm-env: the cached vLLM environment with this checkout's wheel on top.

usage: vllm_env.py

The cache is shared by all checkouts and never written to; what this one adds (the wheel, pytest) lies in a small
environment of its own that looks through to the cached one. Quick when nothing changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from install_vllm import VERSION, environment_path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / "build" / "vllm-env"
SOURCES = ("pyproject.toml", "README.md", "core", "plugins", "csrc")
TEST_TOOLS = ("pytest>=8", "pytest-asyncio>=0.24", "pytest-timeout>=2.3", "hypothesis>=6.100")


def fingerprint() -> str:
    """Changes whenever a file that goes into the wheel does."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} {environment_path()}".encode())
    for source in SOURCES:
        top = ROOT / source
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".so"):
                digest.update(str(path.relative_to(ROOT)).encode() + b"\0")
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def site_packages(environment: Path) -> Path:
    return environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def run(*command: str | Path) -> None:
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout.decode(errors='replace')[-3000:]}")


def make() -> None:
    cached = site_packages(environment_path())
    if not cached.is_dir():
        raise SystemExit(
            f"{environment_path()} was not made with Python {sys.version_info[0]}.{sys.version_info[1]}; "
            "use the Python it was made with (make PYTHON=...), or remove it to have it made anew"
        )
    if not (ENVIRONMENT / "bin" / "python").exists():
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        venv.create(ENVIRONMENT, with_pip=True, symlinks=True)
    # addsitedir, not a bare path: the cached environment has .pth files of its own.
    own = site_packages(ENVIRONMENT)
    (own / "moontide_vllm.pth").write_text(f"import site; site.addsitedir({str(cached)!r})\n")
    wheel = next((ROOT / "dist").glob(f"moontide-*-cp{sys.version_info[0]}{sys.version_info[1]}-*.whl"))
    pip = (ENVIRONMENT / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
    run(*pip, "--no-deps", "--force-reinstall", wheel)
    run(*pip, *TEST_TOOLS)
    check = (
        "import importlib.metadata as m, vllm, moontide, msgspec, aiohttp, click, prometheus_client;"
        "assert any(e.name == 'moontide' for e in m.entry_points(group='vllm.general_plugins'))"
    )
    run(ENVIRONMENT / "bin" / "python", "-c", check)


def main() -> int:
    (ROOT / "build").mkdir(exist_ok=True)
    with (ROOT / "build" / ".vllm-env-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        marker = ENVIRONMENT / ".moontide-complete"
        wanted = fingerprint()
        if marker.exists() and marker.read_text() == wanted:
            return 0
        marker.unlink(missing_ok=True)
        run(ROOT / "scripts" / "build.sh", "wheel")
        make()
        marker.write_text(wanted)
    print(f"vLLM {VERSION} with this checkout's Moontide is ready in {ENVIRONMENT.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
