"""The master's side of the stream: events come from the catalog, go out to all, and are kept for replays."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from moontide._addresses import is_loopback, join_address, split_address
from moontide.errors import Denied, Unavailable, Unsupported
from moontide.events.messages import ANEW, END, Batch, Cleared, Removed, Stored, encode, pack_seq, unpack_seq

__all__ = ["EventPublisher", "EventSource", "Taken", "batches"]

Taken = tuple[str, str, bytes, int]
"""One event of the native catalog: kind (stored, removed, cleared), why, key, length."""

_EVENTS_PER_BATCH = 512
_BATCHES_PER_TURN = 16
_TURN_MS = 20
_IDLE_S = 1.0  # an empty batch: who missed the last ones, or a restart, has to hear of it
_SUBSCRIBER_MESSAGES = 2000  # that wait for one subscriber; what is beyond is lost to it, and it sees the gap
_KEPT_BATCHES = 10_000
_KEPT_BYTES = 64 << 20
_REPLAYS = 16  # at a time
_REPLAY_MESSAGES = 100  # that wait for one of them
_REPLAY_IDLE_S = 10.0
_REQUEST_BYTES = 256
_ANEW_EVERY_S = 1.0


class EventSource(Protocol):
    """What the native master offers."""

    @property
    def term(self) -> int: ...
    def take_events(self, most: int) -> list[Taken]: ...
    def tell_events_anew(self) -> None: ...


def batches(taken: Iterable[Taken]) -> list[Stored | Removed | Cleared]:
    """Events in order, neighbours of one kind in one message."""
    out: list[Stored | Removed | Cleared] = []
    for kind, why, key, length in taken:
        last = out[-1] if out else None
        if kind == "stored":
            if not isinstance(last, Stored):
                last = Stored([], [])
                out.append(last)
            last.block_hashes.append(key)
            last.nbytes.append(length)
        elif kind == "removed":
            if not isinstance(last, Removed) or last.why != why:
                last = Removed([], why)
                out.append(last)
            last.block_hashes.append(key)
        else:
            out.append(Cleared())
    return out


class _Kept:
    """The latest batches, bounded by count and bytes."""

    def __init__(self) -> None:
        self._batches: deque[tuple[int, bytes]] = deque()
        self._nbytes = 0

    def add(self, seq: int, payload: bytes) -> None:
        self._batches.append((seq, payload))
        self._nbytes += len(payload)
        while len(self._batches) > _KEPT_BATCHES or self._nbytes > _KEPT_BYTES:
            self._nbytes -= len(self._batches.popleft()[1])

    def at(self, seq: int) -> tuple[int, bytes] | None:
        """The first one that is not before `seq`."""
        if not self._batches:
            return None
        index = max(seq - self._batches[0][0], 0)
        return self._batches[index] if index < len(self._batches) else None


class _Replay:
    def __init__(self, envelope: list[bytes], seq: int) -> None:
        self.envelope, self.seq = envelope, seq
        self.moved = time.monotonic()


class EventPublisher:
    """Publishes until it is closed, in a thread of its own.

    `listen`, `replay_listen`: "host:port", port 0 takes a free one; without the second one there are no replays.
    Unsupported: pyzmq is not installed. Denied: an address off loopback where `anywhere` is false. Unavailable: the
    address is in use.
    """

    def __init__(
        self, source: EventSource, listen: str, replay_listen: str | None, *, topic: str = "", anywhere: bool = False
    ) -> None:
        try:
            import zmq
        except ImportError:
            raise Unsupported("events_listen needs pyzmq: pip install 'moontide[events]'") from None
        self._zmq = zmq
        self._source, self._topic = source, topic.encode()
        self._context = zmq.Context()
        self._sockets: list[Any] = []
        self._replay: Any = None
        self._seq = 0
        self._sent = 0.0  # when the last batch was
        self._kept = _Kept()
        self._replays: dict[bytes, _Replay] = {}
        self._told_anew = 0.0
        self._stop = threading.Event()
        try:
            self._pub = self._bind(zmq.PUB, listen, "events_listen", anywhere)
            if replay_listen is not None:
                self._replay = self._bind(zmq.ROUTER, replay_listen, "events_replay_listen", anywhere)
        except BaseException:
            self._close_sockets()
            raise
        self.address = _bound(self._pub)
        self.replay_address = _bound(self._replay) if self._replay is not None else None
        self._thread = threading.Thread(target=self._run, name="moontide-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread and the sockets."""
        self._stop.set()
        self._thread.join()

    def _bind(self, kind: int, listen: str, option: str, anywhere: bool) -> Any:
        host, port = split_address(listen, what=option)
        if not anywhere and not is_loopback(host):
            raise Denied(
                f"{option} = {listen!r}: only loopback addresses, since nobody is asked who they are; http_reach = "
                "anywhere allows others"
            )
        zmq = self._zmq
        socket = self._context.socket(kind)
        self._sockets.append(socket)
        socket.linger = 0
        socket.sndhwm = _SUBSCRIBER_MESSAGES if kind == zmq.PUB else _REPLAY_MESSAGES
        socket.rcvhwm = _REPLAY_MESSAGES
        socket.setsockopt(zmq.MAXMSGSIZE, _REQUEST_BYTES)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if ":" in host:
            socket.setsockopt(zmq.IPV6, 1)
        try:
            socket.bind(f"tcp://{join_address('127.0.0.1' if host == 'localhost' else host, port)}")
        except zmq.ZMQError as error:
            raise Unavailable(f"{option} = {listen!r}: {error}") from None
        return socket

    def _close_sockets(self) -> None:
        for socket in self._sockets:
            socket.close()
        self._context.term()

    # --- the thread

    def _run(self) -> None:
        while not self._stop.is_set():
            more = self._publish()
            if self._replay is None:
                self._stop.wait(0 if more else _TURN_MS / 1000)
                continue
            busy = more or bool(self._replays)
            if self._replay.poll(1 if busy else _TURN_MS):
                self._requested()
            self._go_on_replaying()
        self._close_sockets()

    def _publish(self) -> bool:
        """True: there may be more."""
        for _ in range(_BATCHES_PER_TURN):
            taken = self._source.take_events(_EVENTS_PER_BATCH)
            now = time.monotonic()
            if not taken and now - self._sent < _IDLE_S:
                return False
            self._sent = now
            payload = encode(Batch(time.time(), batches(taken), None, self._source.term))
            self._kept.add(self._seq, payload)
            self._pub.send_multipart([self._topic, pack_seq(self._seq), payload])
            self._seq += 1
            if not taken:
                return False
        return True

    def _requested(self) -> None:
        for _ in range(_REPLAYS):
            try:
                frames = self._replay.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            envelope, what = frames[:-1], frames[-1]
            if not 1 <= len(envelope) <= 2 or any(envelope[1:]):
                continue
            seq = unpack_seq(what)
            if seq is not None and (envelope[0] in self._replays or len(self._replays) < _REPLAYS):
                self._replays[envelope[0]] = _Replay(envelope, seq)
            elif what == ANEW and time.monotonic() - self._told_anew > _ANEW_EVERY_S:
                self._told_anew = time.monotonic()
                self._source.tell_events_anew()

    def _go_on_replaying(self) -> None:
        for identity, replay in list(self._replays.items()):
            if self._send_some(replay) or time.monotonic() - replay.moved > _REPLAY_IDLE_S:
                del self._replays[identity]

    def _send_some(self, replay: _Replay) -> bool:
        """True: that was all, or its peer is gone."""
        for _ in range(_REPLAY_MESSAGES):
            kept = self._kept.at(replay.seq)
            frames = [END, b""] if kept is None else [pack_seq(kept[0]), kept[1]]
            try:
                self._replay.send_multipart([*replay.envelope, *frames], self._zmq.NOBLOCK)
            except self._zmq.Again:
                return False
            except self._zmq.ZMQError:
                return True
            if kept is None:
                return True
            replay.seq = kept[0] + 1
            replay.moved = time.monotonic()
        return False


def _bound(socket: Any) -> str:
    endpoint: bytes = socket.last_endpoint
    return endpoint.rstrip(b"\0").decode().removeprefix("tcp://")
