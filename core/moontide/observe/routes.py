"""HTTP routes for looking at a process: /metrics for Prometheus, /debug/transfers for people and programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import msgspec
from aiohttp import web

from moontide.observe.dumps import EngineDump, format_dump
from moontide.observe.prometheus import CONTENT_TYPE, Collector, CountsCollector, page

__all__ = ["observe_routes"]


def observe_routes(
    collectors: Iterable[Collector | CountsCollector], dumps: Mapping[str, Callable[[], EngineDump]] | None = None
) -> list[web.RouteDef]:
    """For ``web.Application().add_routes(...)``. `dumps`: engine name → its `dump`; without, there is no such route.

    GET /debug/transfers answers in JSON, an object per engine; with ?format=text as the signal's dump is written.
    The engines are asked in a worker thread: their lock is never waited for in the event loop.
    """
    chosen = list(collectors)
    sources = dict(dumps or {})

    async def metrics(request: web.Request) -> web.Response:
        body = await asyncio.to_thread(page, *chosen)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    def read() -> dict[str, EngineDump]:
        return {name: dump() for name, dump in sources.items()}

    async def transfers(request: web.Request) -> web.Response:
        engines = await asyncio.to_thread(read)
        if request.query.get("format") == "text":
            return web.Response(text="".join(format_dump(dump) for dump in engines.values()))
        return web.Response(body=msgspec.json.encode(engines), content_type="application/json")

    routes = [web.get("/metrics", metrics)]
    if sources:
        routes.append(web.get("/debug/transfers", transfers))
    return routes
