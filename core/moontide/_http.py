"""An HTTP listener that strangers cannot exhaust: bounded connections, and none that only takes a place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web

from moontide import errors
from moontide._addresses import is_loopback, join_address, split_address
from moontide.errors import Denied, MoontideError, Unavailable

__all__ = ["HttpListener", "HttpThread", "error_answer", "json_answer"]

_BODY_BYTES_MAX = 16 << 10
_STATUS = {
    errors.Invalid: 400,
    errors.Denied: 403,
    errors.NotFound: 404,
    errors.Stale: 409,
    errors.Overloaded: 429,
    errors.Unavailable: 503,
    errors.TimedOut: 504,
    errors.NoSpace: 507,
}


def json_answer(body: object, status: int = 200) -> web.Response:
    """`body` as JSON."""
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")


def error_answer(error: MoontideError) -> web.Response:
    """{"error": {"code", "number", "message"}} with the status that comes nearest to the code."""
    body = {"error": {"code": error.code, "number": error.number, "message": error.message}}
    return json_answer(body, _STATUS.get(type(error), 500))


class _Refused(asyncio.Protocol):
    """One connection too many: all others are being answered."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class HttpListener:
    """Serves an application at "host:port" in the running event loop, until `close`.

    A connection that brings no whole request (headers and body) within `patience` seconds, at its start or after its
    last answer, is dropped. Of more than `connections_max` the one that has been quiet for longest makes room, so that
    whoever takes all places cannot keep them. Nobody is asked who they are, so other than loopback addresses need
    `anywhere`.
    """

    def __init__(
        self, app: web.Application, *, connections_max: int = 512, patience: float = 75, anywhere: bool = False
    ) -> None:
        self._anywhere = anywhere
        self._connections_max = connections_max
        self._patience = patience
        # connection → since when it is quiet, the longest first; while it is answered: infinity, in its old place
        self._since: dict[Any, float] = {}
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        app.middlewares.append(self._watch)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=2, keepalive_timeout=patience, lingering_time=1.0
        )

    async def start(self, listen: str) -> str:
        """The address, with the port that was taken. Denied: not a loopback address. Unavailable: taken."""
        host, port = split_address(listen, what="http_listen")
        if not is_loopback(host) and not self._anywhere:
            raise Denied(
                f"http_listen = {listen!r}: only loopback addresses, since nobody is asked who they are; http_reach = "
                "anywhere waives that"
            )
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connection, host, port, backlog=128)
        except OSError as error:
            await self._runner.cleanup()
            raise Unavailable(f"cannot listen on {listen}: {error.strerror}") from None
        self._sweeper = loop.create_task(self._sweep())
        return join_address(*self._server.sockets[0].getsockname()[:2])

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()

    def _connection(self) -> asyncio.Protocol:
        server = self._runner.server
        if server is None or (len(server.connections) >= self._connections_max and not self._make_room()):
            return _Refused()
        connection = server()
        self._since[connection] = asyncio.get_running_loop().time()
        return connection

    def _make_room(self) -> bool:
        for quietest, since in self._since.items():  # in the order of their times
            if quietest.transport is not None and since != float("inf"):
                break
        else:
            return False
        del self._since[quietest]
        quietest.force_close()
        return True

    @web.middleware
    async def _watch(self, request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            await request.read()
            self._since[request.protocol] = float("inf")
            response: web.StreamResponse = await handler(request)
            return response
        finally:
            if self._since.pop(request.protocol, None) is not None:
                self._since[request.protocol] = asyncio.get_running_loop().time()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._patience / 4))
            now = asyncio.get_running_loop().time()
            for connection, since in list(self._since.items()):
                if since < now - self._patience:
                    connection.force_close()
                elif connection.transport is not None or since > now - 1:  # there, or about to be
                    continue
                del self._since[connection]


class HttpThread:
    """One application made of several sets of routes, served in a thread of its own until `close`.

    For processes that have no event loop. Bodies have 16 KiB at most. Errors of `HttpListener.start`.
    """

    def __init__(self, listen: str, *route_sets: Iterable[web.RouteDef], anywhere: bool = False) -> None:
        app = web.Application(client_max_size=_BODY_BYTES_MAX)
        for routes in route_sets:
            app.add_routes(routes)
        self._listener = HttpListener(app, anywhere=anywhere)
        self._loop = asyncio.new_event_loop()
        try:
            self.address = self._loop.run_until_complete(self._listener.start(listen))
        except BaseException:
            self._loop.close()
            raise
        self._thread = threading.Thread(target=self._loop.run_forever, name="moontide-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the connections and the thread. Idempotent."""
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        await self._listener.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}  # what handlers started
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
