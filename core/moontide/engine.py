"""The transfer engine: copies between memory of this process and memory that other processes registered.

Blocking, polling and ``await`` are three ways to look at the same operation. All methods may be called from any thread;
those that wait release the interpreter lock. Lengths and offsets are in bytes, times in seconds. Errors are those of
`moontide.errors`; a closed engine answers Closed.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union

from moontide import _core
from moontide._operation import Operation
from moontide._peer import Peer, RemoteRegion
from moontide._transfer import Prepared, Strided, Transfer
from moontide.access import access_of, advertised, listening_address, resolve
from moontide.config import Config, load_config
from moontide.errors import Closed, Invalid, TimedOut
from moontide.observe.engines import ObservedEngine
from moontide.observe.traces import Trace, trace_text

if TYPE_CHECKING:
    from moontide.directory import Names, Publication

__all__ = [
    "Arena",
    "Engine",
    "Entry",
    "Operation",
    "Peer",
    "Prepared",
    "Region",
    "RemoteRegion",
    "Strided",
    "Transfer",
]

Local = Union[int, "Region", "Arena", tuple[Any, int], Any]
"""Local memory: an address, a region or arena (from its start), (region, offset), or a buffer inside a region."""
Entry = tuple[Local, RemoteRegion, int, int] | Strided
"""(local memory, remote region, offset in it in bytes, length in bytes), or many such copies as one `Strided`."""

_READ, _WRITE = 1, 2
_OPS = {"read": _READ, "write": _WRITE}


def _is_read_only(buffer: object) -> bool:
    if isinstance(buffer, tuple) or hasattr(buffer, "data_ptr"):
        return False
    return memoryview(buffer).readonly  # type: ignore[arg-type]


def _memory_range(buffer: object, *, writable: bool = False) -> tuple[int, int, object]:
    """(address, bytes, what keeps the memory alive) of a buffer, array, tensor or (address, bytes).

    Invalid where the memory is read-only and has to be `writable`.
    """
    if writable and _is_read_only(buffer):
        raise Invalid("the memory is read-only")
    if isinstance(buffer, tuple):
        if len(buffer) != 2 or not all(isinstance(part, int) for part in buffer):
            raise Invalid(f"{buffer!r}: a range is (address, length in bytes)")
        return buffer[0], buffer[1], None
    data_ptr = getattr(buffer, "data_ptr", None)
    if data_ptr is not None:  # torch.Tensor, without importing torch
        tensor: Any = buffer
        if not tensor.is_contiguous():
            raise Invalid("the tensor is not contiguous; register its storage or a contiguous copy")
        return data_ptr(), tensor.numel() * tensor.element_size(), buffer
    view = memoryview(buffer)  # type: ignore[arg-type]
    if not view.c_contiguous:
        raise Invalid("the buffer is not contiguous")
    return _core.buffer_address(view), view.nbytes, view


class Region:
    """Registered memory of this process: `length` bytes from `address` on, as peers know them by `name`.

    The engine keeps the buffer alive until it is unregistered and quiet. `id` and `generation` are its place in the
    engine's table and which use of the place this is.
    """

    def __init__(self, engine: Engine, number: int, generation: int, address: int, length: int, name: str) -> None:
        self._engine = engine
        self.id = number
        self.generation = generation
        self.address = address
        self.length = length
        self.name = name
        self._range = address, length

    def unregister(self, *, timeout: float | None = None) -> None:
        """See `Engine.unregister`; `timeout` in seconds. TimedOut, NotFound."""
        self._engine.unregister(self, timeout=timeout)

    def __repr__(self) -> str:
        return f"<Region {self.id} {self.name!r} {self.length} bytes>"


class Arena:
    """Memory in a sealed memfd: peers of this host read it through a mapping of their own.

    Exports the buffer protocol: ``memoryview(arena)``, ``numpy.frombuffer(arena, dtype)``. ``len(arena)`` is in bytes.
    """

    def __init__(self, native: _core.Arena, region: Region) -> None:
        self._native = native
        self.region = region
        self._range = region.address, region.length

    @property
    def address(self) -> int:
        """Where the memory starts in this process, a number."""
        return self.region.address

    @property
    def buffer(self) -> memoryview:
        """The memory, writable, as bytes. Use it with Python before 3.12, which has no buffer protocol for classes."""
        return memoryview(self._native)

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self._native)

    def __len__(self) -> int:
        return self.region.length


_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
# Memory of closed engines that a stopped process may write as soon as it goes on.
_never_freed: list[object] = []


def _rails(config: Config) -> list[str]:
    if not config.rails:
        return []
    from moontide.topology.rails import rail_addresses

    return rail_addresses(config)


def _access(readable: bool, writable: bool, direct_write: bool) -> int:
    if direct_write and not (readable and writable):
        raise Invalid("direct_write gives the memory itself: it has to be readable and writable")
    return (1 if readable else 0) | (2 if writable else 0) | (8 if direct_write else 0)


@atexit.register
def _close_engines() -> None:
    """Threads that wait in an engine leave before the interpreter does."""
    for engine in list(_open_engines):
        engine.close()


class Engine(ObservedEngine):
    """One listening address, one identity, the memory registered with it. Closes as a context manager.

    `listen` ("host:port"; port 0 takes a free one) stands for the configuration's; `address` is what came of it, and
    `instance_id` 32 hexadecimal digits, new with each engine. Off loopback it needs a cluster secret (`secret_file`).
    After a fork the child's copy answers Closed; make a new one there.

    Invalid: an option's value, or a file that it names. Denied: an address off loopback without a secret, or a file
    that others can read. Unavailable: the address is taken, or is none of this host. Unsupported: TLS without OpenSSL.
    """

    def __init__(self, listen: str | None = None, *, config: Config | None = None) -> None:
        config = load_config() if config is None else config
        self.config = config
        listen = listening_address(config.listen if listen is None else listen)
        self._runtime = _core.Runtime(
            listen=listen,
            progress_timeout=config.progress_timeout,
            connect_timeout=config.connect_timeout,
            keepalive=config.keepalive,
            local_reads=config.local_reads,
            tcp_streams=config.tcp_streams,
            spin_us=config.spin_us,
            rails=_rails(config),
            advertise=advertised(config, listen),
            access=access_of(config),
        )
        self._kept: dict[int, object] = {}
        self._leaving: dict[int, _core.Operation] = {}  # regions withdrawn and not quiet
        self._names: Names | None = None
        self._names_lock = threading.Lock()
        self._start_watching(config)
        _open_engines.add(self)
        self.address: str = self._runtime.address
        self.instance_id: str = self._runtime.instance_id

    # --- memory ---

    def register(
        self,
        buffer_or_range: object,
        *,
        name: str = "",
        readable: bool = True,
        writable: bool = False,
        direct_write: bool = False,
    ) -> Region:
        """Lets memory take part in transfers; `readable` and `writable` say what peers may do with it.

        `direct_write`: processes of this host write it themselves, which is quicker than having this process pull. Once
        unregistered the memory is quiet only when each of them has said that it writes no more, or is dead: one that
        is stopped keeps it for as long as it is.

        Takes any contiguous buffer, numpy array, torch tensor or (address, bytes); a range given by address is kept
        alive by the caller until it is unregistered and quiet. Nothing is read into memory that is read-only itself.
        Memory may be registered more than once, also in part and with other rights; each registration ends by itself.
        Invalid: empty, not contiguous, to be `writable` and read-only itself, or `direct_write` without both rights.
        NoSpace: more than 131,072 regions.
        """
        access = _access(readable, writable, direct_write) | (4 if _is_read_only(buffer_or_range) else 0)
        address, length, keep = _memory_range(buffer_or_range, writable=writable)
        number, generation = self._runtime.add_region(address, length, access, name)
        self._kept[number] = keep
        return Region(self, number, generation, address, length, name)

    def allocate(
        self,
        nbytes: int,
        *,
        name: str = "",
        readable: bool = True,
        writable: bool = False,
        direct_write: bool = False,
    ) -> Arena:
        """New zeroed memory of `nbytes` that peers of this host can map, registered as one region.

        They map it read-only, unless `direct_write` is set. The options are as for `register`. Invalid: 0 bytes, or
        options that contradict each other. NoSpace: not so much memory, or too many regions.
        """
        access = _access(readable, writable, direct_write)
        native = _core.Arena(nbytes, name or "moontide-arena", direct_write)
        number, generation = self._runtime.add_region(native.address, nbytes, access, name, native)
        self._kept[number] = native
        return Arena(native, Region(self, number, generation, native.address, nbytes, name))

    def unregister(self, region: Region | Arena, *, timeout: float | None = None) -> None:
        """Withdraws the memory at once and waits until nothing uses it any more.

        TimedOut after `timeout` seconds (None: never); the message names who uses it: transfer, peer, stage. NotFound:
        it is not registered.
        """
        if isinstance(region, Arena):
            region = region.region
        leaving = self._leaving.get(region.id)
        if leaving is None:
            leaving = self._leaving[region.id] = self._runtime.remove_region(region.id)
        try:
            leaving.wait(timeout)
        except TimedOut:
            users = "; ".join(self._runtime.region_users(region.id)) or "a use that has just ended"
            raise TimedOut(f"{region!r} is withdrawn, and still used by {users}. Unregister it again to wait") from None
        self._leaving.pop(region.id, None)
        self._kept.pop(region.id, None)

    # --- peers ---

    def publish(self, name: str, *, advertise: str | None = None, ttl: float | None = None) -> Publication:
        """Tells the directory of the configuration that `name` is this engine, until `withdraw` or `close`; waits.

        `advertise`: the address to tell, where it is not the one the engine listens at. `ttl`: seconds that the record
        lasts without renewal, 1 to 3600 (default: the configuration's `directory_ttl`). The name is taken from whoever
        had it; that one's `Publication` becomes "superseded". Errors of `moontide.directory.Directory.publish`.
        """
        from moontide._naming import advertised

        names = self._directory()
        address = advertised(self.address, advertise, local_directory=names.directory().local)
        return names.publish(name, address, self.instance_id, ttl=self.config.directory_ttl if ttl is None else ttl)

    def withdraw(self, name: str) -> None:
        """Ends what `publish` began; nothing happens when it did not. Errors of `moontide.directory.Directory`."""
        self._directory().withdraw(name)

    def _directory(self) -> Names:
        from moontide.directory import Names

        with self._names_lock:
            if self.closed:
                raise Closed("the engine is closed")
            if self._names is None:
                self._names = Names(self.config.directory, timeout=self.config.connect_timeout)
            return self._names

    def _open_address(self, address: str, timeout: float | None) -> Operation[Peer]:
        return Operation(self._runtime.open(resolve(address), timeout), lambda link: Peer(link, self))

    def open_async(self, address: str, *, timeout: float | None = None) -> Operation[Peer]:
        """As `open`, without waiting (but for a host name to be resolved); the result is the `Peer`."""
        name = address.removeprefix("segment:")
        if name == address and ":" in address:
            return self._open_address(address, timeout)
        from moontide._naming import NamedOpen, open_named

        seconds = self.config.connect_timeout if timeout is None else timeout
        names = self._directory()
        return NamedOpen(names.submit(open_named(names, name, seconds, self._open_address)))

    def open(self, address: str, *, timeout: float | None = None) -> Peer:
        """A link to the engine that listens at "host:port"; the same one while it is open.

        A name without a colon, or anything after "segment:", is looked up in the directory of the configuration.
        `timeout`: seconds, handshake included (default: the configuration's `connect_timeout`).
        Invalid, Unavailable (refused, no such host), TimedOut, Incompatible (both values), Denied (the cluster secrets
        differ, only one side has one, or an address off loopback without one); with a name of the directory also
        NotFound, and Stale: the record is about another instance than the one that answers at its address.
        """
        return self.open_async(address, timeout=timeout).wait(timeout)

    # --- transfers ---

    def read(
        self,
        entries: Iterable[Entry] | bytes,
        *,
        timeout: float | None = None,
        urgent: bool = False,
        notify: bytes | None = None,
        trace: Trace = "",
    ) -> Transfer:
        """Starts copying from peers' regions into local registered memory.

        `timeout`: seconds without progress after which it has failed (default: the configuration's). Entries may also
        be one packed buffer of 40-byte records (op u32, flags u32, local address, region handle, offset, length), or an
        array of 64-byte items: the same with count, local stride, remote stride behind.
        `urgent`: overtakes what is queued for the same peer, here, there and on the wire; for what is small.
        `notify`: up to 1 MiB for the mailbox of each peer involved, put there once all bytes have arrived; the transfer
        is done when it is there.
        `trace` names it in dumps and warnings: at most 64 printable characters without blanks, or 32 bytes.

        Raised at once: Invalid (an entry that is none, an offset, a length beyond the local memory, `trace`), TooLarge
        (`notify`), Overloaded (too many transfers under way), Closed. By `Transfer.wait` and per entry in `results`:
        Denied (outside the region, or not granted; local memory that is not registered), Stale and NotFound (the region
        is gone), TimedOut, PeerLost, Unsupported (no path), Canceled, Closed.
        """
        return Transfer(self._runtime.submit(_READ, entries, timeout, urgent, notify, trace_text(trace)), self)

    def write(
        self,
        entries: Iterable[Entry] | bytes,
        *,
        timeout: float | None = None,
        urgent: bool = False,
        notify: bytes | None = None,
        trace: Trace = "",
    ) -> Transfer:
        """Starts copying from local registered memory into peers' regions; entries, options and errors as for `read`.

        Between processes of one host the peer pulls, from regions that are registered readable; into memory that it
        registered with `direct_write` this process writes itself.
        """
        return Transfer(self._runtime.submit(_WRITE, entries, timeout, urgent, notify, trace_text(trace)), self)

    def prepare(self, op: str, entries: Iterable[Entry] | bytes) -> Prepared:
        """Packs a batch ("read" or "write") for posting it many times; entries as for `read`.

        Invalid: `op`, or an entry that is none. What the entries name is looked at when it is posted.
        """
        if op not in _OPS:
            raise Invalid(f"op = {op!r}: allowed are read, write")
        return Prepared(_core.Prepared(self._runtime, entries, _OPS[op]), self)

    # --- notifications ---

    def receive_async(self) -> Operation[list[tuple[str, bytes]]]:
        """As `receive`, without waiting; several receivers share what comes, so a list may be empty."""
        return Operation(self._runtime.arrival(), lambda _: self._runtime.notifications())

    def receive(self, *, timeout: float | None = None) -> list[tuple[str, bytes]]:
        """Waits for notifications of peers and takes all there are: (instance id of the sender, payload), oldest first.

        TimedOut when none came within `timeout` seconds. At most 65,536 and 64 MiB wait; further senders are refused.
        """
        return self.receive_async().wait(timeout)

    # --- holds ---

    def hold(self, hold_id: bytes, payload: bytes, *, ttl: float | None = None) -> None:
        """Announces that memory stays as it is until a peer has read it and released the hold.

        `hold_id` has 1 to 256 bytes. A hold that nobody claims or renews for `ttl` seconds (default: `hold_ttl` of the
        configuration) is over. AlreadyExists; NoSpace: more than 65,536 holds; Invalid: the id or `ttl`.
        """
        self._runtime.hold(hold_id, payload, self.config.hold_ttl if ttl is None else ttl)

    def end_hold(self, hold_id: bytes) -> None:
        """Ends a hold from this side; a claimant's `release` will say so. NotFound."""
        self._runtime.end_hold(hold_id)

    def drain_holds(self) -> list[tuple[bytes, str]]:
        """Holds that ended since the last call: (id, "released" | "expired" | "peer_lost" | "ended")."""
        return self._runtime.drain_holds()

    # --- the rest ---

    def stats(self) -> dict[str, int]:
        """Counters since the start, and what is there now; names that begin with "bytes" count bytes."""
        return self._runtime.stats()

    def refusals(self) -> tuple[int, str]:
        """Connections without a proof of the cluster secret, either way: how many, and the last with its reason."""
        return self._runtime.refusals

    def drive(self, seconds: float) -> None:
        """Runs the engine in this thread for so many seconds, polling as `spin_us` says.

        Then its own thread goes on with it.
        For a process that has nothing else to do and wants its peers answered without a hop between threads.
        """
        self._runtime.drive(seconds)

    @property
    def closed(self) -> bool:
        """True after `close`, and in a forked child."""
        return self._runtime.closed

    def close(self) -> None:
        """Ends everything: published names, links, transfers, the threads. Idempotent.

        Peers with leave to write memory themselves (`direct_write`) are waited for, for the `progress_timeout` of the
        configuration; what one of them may write even then is never freed, and a warning says so.
        """
        with self._names_lock:
            names, self._names = self._names, None
        if names is not None:
            names.close()
        self._stop_watching()
        written = set(self._runtime.close())
        if written:
            import logging  # hardly any engine gets here

            _never_freed.extend(keep for number, keep in self._kept.items() if number in written)
            logging.getLogger("moontide").warning(
                "engine %s is closed, and a process that does not answer may still write %d regions of it; "
                "their memory is never freed",
                self.address,
                len(written),
            )
        self._kept.clear()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
