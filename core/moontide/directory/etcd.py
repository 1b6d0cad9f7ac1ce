"""Segments in etcd (3.4 or newer), by its JSON gateway. Each record hangs on a lease of its own."""

from __future__ import annotations

import base64
import math
from typing import Any

import msgspec

from moontide._addresses import is_loopback, split_address
from moontide.directory.base import LIST_LIMIT, Directory
from moontide.directory.record import (
    Record,
    check_name,
    check_prefix,
    check_record,
    check_ttl,
    successor,
)
from moontide.directory.requests import JsonRequests
from moontide.errors import MoontideError, NotFound, Overloaded, Unavailable

__all__ = ["EtcdDirectory"]

_PREFIX = "moontide/segments/"
_ATTEMPTS = 8  # of a transaction that others get ahead of


class EtcdDirectory(Directory):
    """Epochs come from etcd's revision, which grows with every change and outlives restarts: no clock is asked."""

    def __init__(self, address: str, *, timeout: float) -> None:
        self.url = f"etcd://{address}"
        self.local = is_loopback(split_address(address)[0])
        self._request = JsonRequests(f"http://{address}", timeout)
        self._leases: dict[tuple[str, str], str] = {}  # (name, instance) → the lease under its record

    async def publish(self, record: Record, ttl: float) -> Record:
        check_record(record)
        check_ttl(ttl)
        for _ in range(_ATTEMPTS):
            current, modified, revision = await self._read(record.name)
            stored = successor(current, record, revision + 1)
            if stored == current and await self._keep_alive(stored):
                return stored
            if await self._write(stored, modified, ttl):
                return stored
        raise Overloaded(f"{self.url}: too many claims of segment {record.name!r} at the same time")

    async def withdraw(self, record: Record) -> None:
        check_record(record)
        lease = self._leases.pop((record.name, record.instance), None)
        if lease is not None:
            await self._revoke(lease)  # takes the record along, unless somebody else has written it since
            return
        current, modified, _ = await self._read(record.name)
        if current is not None and current.instance == record.instance:
            remove = {"request_delete_range": {"key": _key(record.name)}}
            await self._call("kv/txn", _if_unchanged(record.name, modified, remove))

    async def lookup(self, name: str) -> Record:
        check_name(name)
        record, _, _ = await self._read(name)
        if record is None:
            raise NotFound(f"no segment {name!r}")
        return record

    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = LIST_LIMIT) -> list[Record]:
        check_prefix(prefix)
        first = max(prefix, check_prefix(start_after) + "\0" if start_after else "")
        if first >= _after(prefix):
            return []
        answer = await self._call(
            "kv/range", {"key": _key(first), "range_end": _key(_after(prefix)), "limit": str(limit)}
        )
        return [self._decoded(item) for item in answer.get("kvs", ())]

    async def close(self) -> None:
        await self._request.close()

    async def _read(self, name: str) -> tuple[Record | None, str, int]:
        """(the record, the revision of its last change or "0", etcd's revision)."""
        answer = await self._call("kv/range", {"key": _key(name)})
        try:
            revision = int(answer["header"]["revision"])
            found = answer.get("kvs", ())
            return (self._decoded(found[0]), found[0]["mod_revision"], revision) if found else (None, "0", revision)
        except (KeyError, TypeError, ValueError):
            raise self._nonsense(answer) from None

    async def _write(self, record: Record, modified: str, ttl: float) -> bool:
        """Whether the record was put, which it is when nobody has changed it since `modified`."""
        granted = await self._call("lease/grant", {"TTL": str(math.ceil(ttl))})
        lease = str(granted.get("ID", ""))
        put = {"key": _key(record.name), "value": _text(msgspec.json.encode(record).decode()), "lease": lease}
        try:
            answer = await self._call("kv/txn", _if_unchanged(record.name, modified, {"request_put": put}))
        except MoontideError:
            # Done or not, nobody knows: the next renewal reads what is there. The lease ends by itself.
            self._leases.pop((record.name, record.instance), None)
            raise
        if not answer.get("succeeded"):
            await self._revoke(lease)
            return False
        self._leases[record.name, record.instance] = lease
        return True

    async def _keep_alive(self, record: Record) -> bool:
        """False: there is no lease that this object knows, or it is over."""
        lease = self._leases.get((record.name, record.instance))
        if lease is None:
            return False
        answer = await self._call("lease/keepalive", {"ID": lease})
        result = answer.get("result")
        return isinstance(result, dict) and int(result.get("TTL", 0)) > 0

    async def _revoke(self, lease: str) -> None:
        try:
            await self._call("lease/revoke", {"ID": lease})
        except NotFound:
            return  # it was over

    async def _call(self, what: str, body: object) -> dict[str, Any]:
        path = "/v3/" + what
        status, answer = await self._request("POST", path, body)
        if status == 200 and isinstance(answer, dict):
            return answer
        message = answer.get("message", answer.get("error")) if isinstance(answer, dict) else answer
        if isinstance(answer, dict) and answer.get("code") == 5:  # gRPC's NOT_FOUND
            raise NotFound(f"{self.url}: {message}")
        raise Unavailable(f"{self.url} answers with status {status} to {path}: {str(message)[:200]}")

    def _decoded(self, item: Any) -> Record:
        try:
            return check_record(msgspec.json.decode(base64.b64decode(item["value"]), type=Record))
        except (KeyError, TypeError, ValueError):
            raise self._nonsense(item) from None

    def _nonsense(self, answer: object) -> Unavailable:
        return Unavailable(f"{self.url}: not as a directory's records are: {str(answer)[:100]}")


def _text(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _key(name: str) -> str:
    return _text(_PREFIX + name)


def _after(prefix: str) -> str:
    """The first text behind all that begin with `prefix`."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else "\x7f"


def _if_unchanged(name: str, modified: str, then: dict[str, Any]) -> dict[str, Any]:
    compare = {"key": _key(name), "target": "MOD", "result": "EQUAL", "mod_revision": modified}
    return {"compare": [compare], "success": [then]}
