"""Takes guards out of a scratch copy, one at a time, and asks whether the simulation notices.

`python tests/mutants/run.py` tries every *.patch of this folder; names of some try those. A patch begins with lines
`law:`, `what:` and `fails:` (`sim`, or `cxx` and a filter of test cases); the diff follows. A guard whose loss nothing
notices, and a patch that does not apply any more, are failures.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SCRATCH = ROOT / "build" / "mutants"
TREE = SCRATCH / "tree"
SEEDS = 400
FOLDERS = ("csrc", "core", "tests/unit", "tests/contract", "tests/sim")


@dataclass(frozen=True)
class Mutant:
    path: Path
    law: str
    what: str
    fails: str

    @property
    def name(self) -> str:
        return self.path.stem


def read_mutant(path: Path) -> Mutant:
    lines = path.read_text().splitlines()[:3]
    head = dict(line.split(": ", 1) for line in lines)
    return Mutant(path, head["law"], head["what"], head["fails"])


def copy_tree() -> None:
    """The sources as they are now; files that did not change keep their times, so that little is built again."""
    for folder in FOLDERS:
        for source in (ROOT / folder).rglob("*"):
            if source.suffix not in (".h", ".cpp", ".py", ".txt", ".map"):
                continue
            target = TREE / source.relative_to(ROOT)
            if target.exists() and target.read_bytes() == source.read_bytes():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def build(targets: list[str]) -> None:
    tools = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "CCACHE_BASEDIR": str(TREE),
        "CCACHE_NOHASHDIR": "1",
    }
    folder = SCRATCH / "build"
    if not (folder / "build.ninja").exists():
        pybind11 = subprocess.check_output([sys.executable, "-m", "pybind11", "--cmakedir"], text=True).strip()
        configure = [
            *("cmake", "-S", str(TREE / "csrc"), "-B", str(folder), "-G", "Ninja"),
            *("-DSKBUILD=ON", "-DSKBUILD_PROJECT_VERSION=0", "-DMOONTIDE_TESTS=ON", "-DMOONTIDE_WERROR=OFF"),
            *(
                "-DCMAKE_BUILD_TYPE=Debug",
                "-DCMAKE_CXX_FLAGS_DEBUG=-O1",
                f"-Dpybind11_DIR={pybind11}",
                f"-DPython_EXECUTABLE={sys.executable}",
            ),
        ]
        subprocess.run(configure, check=True, env=environment, stdout=subprocess.DEVNULL)
    subprocess.run(
        ["nice", "-n", "5", "ninja", "-C", str(folder), *targets],
        check=True,
        env=environment,
        stdout=subprocess.DEVNULL,
    )


def apply(mutant: Mutant) -> bool:
    # Outside of any repository as far as git can tell, so that it takes the folder for what the patch speaks of.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(SCRATCH)}
    command = ["git", "apply", "--unidiff-zero", str(mutant.path)]
    return subprocess.run(command, cwd=TREE, env=environment).returncode == 0


def simulate() -> tuple[bool, str]:
    """Whether all seeds hold, and the last line of what was said."""
    core = SCRATCH / "build" / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    command = [sys.executable, str(HERE / "sim_seeds.py"), str(TREE / "core"), str(core), str(SEEDS)]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode == 0, done.stdout.strip().splitlines()[
        -1
    ] if done.stdout.strip() else f"exit {done.returncode}"


def run_tests(name: str) -> tuple[bool, str]:
    command = [str(SCRATCH / "build" / "moontide_tests"), f"--test-case={name}", "--minimal", "--no-colors"]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wrong = [line for line in done.stdout.splitlines() if "ERROR" in line]
    return done.returncode == 0, wrong[0] if wrong else f"exit {done.returncode}"


def check(mutant: Mutant) -> tuple[bool, str]:
    """Whether the loss of the guard was noticed, and by what."""
    kind, _, name = mutant.fails.partition(" ")
    build(["_core"] if kind == "sim" else ["moontide_tests"])
    held, said = simulate() if kind == "sim" else run_tests(name)
    return not held, said


def main(names: list[str]) -> int:
    mutants = [read_mutant(path) for path in sorted(HERE.glob("*.patch"))]
    mutants = [mutant for mutant in mutants if not names or mutant.name in names]
    copy_tree()
    build(["_core"] if all(mutant.fails == "sim" for mutant in mutants) else [])
    held, said = simulate()
    if not held:
        print(f"the simulation fails without any mutant: {said}")
        return 1
    print(f"without mutants {SEEDS} seeds hold")
    survivors = []
    for mutant in mutants:
        started = time.monotonic()
        if not apply(mutant):
            noticed, said = False, "the patch does not apply"
        else:
            try:
                noticed, said = check(mutant)
            except subprocess.CalledProcessError:
                noticed, said = False, "the mutant does not build"
            finally:
                copy_tree()
        if not noticed:
            survivors.append(mutant.name)
        verdict = "noticed" if noticed else "SURVIVED"
        print(f"law {mutant.law} {mutant.name}: {verdict} in {time.monotonic() - started:.0f} s")
        print(f"  {mutant.what}\n  {said[:200]}", flush=True)
    print(
        f"{len(mutants) - len(survivors)} of {len(mutants)} noticed"
        + (f"; not: {', '.join(survivors)}" if survivors else "")
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
