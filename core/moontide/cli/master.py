"""`moontide master`."""

from __future__ import annotations

import contextlib

import click

from moontide.access import access_of, listening_address
from moontide.cli.options import config_options, set_up_logging
from moontide.cli.serving import describe_counts, refusal_news, serve_until_signal
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
    "http_listen",
    "http_reach",
    "http_token_file",
    "lease",
    "eviction",
    "max_objects",
    "server_spin_us",
    "log_level",
    listen="HOST:PORT",
    secret_file="FILE",
    tls_cert="FILE",
    tls_key="FILE",
    tls_ca="FILE",
    insecure_listen="BOOL",
    http_listen="HOST:PORT",
    http_reach="WHERE",
    http_token_file="FILE",
    lease="TIME",
    eviction="NAME",
    max_objects="COUNT",
    server_spin_us="COUNT",
)
def master(config: Config) -> None:
    """Run the pool's master: it knows what lies where; no byte of an object passes it.

    Prints its address on one line once it answers, and the URL of its page, its health, its directory and /metrics
    where --http-listen asks for them. Restarted on the same addresses it gets its facts back from the nodes, and the
    directory's records from those who published them.
    """
    from moontide._core import Master
    from moontide.admin import PoolService
    from moontide.directory.server import SegmentService
    from moontide.observe.servers import directory_collector, observed, pool_collector

    set_up_logging(config)
    segments = SegmentService()
    listen, access = listening_address(config.listen), access_of(config)
    server = Master(listen, config.lease, config.eviction, access, config.max_objects, config.server_spin_us)
    try:
        with contextlib.ExitStack() as ends:
            route_sets = [segments.routes()]
            if config.http_listen is not None:
                pool = PoolService(config, server)
                ends.callback(pool.close)
                route_sets.append(pool.routes())
            http = ends.enter_context(
                observed(
                    config,
                    [pool_collector(server.stats), directory_collector(segments.counts)],
                    describe=lambda: describe_counts(server.stats()),
                    route_sets=route_sets,
                )
            )
            serve_until_signal(
                f"moontide master at {server.address}, term {server.term}{http}",
                refusal_news(lambda: server.refusals),
                server.drive if config.server_spin_us else None,
            )
    finally:
        server.close()
