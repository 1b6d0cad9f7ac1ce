"""Segments in Redis (7, or what speaks its protocol): a key per record, with a time to live."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any
from urllib.parse import urlsplit

import msgspec
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from moontide._addresses import is_loopback, join_address
from moontide.directory.base import LIST_LIMIT, Directory
from moontide.directory.record import (
    Record,
    check_name,
    check_prefix,
    check_record,
    check_ttl,
    superseded,
)
from moontide.errors import NotFound, Overloaded, TimedOut, Unavailable

__all__ = ["RedisDirectory"]

_PREFIX = "moontide:segment:"
_SCAN_MAX = 100_000

# The rules of record.successor, where they are atomic. The floor of epochs is the server's clock in microseconds: a
# server that lost its records numbers new claims above those it has forgotten.
_PUBLISH = """
local text = redis.call('GET', KEYS[1])
local current = text and cjson.decode(text)
local epoch = tonumber(ARGV[2])
if current and current.instance == cjson.decode(ARGV[1]).instance then
  epoch = math.max(epoch, current.epoch)
elseif epoch == 0 then
  local time = redis.call('TIME')
  epoch = math.max(time[1] * 1000000 + time[2], current and current.epoch + 1 or 1)
elseif current and current.epoch >= epoch then
  return {0, text}
end
local record = string.sub(ARGV[1], 1, -2) .. ',"epoch":' .. string.format('%.0f', epoch) .. '}'
redis.call('SET', KEYS[1], record, 'PX', ARGV[3])
return {1, record}
"""
_WITHDRAW = """
local current = redis.call('GET', KEYS[1])
if current and cjson.decode(current).instance == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""


class RedisDirectory(Directory):
    """Changes are compared and set by a script in the server. `list` looks through all keys of the database."""

    def __init__(self, url: str, *, timeout: float) -> None:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 6379
        self.url = f"redis://{join_address(host, port)}{parts.path}"
        self.local = is_loopback(host)
        self._timeout = timeout
        self._pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            max_connections=16,
            timeout=timeout,  # for a free one
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
        )
        self._redis = redis.asyncio.Redis(connection_pool=self._pool)
        self._publish = self._redis.register_script(_PUBLISH)
        self._withdraw = self._redis.register_script(_WITHDRAW)

    async def publish(self, record: Record, ttl: float) -> Record:
        check_record(record)
        check_ttl(ttl)
        body = msgspec.json.encode({"name": record.name, "address": record.address, "instance": record.instance})
        arguments: list[bytes | int] = [body, record.epoch, round(ttl * 1000)]
        done, stored = await self._within(self._publish(keys=[_PREFIX + record.name], args=arguments))
        if not done:
            raise superseded(self._decoded(stored), record)
        return self._decoded(stored)

    async def withdraw(self, record: Record) -> None:
        check_record(record)
        await self._within(self._withdraw(keys=[_PREFIX + record.name], args=[record.instance]))

    async def lookup(self, name: str) -> Record:
        value = await self._within(self._redis.get(_PREFIX + check_name(name)))
        if value is None:
            raise NotFound(f"no segment {name!r}")
        return self._decoded(value)

    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = LIST_LIMIT) -> list[Record]:
        check_prefix(start_after)
        keys = sorted(await self._within(self._keys(_PREFIX + check_prefix(prefix))))
        keys = [key for key in keys if key > _PREFIX + start_after or not start_after][:limit]
        values = await self._within(self._redis.mget(keys)) if keys else []
        return [self._decoded(value) for value in values if value is not None]

    async def close(self) -> None:
        with contextlib.suppress(redis.RedisError, OSError):
            await self._pool.disconnect()

    async def _keys(self, prefix: str) -> set[str]:
        found: set[str] = set()  # no character of a prefix has a meaning in the patterns of Redis
        async for key in self._redis.scan_iter(match=prefix + "*", count=1000):
            found.add(key.decode())
            if len(found) > _SCAN_MAX:
                raise Overloaded(f"{self.url} has more than {_SCAN_MAX} segments that begin so")
        return found

    async def _within(self, work: Any) -> Any:
        try:
            return await asyncio.wait_for(work, self._timeout)
        except (asyncio.TimeoutError, redis.TimeoutError):
            raise TimedOut(f"{self.url} did not answer within {self._timeout:g} s") from None
        except (redis.RedisError, OSError) as error:
            raise Unavailable(f"{self.url}: {error or type(error).__name__}") from None

    def _decoded(self, value: bytes) -> Record:
        try:
            return check_record(msgspec.json.decode(value, type=Record))
        except ValueError:
            raise Unavailable(f"{self.url}: not as a directory's records are: {value[:100]!r}") from None
