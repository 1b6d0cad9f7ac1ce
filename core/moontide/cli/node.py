"""`moontide node`."""

from __future__ import annotations

import dataclasses

import click

from moontide.access import resolve
from moontide.cli.options import config_options, set_up_logging
from moontide.cli.serving import refusal_news, serve_until_signal
from moontide.config import Config
from moontide.errors import Invalid

__all__ = ["node"]


@click.command()
@config_options(
    "master",
    "lend",
    "hot_cache",
    "listen",
    "advertise",
    "secret_file",
    "tls_cert",
    "tls_key",
    "tls_ca",
    "insecure_listen",
    "http_listen",
    "local_reads",
    "server_spin_us",
    "log_level",
    master="HOST:PORT",
    lend="SIZE",
    hot_cache="SIZE",
    listen="HOST:PORT",
    advertise="HOST",
    secret_file="FILE",
    tls_cert="FILE",
    tls_key="FILE",
    tls_ca="FILE",
    insecure_listen="BOOL",
    http_listen="HOST:PORT",
    server_spin_us="COUNT",
)
def node(config: Config) -> None:
    """Lend memory of this machine to the pool. What lies in it goes when this process ends."""
    from moontide._core import Node
    from moontide.engine import Engine
    from moontide.observe.prometheus import Collector
    from moontide.observe.servers import node_collector, observed

    set_up_logging(config)
    if config.master is None:
        raise Invalid("a node needs --master HOST:PORT (or MOONTIDE_MASTER)")
    if config.lend == 0:
        raise Invalid("a node needs --lend SIZE, for example --lend 256MiB")
    spin_us = config.server_spin_us or config.spin_us
    with Engine(config=dataclasses.replace(config, spin_us=spin_us)) as engine:
        lender = Node(engine._runtime, resolve(config.master, option="master"), config.lend, config.hot_cache)
        refused = refusal_news(engine.refusals)
        joined = False

        def watch() -> str | None:
            nonlocal joined
            if lender.joined == joined:
                return refused()
            joined = lender.joined
            return f"joined {config.master}, term {lender.term}" if joined else f"left the pool: {lender.last_error}"

        collectors = (Collector(node=engine.metrics), node_collector(lender.stats))
        with observed(config, collectors, {"node": engine.dump}) as http:
            kept = f", keeps {config.hot_cache} for its host" if config.hot_cache else ""
            announce = f"moontide node at {engine.address} lends {config.lend} bytes to {config.master}{kept}{http}"
            serve_until_signal(announce, watch, engine.drive if config.server_spin_us else None)
