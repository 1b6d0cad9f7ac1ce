"""The directory that `moontide master --http-listen` serves."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from moontide._addresses import is_loopback, split_address
from moontide.directory.base import LIST_LIMIT, Directory
from moontide.directory.record import Record, check_name, check_prefix, check_record, check_ttl
from moontide.directory.requests import JsonRequests
from moontide.errors import Unavailable, from_code

__all__ = ["HttpDirectory"]


class HttpDirectory(Directory):
    """One connection pool to one master; each call is one request."""

    def __init__(self, address: str, *, timeout: float) -> None:
        self.url = f"http://{address}"
        self.local = is_loopback(split_address(address)[0])
        self._request = JsonRequests(self.url, timeout)

    async def publish(self, record: Record, ttl: float) -> Record:
        check_record(record)
        check_ttl(ttl)
        body = {"address": record.address, "instance": record.instance, "epoch": record.epoch, "ttl": ttl}
        return self._record(await self._call("PUT", _path(record.name), body))

    async def withdraw(self, record: Record) -> None:
        check_record(record)
        await self._call("DELETE", _path(record.name), query={"instance": record.instance})

    async def lookup(self, name: str) -> Record:
        return self._record(await self._call("GET", _path(name)))

    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = LIST_LIMIT) -> list[Record]:
        query = {"prefix": check_prefix(prefix), "start_after": check_prefix(start_after), "limit": str(limit)}
        answer = await self._call("GET", "/v1/segments", query=query)
        found = answer.get("segments") if isinstance(answer, dict) else None
        if not isinstance(found, list):
            raise self._nonsense(answer)
        return [self._record(item) for item in found]

    async def close(self) -> None:
        await self._request.close()

    async def _call(self, method: str, path: str, body: object = None, query: dict[str, str] | None = None) -> Any:
        status, answer = await self._request(method, path, body, query)
        if 200 <= status < 300:
            return answer
        error = answer.get("error") if isinstance(answer, dict) else None
        if isinstance(error, dict) and isinstance(error.get("number"), int):
            raise from_code(error["number"], str(error.get("message", "")))
        raise Unavailable(f"the directory at {self.url} answers with status {status} to {method} {path}")

    def _record(self, answer: object) -> Record:
        try:
            return check_record(msgspec.convert(answer, Record))
        except ValueError:  # of the conversion, and Invalid
            raise self._nonsense(answer) from None

    def _nonsense(self, answer: object) -> Unavailable:
        return Unavailable(f"what answers at {self.url} is no directory: {str(answer)[:60]}")


def _path(name: str) -> str:
    return "/v1/segments/" + quote(check_name(name), safe="")
