"""`moontide master`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import click

from moontide.cli.options import config_options, set_up_logging
from moontide.cli.serving import serve_until_signal
from moontide.config import Config

__all__ = ["master"]

_BODY_BYTES_MAX = 16 << 10


@contextlib.contextmanager
def _http(listen: str | None) -> Iterator[str]:
    """Serves HTTP in a thread of its own meanwhile; what the announcement says about it."""
    if listen is None:
        yield ""
        return
    from aiohttp import web

    from moontide._http import HttpListener
    from moontide.directory.server import SegmentService

    app = web.Application(client_max_size=_BODY_BYTES_MAX)
    app.add_routes(SegmentService().routes())
    listener = HttpListener(app)
    loop = asyncio.new_event_loop()
    try:
        address = loop.run_until_complete(listener.start(listen))
        thread = threading.Thread(target=loop.run_forever, name="moontide-http", daemon=True)
        thread.start()
        try:
            yield f", directory http://{address}"
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.run_until_complete(listener.close())
    finally:
        loop.close()


@click.command()
@config_options(
    "listen", "lease", "http_listen", "log_level", listen="HOST:PORT", lease="TIME", http_listen="HOST:PORT"
)
def master(config: Config) -> None:
    """Run the pool's master: it knows what lies where; no byte of an object passes it.

    Prints its address on one line once it answers, and the URL of its directory where --http-listen asks for one.
    Restarted on the same addresses it gets its facts back from the nodes, and the directory's records from those who
    published them.
    """
    from moontide._core import Master

    set_up_logging(config)
    with _http(config.http_listen) as http:
        server = Master(config.listen, config.lease)
        try:
            serve_until_signal(f"moontide master at {server.address}, term {server.term}{http}")
        finally:
            server.close()
