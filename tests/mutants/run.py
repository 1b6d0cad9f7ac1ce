"""Takes guards out of a scratch copy, one at a time, and asks whether the simulation, or a test, notices.

`python tests/mutants/run.py` tries every *.patch of this folder; names of some try those. A patch begins with lines
`law:` and `what:`, and `test:` where a test of pytest, or `case:` where a C++ test case, has to notice instead of the
simulation; the diff follows. A guard whose loss is not noticed, and a patch that does not apply or build any more, are
failures.
"""

from __future__ import annotations

import os
import re
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
    test: str  # of pytest
    case: str  # of the C++ tests; neither: the simulation

    @property
    def name(self) -> str:
        return self.path.stem


def read_mutant(path: Path) -> Mutant:
    lines = path.read_text().split("\n\n", 1)[0].splitlines()
    head = dict(line.split(": ", 1) for line in lines)
    return Mutant(path, head["law"], head["what"], head.get("test", ""), head.get("case", ""))


def copy_tree() -> None:
    """The sources as they are now; files that did not change keep their times, so that little is built again."""
    wanted = {
        source.relative_to(ROOT)
        for folder in FOLDERS
        for source in (ROOT / folder).rglob("*")
        if source.suffix in (".h", ".cpp", ".py", ".txt", ".map")
    }
    for old in [path for path in TREE.rglob("*") if path.is_file() and path.relative_to(TREE) not in wanted]:
        old.unlink()
    for name in wanted:
        source, target = ROOT / name, TREE / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)


def build(target: str) -> None:
    tools = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "CCACHE_BASEDIR": str(TREE),
        "CCACHE_NOHASHDIR": "1",
    }
    folder = SCRATCH / "build"
    pybind11 = subprocess.check_output([sys.executable, "-m", "pybind11", "--cmakedir"], text=True).strip()
    options = {
        "SKBUILD": "ON",
        "SKBUILD_PROJECT_VERSION": "0",
        "MOONTIDE_TESTS": "ON",
        "MOONTIDE_WERROR": "OFF",
        "CMAKE_BUILD_TYPE": "Debug",
        "CMAKE_CXX_FLAGS_DEBUG": "-O1",
        "pybind11_DIR": pybind11,
        "Python_EXECUTABLE": sys.executable,
    }
    configure = ["cmake", "-S", str(TREE / "csrc"), "-B", str(folder), "-G", "Ninja"]
    configure += [f"-D{name}={value}" for name, value in options.items()]
    subprocess.run(configure, check=True, env=environment, stdout=subprocess.DEVNULL)
    command = ["nice", "-n", "5", "ninja", "-C", str(folder), target]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


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
    lines = done.stdout.strip().splitlines() or [f"exit {done.returncode}"]
    return done.returncode == 0, lines[-1]


# Every process of a test has the scratch copy for its `moontide`, before the one that is installed in place.
_SITE = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "moontide" not in type(finder).__module__]
sys.path.insert(0, {packages!r})
"""


def run_test(test: str) -> tuple[bool, str]:
    """Whether the test passes with what was built, and the last line of what was said."""
    core = f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    shutil.copyfile(SCRATCH / "build" / core, TREE / "core" / "moontide" / core)
    site = SCRATCH / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(_SITE.format(packages=str(TREE / "core")))
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode not in (0, 1):  # 1: a test failed; else: it did not even run
        raise RuntimeError(f"{test}: {done.stdout[-2000:]}")
    return done.returncode == 0, done.stdout.strip().splitlines()[-1]


def run_case(case: str) -> tuple[bool, str]:
    """Whether the test case passes with what was built, and the line that says how many did."""
    pattern = case.replace(",", "?")  # a comma would part two patterns
    command = [str(SCRATCH / "build" / "moontide_tests"), "--no-colors", f"--test-case={pattern}"]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = re.search(r"test cases: *(\d+) .*", done.stdout)
    if said and int(said[1]) != 1:
        raise RuntimeError(f"{case}: {said[1]} test cases of that name")
    return done.returncode == 0, said[0] if said else f"exit {done.returncode}"


def check(mutant: Mutant) -> tuple[bool, str]:
    """Builds what the mutant's judge needs and asks it: whether all is well, and what it said."""
    build("moontide_tests" if mutant.case else "_core")
    if mutant.case:
        return run_case(mutant.case)
    return run_test(mutant.test) if mutant.test else simulate()


def main(names: list[str]) -> int:
    mutants = [read_mutant(path) for path in sorted(HERE.glob("*.patch"))]
    mutants = [mutant for mutant in mutants if not names or mutant.name in names]
    copy_tree()
    for mutant in {(mutant.test, mutant.case): mutant for mutant in mutants}.values():
        judge = mutant.case or mutant.test or f"the simulation of {SEEDS} seeds"
        held, said = check(mutant)
        if not held:
            print(f"{judge} fails without any mutant: {said}")
            return 1
        print(f"without mutants it holds: {judge}", flush=True)
    survivors = []
    for mutant in mutants:
        started = time.monotonic()
        if not apply(mutant):
            noticed, said = False, "the patch does not apply"
        else:
            try:
                held, said = check(mutant)
                noticed = not held
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
