"""`moontide master`."""

from __future__ import annotations

import click

from moontide.cli.options import config_options, set_up_logging
from moontide.cli.serving import serve_until_signal
from moontide.config import Config

__all__ = ["master"]


@click.command()
@config_options("listen", "lease", "log_level", listen="HOST:PORT", lease="TIME")
def master(config: Config) -> None:
    """Run the pool's master: it knows what lies where; no byte of an object passes it.

    Prints its address on one line once it answers. Restarted on the same address it gets its facts back from the nodes.
    """
    from moontide._core import Master

    set_up_logging(config)
    server = Master(config.listen, config.lease)
    try:
        serve_until_signal(f"moontide master at {server.address}, term {server.term}")
    finally:
        server.close()
