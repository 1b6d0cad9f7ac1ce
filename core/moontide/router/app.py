"""The HTTP surface: OpenAI's completions for clients; health and metrics for operators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from moontide.errors import Denied, Invalid, Unavailable
from moontide.router.backends import Backend, Group
from moontide.router.flow import ClientLeft, Flow, Limits, error_response, read_at_most
from moontide.router.headers import for_client, for_server
from moontide.router.metrics import Metrics
from moontide.router.rewrite import parse, strip

__all__ = ["Router", "serve"]

logger = logging.getLogger("moontide.router")


class Router:
    """`app` is ready to be run; it opens its connections when it starts and closes them when it ends."""

    def __init__(self, prefill: Sequence[str], decode: Sequence[str], limits: Limits | None = None) -> None:
        if not decode:
            raise Invalid("at least one decode server is needed")
        self.limits = limits or Limits()
        self.prefill = Group([Backend(url) for url in prefill])
        self.decode = Group([Backend(url) for url in decode])
        self.metrics = Metrics()
        self._session: aiohttp.ClientSession
        self._flow: Flow
        self.app = web.Application(client_max_size=self.limits.body_bytes, middlewares=[_errors_as_json])
        self.app.cleanup_ctx.append(self._connections)
        self.app.add_routes(
            [
                web.post("/v1/completions", self.complete),
                web.post("/v1/chat/completions", self.complete),
                web.get("/v1/models", self.models),
                web.get("/health", self.health),
                web.get("/metrics", self.metrics_page),
            ]
        )

    async def _connections(self, app: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        # The session is shared by all clients: what it remembered of one would be sent for the next.
        async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
            self._session = session
            self._flow = Flow(session, self.prefill, self.decode, self.metrics, self.limits)
            yield

    async def complete(self, request: web.Request) -> web.StreamResponse:
        try:
            body: Any = parse(await request.read())
        except web.RequestPayloadError:
            response = error_response(400, "invalid_request_error", "the body does not follow its encoding")
            # What is left of the body is nothing to wait for, and no next request can be told from it.
            request.content.feed_eof()
            response.force_close()
            return response
        except msgspec.DecodeError as error:
            return error_response(400, "invalid_request_error", f"the body cannot be read as JSON: {error}")
        if not isinstance(body, dict):
            return error_response(400, "invalid_request_error", "the body must be a JSON object")
        if strip(body):
            self.metrics.stripped.inc()
        try:
            return await self._flow.run(request, body)
        except ClientLeft:
            self.metrics.disconnects.inc()
            return web.Response(status=499)
        except asyncio.CancelledError:
            self.metrics.disconnects.inc()
            raise

    async def models(self, request: web.Request) -> web.StreamResponse:
        """As the first server that answers has it."""
        timeout = aiohttp.ClientTimeout(total=10, sock_connect=self.limits.connect_timeout)
        for backend in (*self.decode.backends, *self.prefill.backends):
            try:
                get = self._session.get(
                    backend.url + "/v1/models",
                    headers=for_server(request.headers),
                    timeout=timeout,
                    allow_redirects=False,
                )
                async with get as answer:
                    data = await read_at_most(answer, self.limits.answer_bytes)
                    if data is not None and answer.status >= 200:
                        return web.Response(status=answer.status, body=data, headers=for_client(answer.headers, {}))
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
                continue
        return error_response(503, "decode_unavailable", "no server answers")

    async def health(self, request: web.Request) -> web.Response:
        """200 while a decode server is in use: requests are answered then, with or without prefill servers."""
        state = {
            role: {backend.url: "ok" if backend.available else "probation" for backend in group.backends}
            for role, group in (("prefill", self.prefill), ("decode", self.decode))
        }
        healthy = any(backend.available for backend in self.decode.backends)
        body = msgspec.json.encode({"status": "ok" if healthy else "no decode server answers", **state})
        return web.Response(status=200 if healthy else 503, body=body, content_type="application/json")

    def describe(self) -> str:
        """A line per server: what is under way there. Any thread."""
        return "".join(
            f"{role} {backend.url}: {backend.outstanding} requests under way, {backend.failures} failures, "
            f"{'in use' if backend.available else 'on probation'}\n"
            for role, group in (("prefill", self.prefill), ("decode", self.decode))
            for backend in group.backends
        )

    async def metrics_page(self, request: web.Request) -> web.Response:
        body = self.metrics.page(prefill=self.prefill, decode=self.decode)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


@web.middleware
async def _errors_as_json(request: web.Request, handler: Any) -> web.StreamResponse:
    try:
        response: web.StreamResponse = await handler(request)
    except web.HTTPRequestEntityTooLarge as error:
        return error_response(413, "invalid_request_error", error.text or "the body is too large")
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return error_response(error.status, "invalid_request_error", f"{request.method} {request.path}: {error.reason}")
    return response


async def serve(router: Router, listen: str, *, stop: asyncio.Event) -> None:
    """Runs until ``stop`` is set. Raises Invalid or Denied for a bad address, Unavailable for one that is taken."""
    host, port = _loopback(listen)
    runner = web.AppRunner(router.app, handler_cancellation=True, access_log=None, shutdown_timeout=5)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise Unavailable(f"cannot listen on {listen}: {error.strerror}") from None
        counts = (len(router.prefill.backends), len(router.decode.backends))
        logger.info("router on %s:%d, %d prefill and %d decode servers", *runner.addresses[0][:2], *counts)
        await stop.wait()
    finally:
        await runner.cleanup()


def _loopback(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise Invalid(f"listen = {listen!r}: write HOST:PORT")
    host = host.strip("[]")
    if host != "localhost" and host != "::1" and not host.startswith("127."):
        raise Denied(f"listen = {listen!r}: the router asks nobody who they are, so it listens on loopback only")
    return host, int(port)
