"""The other end of an open link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moontide import _core
from moontide._operation import Operation
from moontide.errors import NotFound, TimedOut

if TYPE_CHECKING:
    from moontide.engine import Engine

__all__ = ["Peer", "RemoteRegion"]

RemoteRegion = _core.RemoteRegion


class Peer:
    """An open link to another engine, as `Engine.open` returns it. Any thread. Closed: the engine here was closed."""

    def __init__(self, native: _core.Link, engine: Engine) -> None:
        self._native = native
        self._engine = engine

    @property
    def address(self) -> str:
        """Where the peer listens."""
        return self._native.address

    @property
    def instance_id(self) -> str:
        """The peer's identity: 32 hexadecimal digits, new with each start of its engine."""
        return self._native.instance_id

    @property
    def same_host(self) -> bool:
        """True when both share this host and a local socket namespace."""
        return self._native.same_host

    @property
    def open(self) -> bool:
        """False once the link is over; `Engine.open` makes another one."""
        return self._native.open

    @property
    def paths(self) -> dict[str, str]:
        """Transport → "ok", or the reason why it is not usable with this peer."""
        return {name: reason or "ok" for name, reason in self._native.paths.items()}

    @property
    def regions(self) -> dict[str, RemoteRegion]:
        """The peer's regions by name, as they are now."""
        return self._native.regions()

    def region(self, name: str) -> RemoteRegion:
        """The peer's region of that name. NotFound lists those there are."""
        regions = self._native.regions()
        if name not in regions:
            raise NotFound(f"the peer at {self.address} has no region {name!r}; it has {sorted(regions)}")
        return regions[name]

    def wait_region_async(self, name: str) -> Operation[RemoteRegion]:
        """As `wait_region`, without waiting and without a deadline; ends at the latest with the link (PeerLost)."""
        return Operation(self._native.region(name))

    def wait_region(self, name: str, *, timeout: float | None = None) -> RemoteRegion:
        """The peer's region of that name, once the peer has registered it.

        `timeout` in seconds (default: the configuration's `progress_timeout`). TimedOut lists the regions there are;
        PeerLost: the link is over.
        """
        seconds = self._engine.config.progress_timeout if timeout is None else timeout
        try:
            return self.wait_region_async(name).wait(seconds)
        except TimedOut:
            there = sorted(self._native.regions())
            raise TimedOut(
                f"the peer at {self.address} registered no region {name!r} within {seconds} s; it has {there}"
            ) from None

    def claim_async(self, hold_id: bytes, *, timeout: float | None = None) -> Operation[bytes]:
        """As `claim`, without waiting."""
        return Operation(self._native.claim(hold_id, timeout))

    def claim(self, hold_id: bytes, *, timeout: float | None = None) -> bytes:
        """Takes the peer's hold for reading and renews it until `release`. Returns the payload of the hold.

        `timeout`: seconds for the answer (default: the configuration's `progress_timeout`).
        NotFound: no such hold (yet); Denied: another peer has it; Expired, TimedOut, PeerLost.
        """
        return self.claim_async(hold_id, timeout=timeout).wait()

    def release_async(self, hold_id: bytes, *, timeout: float | None = None) -> Operation[None]:
        """As `release`, without waiting."""
        return Operation(self._native.release(hold_id, timeout))

    def release(self, hold_id: bytes, *, timeout: float | None = None) -> None:
        """Returns when the peer confirms that the memory was held until now; only then count what was read.

        `timeout` as for `claim`, in seconds. Expired, NotFound: it was not. TimedOut, PeerLost: not known, so it was
        not.
        """
        self.release_async(hold_id, timeout=timeout).wait()

    def notify_async(self, payload: bytes, *, timeout: float | None = None) -> Operation[None]:
        """As `notify`, without waiting."""
        return Operation(self._native.notify(payload, timeout))

    def notify(self, payload: bytes, *, timeout: float | None = None) -> None:
        """Puts up to 1 MiB into the peer's mailbox (`Engine.receive`); returns when it is there.

        `timeout` as for `claim`, in seconds. TooLarge; Overloaded: the mailbox is full; TimedOut, PeerLost: not known
        whether it arrived.
        """
        self.notify_async(payload, timeout=timeout).wait()

    def close(self) -> None:
        """Ends the link; what is under way on it fails with Closed."""
        self._native.close()
