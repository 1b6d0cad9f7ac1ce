"""`moontide doctor`."""

from __future__ import annotations

import textwrap

import click
import msgspec

from moontide.cli.options import config_options
from moontide.config import Config, parse_duration
from moontide.doctor import Finding, examine, read_system

__all__ = ["doctor"]

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}
_WIDTH = 110


def _lines(finding: Finding) -> str:
    head = click.style(f"{finding.status:<5}", fg=_COLORS[finding.status]) + f"{finding.check:<20}"
    text = textwrap.wrap(finding.text, _WIDTH - 25) or [""]
    lines = [head + text[0], *(" " * 25 + line for line in text[1:])]
    if finding.remedy:
        lines += [" " * 25 + line for line in textwrap.wrap("→ " + finding.remedy, _WIDTH - 25, subsequent_indent="  ")]
    return "\n".join(lines)


@click.command()
@click.option("--timeout", default="3s", metavar="TIME", show_default=True, help="For each server and name.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per finding instead of text.")
@click.option("--facts", is_flag=True, help="Print what the findings are made of, as one JSON object, for a report.")
@config_options("listen", "http_listen", "master", "directory", listen="HOST:PORT", http_listen="HOST:PORT")
def doctor(timeout: str, as_json: bool, facts: bool, config: Config) -> None:
    """Look for what keeps Moontide from working well on this machine, and say what to do.

    Addresses of the configuration are tried: its own ports must be free, its servers must answer. Exit status 1 when
    something fails; a warning is a path that will not be used or a surprise that waits.
    """
    system = read_system(config, timeout=parse_duration(timeout, option="--timeout"))
    if facts:
        click.echo(msgspec.json.encode(system))
        return
    findings = examine(system)
    for finding in findings:
        click.echo(msgspec.json.encode(finding) if as_json else _lines(finding))
    if any(finding.status == "fail" for finding in findings):
        raise click.exceptions.Exit(1)
