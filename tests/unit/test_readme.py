"""What the README shows runs as it stands there; only its addresses are exchanged for free ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import moontide
from moontide.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_python_examples() -> None:
    assert python_blocks()
    with moontide.Engine() as other:
        weights = other.allocate(1 << 20, name="weights")
        weights.buffer[:] = b"w" * (1 << 20)
        for block in python_blocks():
            scope: dict[str, object] = {}
            code = block.replace('"127.0.0.1:7801"', repr(other.address)).replace('Store("127.0.0.1:7700")', "Store()")
            assert code != block
            exec(compile(code, "README.md", "exec"), scope)
            mine, store = scope["mine"], scope["store"]
            assert isinstance(mine, moontide.Arena) and isinstance(store, moontide.Store)
            store.close()


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^    moontide ([a-z]+)", README, re.MULTILINE))))
def test_commands_and_their_flags(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0, result.output
    line = next(line for line in README.splitlines() if line.startswith(f"    moontide {command} "))
    for flag in re.findall(r"--[a-z-]+", line):
        assert flag in result.output


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\bmake ([a-z][a-z-]+)\b[^.]", README))))
def test_make_targets(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_links_lead_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/**/*.md")):
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
