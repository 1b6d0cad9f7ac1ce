"""`moontide master`."""

from __future__ import annotations

import contextlib

import click

from moontide.access import access_of, listening_address
from moontide.cli.options import config_options, set_up_logging
from moontide.cli.serving import describe_counts, refusal_news, serve_until_signal
from moontide.config import Config

__all__ = ["master"]

_EVENTS_NOTED = 1 << 18  # until they are published; beyond it all objects are told anew


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
    "events_listen",
    "events_replay_listen",
    "events_topic",
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
    events_listen="HOST:PORT",
    events_replay_listen="HOST:PORT",
    events_topic="TEXT",
    lease="TIME",
    eviction="NAME",
    max_objects="COUNT",
    server_spin_us="COUNT",
)
def master(config: Config) -> None:
    """Run the pool's master: it knows what lies where; no byte of an object passes it.

    Prints its address on one line once it answers, and the URL of its page, its health, its directory and /metrics
    where --http-listen asks for them; --events-listen publishes what happens to objects, as vLLM does its KV events.
    Restarted on the same addresses it gets its facts back from the nodes, and the directory's records from those who
    published them.
    """
    from moontide._core import Master
    from moontide.admin import PoolService
    from moontide.directory.server import SegmentService
    from moontide.events.publisher import EventPublisher
    from moontide.observe.servers import directory_collector, observed, pool_collector

    set_up_logging(config)
    segments = SegmentService()
    listen, access = listening_address(config.listen), access_of(config)
    noted = 0 if config.events_listen is None else _EVENTS_NOTED
    server = Master(listen, config.lease, config.eviction, access, config.max_objects, config.server_spin_us, noted)
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
            events = ""
            if config.events_listen is not None:
                publisher = EventPublisher(
                    server,
                    config.events_listen,
                    config.events_replay_listen,
                    topic=config.events_topic,
                    anywhere=config.http_reach == "anywhere",
                )
                ends.callback(publisher.close)
                events = f", events at {publisher.address}"
                events += f" and {publisher.replay_address}" if publisher.replay_address is not None else ""
            serve_until_signal(
                f"moontide master at {server.address}, term {server.term}{http}{events}",
                refusal_news(lambda: server.refusals),
                server.drive if config.server_spin_us else None,
            )
    finally:
        server.close()
