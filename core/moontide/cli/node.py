"""`moontide node`."""

from __future__ import annotations

import click

from moontide.cli.options import config_options, set_up_logging
from moontide.cli.serving import serve_until_signal
from moontide.config import Config
from moontide.errors import Invalid

__all__ = ["node"]


@click.command()
@config_options(
    "master", "lend", "listen", "local_reads", "log_level", master="HOST:PORT", lend="SIZE", listen="HOST:PORT"
)
def node(config: Config) -> None:
    """Lend memory of this machine to the pool. What lies in it goes when this process ends."""
    from moontide._core import Node
    from moontide.engine import Engine

    set_up_logging(config)
    if config.master is None:
        raise Invalid("a node needs --master HOST:PORT (or MOONTIDE_MASTER)")
    if config.lend == 0:
        raise Invalid("a node needs --lend SIZE, for example --lend 256MiB")
    with Engine(config=config) as engine:
        lender = Node(engine._runtime, config.master, config.lend)
        joined = False

        def watch() -> str | None:
            nonlocal joined
            if lender.joined == joined:
                return None
            joined = lender.joined
            return f"joined {config.master}, term {lender.term}" if joined else f"left the pool: {lender.last_error}"

        serve_until_signal(f"moontide node at {engine.address} lends {config.lend} bytes to {config.master}", watch)
