"""A server that answers like an OpenAI-compatible engine, and misbehaves on demand. Loopback, a free port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
PARAMS = {"do_remote_prefill": True, "moontide": 1, "hold": "00" * 16}


class FakeServer:
    """Records the bodies it gets. ``behave`` replaces the normal answer."""

    def __init__(self, name: str, *, params: dict[str, Any] | None = None) -> None:
        self.name = name
        self.params = params
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.cancelled = asyncio.Event()
        self.started = asyncio.Event()
        self.behave: Handler | None = None
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._complete)
        app.router.add_get("/v1/models", self._models)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.name}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(request.headers)
        self.started.set()
        try:
            if self.behave is not None:
                return await self.behave(request, body)
            if body.get("stream"):
                return await stream(request, [f"{self.name}{index}" for index in range(3)])
            answer: dict[str, Any] = {"id": "x", "choices": [{"text": self.name}]}
            if self.params is not None and "kv_transfer_params" in body:
                answer["kv_transfer_params"] = self.params
            return web.json_response(answer)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def stream(
    request: web.Request, pieces: list[str], *, then: Callable[[], None] | None = None
) -> web.StreamResponse:
    """Server-sent events; ``then`` runs before the end."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for piece in pieces:
        await response.write(f"data: {json.dumps({'choices': [{'text': piece}]})}\n\n".encode())
    if then is not None:
        then()
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


@asynccontextmanager
async def servers(*fakes: FakeServer) -> AsyncIterator[None]:
    for fake in fakes:
        await fake.start()
    try:
        yield
    finally:
        for fake in fakes:
            await fake.stop()
