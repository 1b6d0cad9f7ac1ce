"""A pool over HTTP: what `moontide master --http-listen` adds to its listener.

GET    /                         a page to look at
GET    /health, /health/ready    {"state", "reasons", "tried"}; 503 where objects cannot be put and read
GET    /health/live              answered while the process goes round at all
GET    /v1/pool                  {"address", "term", "counts", "nodes"}
GET    /v1/objects?prefix=&start_after=&limit=   → {"objects": [{"key", "bytes"}], "next"}
GET    /v1/objects/KEY           → {"key", "bytes"}
DELETE /v1/objects/KEY           → {"removed": true}
POST   /v1/objects/KEY/keep      {"pin": "none", "soft" or "hard", "ttl": seconds or null}

A key is text, or `hex:` and its bytes, percent-encoded. Whoever changes something shows the token (`Authorization:
Bearer ...`); without one nothing is changed over HTTP. In a cluster with a secret objects are shown to the same only.
Errors are {"error": {"code", "number", "message"}} with the codes of `moontide.errors`.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from moontide._addresses import is_loopback
from moontide._http import error_answer, json_answer
from moontide.access import read_secret
from moontide.admin.health import SelfTest, judge
from moontide.config import Config
from moontide.errors import Denied, Invalid, MoontideError
from moontide.store import AsyncStore, ObjectInfo
from moontide.store.keys import key_of, text_of

__all__ = ["PoolMaster", "PoolService"]

LIST_LIMIT = 1000
_PAGES = Path(__file__).with_name("pages")
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
# What the page may load and ask: nothing but what this listener serves.
_POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"
Handler = Callable[[web.Request], Awaitable[web.Response]]


class _Keep(msgspec.Struct, forbid_unknown_fields=True):
    pin: str = "none"
    ttl: float | None = None


class PoolMaster(Protocol):
    """What the service asks of the master whose pool it shows. Any thread."""

    @property
    def address(self) -> str: ...
    @property
    def term(self) -> int: ...
    def stats(self) -> dict[str, int]: ...
    def nodes(self) -> list[dict[str, str | int]]: ...


class PoolService:
    """Handlers for an aiohttp application. Uses the event loop's thread only, but for `close`.

    The service is a client of the pool itself, from its first question about objects on.
    """

    def __init__(self, config: Config, master: PoolMaster) -> None:
        self._config = replace(config, listen="127.0.0.1:0", advertise=None, rails=(), lend=0, dump_on_signal="off")
        self._master = master
        named = config.http_token_file
        self._token = read_secret(named, option="http_token_file") if named is not None else b""
        self._guarded = config.secret_file is not None
        self._anywhere = config.http_reach == "anywhere"
        self._store: AsyncStore | None = None
        self._test = SelfTest(self._opened)

    def routes(self) -> list[web.RouteDef]:
        """To be added to an application."""
        return [
            web.get("/", self._page("dashboard.html")),
            web.get("/dashboard.js", self._page("dashboard.js")),
            web.get("/dashboard.css", self._page("dashboard.css")),
            web.get("/health", self._ready),
            web.get("/health/ready", self._ready),
            web.get("/health/live", self._live),
            web.get("/v1/pool", self._answer(self._pool)),
            web.get("/v1/objects", self._answer(self._list, shows=True)),
            web.get("/v1/objects/{key:.+}", self._answer(self._stat, shows=True)),
            web.delete("/v1/objects/{key:.+}", self._answer(self._remove, changes=True)),
            web.post("/v1/objects/{key:.+}/keep", self._answer(self._keep, changes=True)),
        ]

    def close(self) -> None:
        """Leaves the pool. After the listener has ended; any thread."""
        if self._store is not None:
            self._store.engine.close()

    def _opened(self) -> AsyncStore:
        if self._store is None:
            self._store = AsyncStore(self._master.address, config=self._config)
        return self._store

    # --- who may

    def _answer(
        self, handler: Callable[[web.Request], Awaitable[object]], *, shows: bool = False, changes: bool = False
    ) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            try:
                self._check_host(request)
                if changes or (shows and self._guarded):
                    self._check_token(request)
                return json_answer(await handler(request))
            except MoontideError as error:
                return error_answer(error)

        return answer

    def _check_host(self, request: web.Request) -> None:
        """A page of a stranger may have its own name point at loopback; its browser says that name."""
        host = urlsplit(f"//{request.host}").hostname or ""
        if not self._anywhere and not is_loopback(host):
            raise Denied(f"the host {host[:64]!r} is not one of this machine's loopback")

    def _check_token(self, request: web.Request) -> None:
        if not self._token:
            raise Denied("this needs a token, and the master has none: see http_token_file")
        said = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(said, b"Bearer " + self._token):
            raise Denied("this needs the token of http_token_file: Authorization: Bearer ...")

    # --- what is asked

    async def _live(self, request: web.Request) -> web.Response:
        return json_answer({"state": "live"})

    async def _ready(self, request: web.Request) -> web.Response:
        health = judge(await self._test.tried(), await asyncio.to_thread(self._master.stats))
        return json_answer(health, 200 if health.usable else 503)

    async def _pool(self, request: web.Request) -> object:
        def read() -> dict[str, object]:
            master = self._master
            return {"address": master.address, "term": master.term, "counts": master.stats(), "nodes": master.nodes()}

        return await asyncio.to_thread(read)  # the master's lock is not waited for in the event loop

    async def _list(self, request: web.Request) -> object:
        limit = _number(request.query.get("limit", "100"))
        prefix, after = (key_of(request.query.get(name, "")) for name in ("prefix", "start_after"))
        found = await self._opened().list(prefix, start_after=after, limit=limit)
        following = text_of(found[-1].key) if len(found) == limit else ""
        return {"objects": [_shown(info) for info in found], "next": following}

    async def _stat(self, request: web.Request) -> object:
        return _shown(await self._opened().stat(key_of(request.match_info["key"])))

    async def _remove(self, request: web.Request) -> object:
        await self._opened().remove(key_of(request.match_info["key"]))
        return {"removed": True}

    async def _keep(self, request: web.Request) -> object:
        try:
            keep = msgspec.json.decode(await request.read(), type=_Keep)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Invalid(f"the body: {error}") from None
        await self._opened().keep(key_of(request.match_info["key"]), pin=keep.pin, ttl=keep.ttl)
        return {"pin": keep.pin, "ttl": keep.ttl}

    def _page(self, name: str) -> Handler:
        body = (_PAGES / name).read_bytes()
        headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}

        async def page(request: web.Request) -> web.Response:
            kind = _TYPES[Path(name).suffix]
            return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

        return page


def _shown(info: ObjectInfo) -> dict[str, object]:
    return {"key": text_of(info.key), "bytes": info.length}


def _number(text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= LIST_LIMIT:
        return int(text)
    raise Invalid(f"limit = {text[:20]!r}: allowed are 1 to {LIST_LIMIT}")
