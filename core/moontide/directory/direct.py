"""No directory: an address is its own name."""

from __future__ import annotations

from moontide._addresses import is_wildcard, split_address
from moontide.directory.base import LIST_LIMIT, Directory
from moontide.directory.record import Record, check_ttl
from moontide.errors import Invalid

__all__ = ["DirectDirectory"]


class DirectDirectory(Directory):
    """Looks nothing up and remembers nothing; who is at an address is found out at the handshake."""

    url = "direct"
    local = True

    async def publish(self, record: Record, ttl: float) -> Record:
        check_ttl(ttl)
        if record.name != record.address:
            raise Invalid(
                f"segment {record.name!r}: without a directory the only name of a process is its address "
                f"{record.address!r}; set the option directory to the URL of one"
            )
        return record

    async def withdraw(self, record: Record) -> None:
        return None

    async def lookup(self, name: str) -> Record:
        try:
            host, port = split_address(name)
        except Invalid:
            raise Invalid(
                f"{name!r} is not HOST:PORT, and there is no directory to look it up in; set the option directory"
            ) from None
        if port == 0 or is_wildcard(host):
            raise Invalid(f"{name!r}: nobody can connect to that")
        return Record(name=name, address=name)

    async def list(self, prefix: str = "", *, start_after: str = "", limit: int = LIST_LIMIT) -> list[Record]:
        return []

    async def close(self) -> None:
        return None
