"""Parts of the site's pages that come from the code: nothing is left out, and every mark is known."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import fields
from pathlib import Path

import pytest

from moontide.cli.main import _COMMANDS
from moontide.config import Config, describe

DOCS = Path(__file__).resolve().parents[2] / "docs"
_SPEC = importlib.util.spec_from_file_location("generated", DOCS / "generated.py")
assert _SPEC is not None and _SPEC.loader is not None
generated = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(generated)


def test_each_option_is_a_row_with_its_default_and_what_is_allowed() -> None:
    rows = generated.configuration().splitlines()
    assert len(rows) == 2 + len(fields(Config))
    for field, row in zip(fields(Config), rows[2:], strict=True):
        cells = re.split(r"(?<!\\)\|", row)
        assert len(cells) == 6, row
        assert cells[1].strip() == f"`{field.name}`"
        assert cells[3].strip().replace("\\", "") == describe(field.name)[0]
    assert "| `progress_timeout` | `2" in generated.configuration()


def test_each_command_has_its_help() -> None:
    text = generated.commands()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert {f"moontide {name}" for name in _COMMANDS} | {
        "moontide",
        "moontide bench transfer",
        "moontide bench policy",
    } == set(headings)
    assert "--tls-ca FILE" in text


def test_marks_are_filled_and_unknown_ones_are_an_error() -> None:
    assert "`connect_timeout`" in generated.fill("# Page\n\n<!-- generated: configuration -->\n")
    with pytest.raises(KeyError):
        generated.fill("<!-- generated: weather -->")


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")} - {"index"}
    listed = set(re.findall(r"^[a-z]+(?:/(?:[a-z]+|\*))?$", index, re.MULTILINE))
    assert {"design/*" if page.startswith("design/") else page for page in pages} == listed
