"""What the pages of docs/ show runs as it stands there: the Python of a page in order, the commands by their flags."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from moontide.cli.main import main
from support.pool_process import Pool, Server, free_port

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
PAGES = {page.name: page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))}
MASTER, DIRECTORY = "127.0.0.1:7700", "127.0.0.1:7780"
# A block that needs a package says so in the line above it.
_BLOCK = re.compile(r"(?:^<!-- needs: (\w+) -->\n)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^ +moontide ((?:[a-z]+ ?)+)((?:(?!&).)*)|`moontide ((?:[a-z]+ ?)+)([^`]*)`", re.MULTILINE)


def program(text: str, *packages: str) -> str:
    """The blocks that need none but these packages, one after the other, each line where it is in the page."""
    lines = [""] * text.count("\n")
    for block in _BLOCK.finditer(text):
        if not block[1] or block[1] in packages:
            first = text.count("\n", 0, block.start(2))
            code = block[2].splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines)


def needs(text: str) -> set[str]:
    return {block[1] for block in _BLOCK.finditer(text) if block[1]}


def run(
    name: str, code: str, python: str = sys.executable, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """In a process of its own, so that nothing of a page stays behind; a traceback has the page's line numbers."""
    start = f"import sys; exec(compile(sys.stdin.read(), {name!r}, 'exec'), {{'__name__': '__main__'}})"
    return subprocess.run(
        [python, "-c", start], input=code, capture_output=True, text=True, timeout=100, check=False, env=environment
    )


def checked(name: str, code: str, python: str = sys.executable) -> None:
    """Runs it beside the servers that its addresses name."""
    with contextlib.ExitStack() as servers:
        if MASTER in code:
            code = code.replace(MASTER, servers.enter_context(Pool()).address)
        if DIRECTORY in code:
            address = f"127.0.0.1:{free_port()}"
            master = Server("master", "--listen", "127.0.0.1:0", "--http-listen", address)
            servers.callback(master.close)
            code = code.replace(DIRECTORY, address)
        done = run(name, code, python)
    assert done.returncode == 0, done.stderr[-4000:]


def python_with(package: str) -> str | None:
    """This environment, or the one that vLLM's tests use, if it has the package and the project."""
    for python in (sys.executable, str(ROOT / "build" / "vllm-env" / "bin" / "python")):
        if Path(python).exists():
            found = subprocess.run([python, "-c", f"import {package}, moontide"], capture_output=True, check=False)
            if found.returncode == 0:
                return python
    return None


def test_the_pages_that_have_to_show_code_do() -> None:
    assert {"cookbook.md", "quickstart.md"} <= {name for name, text in PAGES.items() if _BLOCK.search(text)}
    for name, text in PAGES.items():
        assert text.count("```python") == len(list(_BLOCK.finditer(text))), f"{name}: a block that is not run"


@pytest.mark.parametrize("name", [name for name, text in PAGES.items() if program(text).strip()])
def test_the_python_of_a_page_runs(name: str) -> None:
    checked(name, program(PAGES[name]))


@pytest.mark.frameworks
@pytest.mark.parametrize(("name", "package"), [(name, each) for name in PAGES for each in sorted(needs(PAGES[name]))])
def test_the_python_of_a_page_runs_with_a_package_that_it_needs(name: str, package: str) -> None:
    python = python_with(package)
    if python is None:
        pytest.skip(f"{package} is neither in this environment nor in build/vllm-env (make vllm-env)")
    checked(name, program(PAGES[name], package), python)


def test_a_page_that_is_wrong_is_noticed() -> None:
    page = "Text.\n\n```python\nx = 1\n```\n\n<!-- needs: nothing_such -->\n```python\nx = 2\n```\n\n"
    page += "```python\nassert x == 2\n```\n"
    done = run("page.md", program(page))
    assert done.returncode != 0
    assert 'File "page.md", line 13' in done.stderr
    assert needs(page) == {"nothing_such"}
    assert run("page.md", program(page, "nothing_such")).returncode == 0


_SECURED = """
import moontide
from moontide import errors

with moontide.Engine() as owner, moontide.Engine() as reader:
    source = owner.allocate(4096, name="source")
    source.buffer[:] = b"x" * 4096
    target = reader.allocate(4096)
    reader.read([(target, reader.open(owner.address).region("source"), 0, 4096)]).wait(10)
    assert bytes(target.buffer) == bytes(source.buffer)
    for options in ({}, {"secret_file": owner.config.secret_file}):
        with moontide.Engine(config=moontide.load_config(options, environ={})) as stranger:
            try:
                stranger.open(owner.address, timeout=5)
            except errors.MoontideError as error:
                print(error)
            else:
                raise AssertionError(f"let in with {options}")
"""


def test_the_security_set_up_works_and_keeps_others_out(tmp_path: Path) -> None:
    """The shell lines of the page, in a folder that stands for the page's; the commands of moontide are left out."""
    blocks = re.findall(r"(?:^    .*\n)+", PAGES["security.md"], re.MULTILINE)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines = [line.replace("/etc/moontide", str(tmp_path)) for line in lines if not line.startswith("moontide ")]
    options = dict(line.removeprefix("export ").split("=", 1) for line in lines if line.startswith("export "))
    assert set(options) == {"MOONTIDE_SECRET_FILE", "MOONTIDE_TLS_CERT", "MOONTIDE_TLS_KEY", "MOONTIDE_TLS_CA"}
    subprocess.run(["sh", "-ec", "\n".join(lines)], cwd=tmp_path, check=True, capture_output=True)
    done = run("secured", _SECURED, environment={**os.environ, **options})
    assert done.returncode == 0, done.stderr[-4000:]


def commands() -> set[tuple[str, str]]:
    """(the command and its subcommands, its flags) of every line and every word in quotes that begins with moontide."""
    found = set()
    for text in PAGES.values():
        for line in _COMMAND.finditer(_BLOCK.sub("", text)):
            words, rest = line[1] or line[3], line[2] or line[4] or ""
            found.add((words.strip(), " ".join(re.findall(r"--[a-z-]+", rest))))
    return found


@pytest.mark.parametrize(("words", "flags"), sorted(commands()))
def test_commands_and_their_flags(words: str, flags: str) -> None:
    result = CliRunner().invoke(main, [*words.split(), "--help"])
    assert result.exit_code == 0, result.output
    for flag in flags.split():
        assert flag in result.output, f"moontide {words} has no {flag}"
