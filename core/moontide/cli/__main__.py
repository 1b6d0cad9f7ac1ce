"""`python -m moontide.cli` is the `moontide` command."""

from __future__ import annotations

from moontide.cli.main import main

main()
