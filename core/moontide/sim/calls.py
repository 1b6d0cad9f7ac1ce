"""What simulated clients asked for, and what they were told."""

from __future__ import annotations

from dataclasses import dataclass, field

FOREVER = 1 << 62

# Codes after which a put that did not succeed cannot take effect any more.
_OVER = frozenset({"STALE", "ALREADY_EXISTS", "NO_SPACE", "TOO_LARGE", "INVALID", "DENIED", "OVERLOADED"})


@dataclass
class Call:
    """One operation of one client. Times are true time of the world, in nanoseconds."""

    number: int
    client: int
    kind: str  # put, put_async, upsert, get, exists, remove, list
    key: str  # of a list: the prefix
    value: int = 0  # of a put: which contents; of a get: whose contents came, 0 for nobody's
    length: int = 0
    invoked_ns: int = 0
    returned_ns: int = FOREVER  # FOREVER: no outcome, the client died
    code: str = ""  # empty: no outcome
    listed: list[str] = field(default_factory=list)
    replicas: int = 1  # of a put: wanted
    first: int = 0  # of a get: it asked for so many first bytes; 0: all
    process: int = 0  # of the client: how often it had been restarted
    # A clock that a lease depends on ran wrong: the object may have been superseded meanwhile (never its bytes).
    lease_in_doubt: bool = False

    @property
    def ok(self) -> bool:
        return self.code == "OK"

    @property
    def is_put(self) -> bool:
        return self.kind in ("put", "put_async", "upsert")

    @property
    def failed_for_good(self) -> bool:
        """A put that nobody can see once it is answered."""
        return self.is_put and self.code in _OVER

    @property
    def effect_until_ns(self) -> int:
        """Until when what it asked for may still happen."""
        if self.kind == "put_async" and self.ok:
            return FOREVER  # others see it when the master has been told
        return self.returned_ns if self.ok or self.code in _OVER else FOREVER

    def text(self) -> str:
        end = "…" if self.returned_ns == FOREVER else f"{self.returned_ns / 1e6:.3f}"
        what = f"{self.kind} {self.key}"
        if self.is_put or (self.kind == "get" and self.ok):
            what += f" #{self.value} ({self.length} bytes{f' x {self.replicas}' if self.replicas > 1 else ''})"
        if self.kind == "list" and self.ok:
            what += f" {self.listed}"
        return f"[{self.invoked_ns / 1e6:.3f} {end}] client{self.client} {what} → {self.code or 'no outcome'}"


__all__ = ["FOREVER", "Call"]
