"""`moontide master`."""

from __future__ import annotations

import click

from moontide.access import access_of, listening_address
from moontide.cli.options import config_options, set_up_logging
from moontide.cli.serving import refusal_news, serve_until_signal
from moontide.config import Config

__all__ = ["master"]


@click.command()
@config_options(
    "listen",
    "secret_file",
    "tls_cert",
    "tls_key",
    "tls_ca",
    "insecure_listen",
    "lease",
    "log_level",
    listen="HOST:PORT",
    secret_file="FILE",
    tls_cert="FILE",
    tls_key="FILE",
    tls_ca="FILE",
    insecure_listen="BOOL",
    lease="TIME",
)
def master(config: Config) -> None:
    """Run the pool's master: it knows what lies where; no byte of an object passes it.

    Prints its address on one line once it answers. Restarted on the same address it gets its facts back from the nodes.
    """
    from moontide._core import Master

    set_up_logging(config)
    server = Master(listening_address(config.listen), config.lease, access_of(config))
    try:
        serve_until_signal(
            f"moontide master at {server.address}, term {server.term}", refusal_news(lambda: server.refusals)
        )
    finally:
        server.close()
