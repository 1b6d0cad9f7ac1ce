"""An environment of its own for each peer, in the user's cache, made from the package index by name."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

_MARKER = ".moontide-complete"


class SetupError(Exception):
    """The sentence for the person who runs the bench."""


@dataclass(frozen=True)
class Peer:
    """A contestant from outside: what pip installs, and the settings its processes get."""

    name: str
    packages: tuple[tuple[str, ...], ...]  # one tuple of pip arguments per step
    imports: str  # must succeed in the environment
    needs: str  # what to install when it does not


MOONCAKE = Peer(
    "mooncake",
    (("mooncake-transfer-engine-non-cuda", "numpy"),),
    "import mooncake.engine",
    "Debian packages libibverbs1 libnuma1 libcurl4",
)
# NIXL's API imports torch only for those who pass tensors; its own dependencies would bring a CUDA build of it.
NIXL = Peer("nixl", (("numpy",), ("--no-deps", "nixl-cu12")), "import nixl_cu12._api", "a nixl-cu12 for this Python")

# Each peer's best documented setting on one host with loopback only; what each one does was looked up and tried.
MOONCAKE_SETTINGS = {
    "MC_TCP_BIND_ADDRESS": "127.0.0.1",
    "MC_TCP_ENABLE_CONNECTION_POOL": "1",
    "MC_LOG_LEVEL": "ERROR",
}
NIXL_SETTINGS = {"UCX_MODULES": "^ib", "NIXL_LOG_LEVEL": "WARN", "UCX_LOG_LEVEL": "error"}


def project_python() -> Path:
    """An interpreter that has the project: this one, or the one that `make` built."""
    for python in (Path(sys.executable), Path(__file__).resolve().parents[2] / ".venv" / "bin" / "python"):
        check = [str(python), "-c", "import moontide; moontide.Engine"]
        if python.exists() and subprocess.run(check, capture_output=True, check=False).returncode == 0:
            return python
    raise SetupError("moontide is not installed for this Python: run `make build` and use .venv/bin/python")


def cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "moontide"


def _run(command: list[str]) -> tuple[bool, str]:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode == 0, done.stdout[-2000:]


def ensure(peer: Peer) -> Path:
    """The peer's interpreter; installs on first use. Safe when two run at once or when one was interrupted."""
    path = cache_home() / f"peers-{peer.name}-{sys.version_info[0]}.{sys.version_info[1]}"
    python = path / "bin" / "python"
    path.parent.mkdir(parents=True, exist_ok=True)
    with (path.parent / f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (path / _MARKER).exists() and python.exists():
            return python
        print(f"installing {peer.name} into {path}", flush=True)
        shutil.rmtree(path, ignore_errors=True)
        venv.create(path, with_pip=True)
        for step in peer.packages:
            ok, said = _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *step])
            if not ok:
                raise SetupError(f"{peer.name}: pip install {' '.join(step)} failed:\n{said}")
        ok, said = _run([str(python), "-c", f"{peer.imports}\nimport os\nos._exit(0)"])
        if not ok:
            raise SetupError(f"{peer.name} does not import; it needs {peer.needs}:\n{said}")
        (path / _MARKER).touch()
    return python


def compile_limits(source: Path, target: Path) -> dict[str, Path]:
    """The bare loops, compiled with gcc (or cc) into `target`."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise SetupError("the limits need a C compiler: install gcc")
    out = {}
    for file in sorted(source.glob("*.c")):
        out[file.stem] = target / file.stem
        ok, said = _run([compiler, "-O2", "-std=gnu11", "-D_GNU_SOURCE", "-o", str(out[file.stem]), str(file)])
        if not ok:
            raise SetupError(f"{file.name} does not compile:\n{said}")
    return out
