"""The `moontide` command. Each subcommand is a file of its own and is loaded when it is asked for."""

from __future__ import annotations
