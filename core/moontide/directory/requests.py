"""HTTP with JSON as the clients of directories speak it: bounded in time and bytes, past any proxy."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from moontide.errors import TimedOut, Unavailable

__all__ = ["JsonRequests"]

_ANSWER_BYTES_MAX = 8 << 20


class JsonRequests:
    """Requests to one server. Made in the event loop that uses it."""

    def __init__(self, base: str, timeout: float) -> None:
        self._base = base
        self._timeout = timeout
        # trust_env off: a proxy of the environment knows nothing of loopback and cluster addresses.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout),
            connector=aiohttp.TCPConnector(limit=16),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def __call__(
        self, method: str, path: str, body: object = None, query: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """(status, the decoded JSON or None). `path` is as it goes over the wire. Unavailable, TimedOut."""
        url = URL(self._base + path, encoded=True)
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"} if data else {}
        try:
            async with self._session.request(
                method, url, data=data, params=query, headers=headers, allow_redirects=False
            ) as answer:
                return answer.status, _decoded(self._base, await _read(self._base, answer))
        except asyncio.TimeoutError:
            raise TimedOut(f"the directory at {self._base} did not answer within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"the directory at {self._base}: {error or type(error).__name__}") from None

    async def close(self) -> None:
        await self._session.close()


async def _read(base: str, answer: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > _ANSWER_BYTES_MAX:
            answer.close()
            raise Unavailable(f"the directory at {base} answers with more than {_ANSWER_BYTES_MAX} bytes")
        parts.append(part)
    return b"".join(parts)


def _decoded(base: str, data: bytes) -> Any:
    if not data:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        raise Unavailable(f"what answers at {base} is no directory: {data[:60]!r}") from None
