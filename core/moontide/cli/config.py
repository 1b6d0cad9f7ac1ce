"""`moontide config`."""

from __future__ import annotations

from dataclasses import fields

import click

from moontide.cli.options import option_flags
from moontide.config import Config, describe, load_with_sources, show

_NAMES = tuple(field.name for field in fields(Config))


@click.command()
@click.option("--verbose", "-v", is_flag=True, help="Also say what each option is for and what is allowed.")
@option_flags(*_NAMES)
def config(verbose: bool, **flags: str | None) -> None:
    """Print the effective configuration as TOML, with the source of each value."""
    effective, sources = load_with_sources(flags)
    lines = []
    for name in _NAMES:
        value = getattr(effective, name)
        text = show(name, value)
        lines.append((name, f"{name} = {text}" if text.isdigit() else f'{name} = "{text}"', sources[name]))
    width = max(len(text) for _, text, _ in lines)
    for name, text, source in lines:
        if verbose:
            click.echo("# {}; allowed: {}".format(*describe(name)))
        click.echo(f"{text:<{width}}  # {source}")
