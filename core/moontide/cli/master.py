"""`moontide master`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from moontide.access import access_of, listening_address
from moontide.cli.options import config_options, set_up_logging
from moontide.cli.serving import refusal_news, serve_until_signal
from moontide.config import Config

__all__ = ["master"]


@contextlib.contextmanager
def _directory(config: Config) -> Iterator[str]:
    """Serves the directory while the block runs; yields what to add to the line of the address."""
    if config.http_listen is None:
        yield ""
        return
    from moontide._http import HttpThread
    from moontide.directory.server import SegmentService

    server = HttpThread(config.http_listen, SegmentService().routes(), anywhere=config.http_reach == "anywhere")
    try:
        yield f", http://{server.address}"
    finally:
        server.close()


@click.command()
@config_options(
    "listen",
    "secret_file",
    "tls_cert",
    "tls_key",
    "tls_ca",
    "insecure_listen",
    "http_listen",
    "http_reach",
    "lease",
    "log_level",
    listen="HOST:PORT",
    secret_file="FILE",
    tls_cert="FILE",
    tls_key="FILE",
    tls_ca="FILE",
    insecure_listen="BOOL",
    http_listen="HOST:PORT",
    http_reach="WHERE",
    lease="TIME",
)
def master(config: Config) -> None:
    """Run the pool's master: it knows what lies where; no byte of an object passes it.

    Prints its address on one line once it answers, and the URL of its directory where --http-listen asks for one.
    Restarted on the same addresses it gets its facts back from the nodes, and the directory's records from those who
    published them.
    """
    from moontide._core import Master

    set_up_logging(config)
    with _directory(config) as http:
        server = Master(listening_address(config.listen), config.lease, access_of(config))
        try:
            serve_until_signal(
                f"moontide master at {server.address}, term {server.term}{http}",
                refusal_news(lambda: server.refusals),
            )
        finally:
            server.close()
