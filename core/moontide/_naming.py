"""How an engine's peers are named: addresses are opened, other names are looked up first."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Callable, Generator
from typing import Any

from moontide._addresses import is_loopback, is_wildcard, split_address
from moontide._operation import Operation
from moontide.directory import Names, Record
from moontide.engine import Peer
from moontide.errors import Closed, Invalid, MoontideError, PeerLost, Stale, TimedOut, Unavailable

__all__ = ["NamedOpen", "advertised", "open_named"]


def advertised(listen: str, advertise: str | None, *, local_directory: bool) -> str:
    """The address to publish for an engine that listens at `listen`. Invalid: peers would not find it there."""
    address = listen if advertise is None else advertise
    host, port = split_address(address, what="advertise")
    if port == 0 or is_wildcard(host):
        raise Invalid(f"{address!r} is no address that peers can connect to; name one with advertise=")
    if advertise is None and is_loopback(host) and not local_directory:
        raise Invalid(
            f"the engine listens at {listen}, and whoever finds that in a directory of other hosts would ask itself; "
            "listen on an address of the network, or name one with advertise="
        )
    return address


class NamedOpen(Operation[Peer]):
    """The operation of opening a name; its parts run in the directory's event loop."""

    def __init__(self, future: concurrent.futures.Future[Peer]) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        return self._future.done()

    @property
    def quiet(self) -> bool:
        return self._future.done()

    def wait_quiet(self, timeout: float | None = None) -> None:
        concurrent.futures.wait([self._future], timeout)

    def cancel(self) -> None:
        """As of every operation that is no batch: it has its own deadline and goes on."""

    def wait(self, timeout: float | None = None) -> Peer:
        if not concurrent.futures.wait([self._future], timeout).done:
            raise TimedOut(f"not open after {timeout:g} s")
        return self._result()

    def _result(self) -> Peer:
        try:
            return self._future.result(0)
        except concurrent.futures.CancelledError:
            raise Closed("the engine was closed meanwhile") from None

    def __await__(self) -> Generator[Any, None, Peer]:
        outcome = asyncio.wrap_future(self._future)
        outcome.add_done_callback(lambda over: over.cancelled() or over.exception())  # told by _result, not by a log
        yield from asyncio.wait([outcome]).__await__()
        return self._result()


async def open_named(names: Names, name: str, timeout: float, connect: Callable[[str, float], Operation[Peer]]) -> Peer:
    """Looks the name up, opens the address, and compares who is there with the record.

    When that fails the record may have changed meanwhile: it is looked up once more. Stale: the record is not about
    the engine at its address.
    """
    deadline = time.monotonic() + timeout
    tried: Record | None = None
    failure: MoontideError = Stale(f"segment {name!r}")
    for _ in range(2):
        record = await names.directory().lookup(name)
        if record == tried:
            break
        tried = record
        try:
            return await _open_record(record, max(deadline - time.monotonic(), 0.001), connect)
        except (Stale, PeerLost, TimedOut, Unavailable) as error:
            failure = error
    raise failure


async def _open_record(record: Record, timeout: float, connect: Callable[[str, float], Operation[Peer]]) -> Peer:
    where = f"segment {record.name!r}, published at {record.address}"
    try:
        # In a worker thread: a host name in the address may take its time to be resolved.
        operation = await asyncio.wait_for(asyncio.to_thread(connect, record.address, timeout), timeout)
        peer = await operation
    except MoontideError as error:
        raise type(error)(f"{where}: {error.message}") from None
    except asyncio.TimeoutError:
        raise TimedOut(f"{where}: its host name was not resolved within {timeout:g} s") from None
    if record.instance and peer.instance_id != record.instance:
        raise Stale(
            f"segment {record.name!r}: the directory says instance {record.instance} (epoch {record.epoch}) at "
            f"{record.address}, and instance {peer.instance_id} is there"
        )
    return peer
