"""`moontide router`."""

from __future__ import annotations

import asyncio
import signal

import click

from moontide.cli.options import config_options, set_up_logging
from moontide.config import Config, parse_duration, parse_size

__all__ = ["router"]


def _urls(values: tuple[str, ...]) -> list[str]:
    return [url.strip() for value in values for url in value.split(",") if url.strip()]


@click.command()
@click.option("--prefill", multiple=True, metavar="URL", help="A prefill server; repeat it or separate by commas.")
@click.option("--decode", multiple=True, required=True, metavar="URL", help="A decode server; likewise.")
@click.option("--prefill-timeout", default="120s", metavar="TIME", show_default=True, help="For the prefill leg.")
@click.option("--max-body", default="16MiB", metavar="SIZE", show_default=True, help="Largest request body.")
@config_options("listen", "log_level", listen="HOST:PORT")
def router(
    prefill: tuple[str, ...], decode: tuple[str, ...], prefill_timeout: str, max_body: str, config: Config
) -> None:
    """Send OpenAI requests to a prefill server and then to a decode server.

    A request that cannot be split, or finds no prefill server, is answered by a decode server alone; the headers
    x-moontide-path and x-moontide-reason of the answer say so.
    """
    from moontide.observe.dumps import dump_on_signal
    from moontide.router.app import Router, serve
    from moontide.router.flow import Limits

    set_up_logging(config)
    limits = Limits(
        prefill_timeout=parse_duration(prefill_timeout, option="--prefill-timeout"),
        body_bytes=parse_size(max_body, option="--max-body"),
    )

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        door = Router(_urls(prefill), _urls(decode), limits)
        if config.dump_on_signal != "off":
            dump_on_signal(door.describe)
        await serve(door, config.listen, stop=stop)

    asyncio.run(run())
