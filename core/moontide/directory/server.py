"""The segments of a `SegmentTable` over HTTP: what `moontide master --http-listen` adds to its listener.

PUT    /v1/segments/NAME  {"address", "instance", "epoch", "ttl"}  → the record
GET    /v1/segments/NAME                                            → the record
DELETE /v1/segments/NAME?instance=ID                                → {"withdrawn": true or false}
GET    /v1/segments?prefix=&start_after=&limit=                     → {"segments": [...]}
GET    /v1/directory                                                → counts, see `SegmentService.counts`

Errors are {"error": {"code", "number", "message"}} with the codes of `moontide.errors`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from moontide import errors
from moontide._http import error_answer, json_answer
from moontide.directory.base import LIST_LIMIT
from moontide.directory.record import Record
from moontide.directory.table import SegmentTable

__all__ = ["SegmentService"]


class _Offer(msgspec.Struct):
    address: str
    instance: str
    ttl: float
    epoch: int = 0


class SegmentService:
    """Handlers for an aiohttp application. Uses the event loop's thread only.

    `rate` requests per second are answered on average, `burst` at once; the rest are told OVERLOADED. The bodies are
    bounded by the application (`client_max_size`), the table by itself.
    """

    def __init__(
        self,
        table: SegmentTable | None = None,
        *,
        rate: float = 2000,
        burst: float = 4000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.table = SegmentTable(time.monotonic, lambda: time.time_ns() // 1000) if table is None else table
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._filled = burst, clock()
        self._requests = self._refused = 0

    def routes(self) -> list[web.RouteDef]:
        """To be added to an application."""
        return [
            web.put("/v1/segments/{name:.+}", self._answer(self._publish)),
            web.get("/v1/segments/{name:.+}", self._answer(self._lookup)),
            web.delete("/v1/segments/{name:.+}", self._answer(self._withdraw)),
            web.get("/v1/segments", self._answer(self._list)),
            web.get("/v1/directory", self._answer(self._counts)),
        ]

    def counts(self) -> dict[str, int]:
        """`segments` and `bytes` as they are now; since the start: `requests`, those `refused`, and `expired` records.

        Any thread.
        """
        return {
            "segments": len(self.table),
            "bytes": self.table.nbytes,
            "expired": self.table.expired,
            "requests": self._requests,
            "refused": self._refused,
        }

    async def _publish(self, request: web.Request) -> object:
        try:
            offer = msgspec.json.decode(await request.read(), type=_Offer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise errors.Invalid(f"the body: {error}") from None
        record = Record(
            name=request.match_info["name"], address=offer.address, instance=offer.instance, epoch=offer.epoch
        )
        return self.table.publish(record, offer.ttl)

    async def _lookup(self, request: web.Request) -> object:
        return self.table.lookup(request.match_info["name"])

    async def _withdraw(self, request: web.Request) -> object:
        return {"withdrawn": self.table.withdraw(request.match_info["name"], request.query.get("instance", ""))}

    async def _list(self, request: web.Request) -> object:
        text = request.query.get("limit", str(LIST_LIMIT))
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and 1 <= int(text) <= LIST_LIMIT):
            raise errors.Invalid(f"limit = {text[:20]!r}: allowed are 1 to {LIST_LIMIT}")
        found = self.table.list(request.query.get("prefix", ""), request.query.get("start_after", ""), int(text))
        return {"segments": found}

    async def _counts(self, request: web.Request) -> object:
        return self.counts()

    def _answer(self, handler: Callable[[web.Request], Any]) -> Callable[[web.Request], Any]:
        async def answer(request: web.Request) -> web.Response:
            self._requests += 1
            try:
                self._spend()
                return json_answer(await handler(request))
            except errors.MoontideError as error:
                self._refused += not isinstance(error, errors.NotFound)
                return error_answer(error)

        return answer

    def _spend(self) -> None:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            raise errors.Overloaded(f"more than {self._rate:g} requests per second")
        self._tokens -= 1
