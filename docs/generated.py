"""The parts of pages that the code itself says: a line `<!-- generated: WHAT -->` of a page becomes such a part."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields

import click

from moontide.cli.main import main
from moontide.config import Config, describe, show

__all__ = ["commands", "configuration", "fill"]

_MARK = re.compile(r"^<!-- generated: (\S+) -->$", re.MULTILINE)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;").replace("…", "...")


def configuration() -> str:
    """A table with a row per option of `moontide.config.Config`."""
    defaults = Config()
    rows = ["| option | default | what it is for | allowed |", "|---|---|---|---|"]
    for field in fields(Config):
        value = show(field.name, getattr(defaults, field.name))
        purpose, allowed = describe(field.name)
        default = f"`{value}`" if value else "(empty)"
        rows.append(f"| `{field.name}` | {default} | {_cell(purpose)} | {_cell(allowed)} |")
    return "\n".join(rows)


def commands() -> str:
    """What `--help` says: of `moontide`, of each command, and of each command of a group."""
    return "\n".join(_help(main, click.Context(main, info_name="moontide")))


def _help(command: click.Command, context: click.Context) -> list[str]:
    text = command.get_help(context)
    parts = [f"## {context.command_path}", "", "```text", text.replace("```", "'''"), "```", ""]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            parts += _help(inner, click.Context(inner, info_name=name, parent=context))
    return parts


_PARTS: dict[str, Callable[[], str]] = {"configuration": configuration, "commands": commands}


def fill(page: str) -> str:
    """The page with its marks replaced. KeyError: there is no such part."""
    return _MARK.sub(lambda mark: _PARTS[mark[1]](), page)
