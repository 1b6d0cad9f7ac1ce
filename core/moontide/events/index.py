"""The other side of the stream: which objects a pool has, as far as its events have been told."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from moontide._addresses import join_address, split_address
from moontide.errors import Unsupported
from moontide.events.messages import ANEW, Batch, Removed, Stored, decode, pack_seq, unpack_seq

__all__ = ["EventIndex"]

_MESSAGES = 10_000  # that wait here; what is beyond is lost, and the gap is seen
_MESSAGE_BYTES = 16 << 20
_ASK_AGAIN_S = 1.0


class EventIndex:
    """Follows the events of a master: `objects` are the keys it has committed, with their lengths in bytes.

    `address`: the master's events_listen. `replay_address`: its events_replay_listen, by which gaps are closed and one
    that comes late hears of what was before; without it the index is whole only where it was there from the start.
    Call `poll` regularly, from one thread. Unsupported: pyzmq is not installed.
    """

    def __init__(self, address: str, replay_address: str | None = None, *, topic: str = "") -> None:
        try:
            import zmq
        except ImportError:
            raise Unsupported("an index of events needs pyzmq: pip install 'moontide[events]'") from None
        self._zmq = zmq
        self.objects: dict[bytes, int] = {}
        """Key → length."""
        self.whole = False
        """Whether nothing is known to be missing."""
        self.gaps = 0
        """How often messages were missed."""
        self._next: int | None = None
        self._term = 0
        self._latest = -1  # that was published
        self._progress = False  # of the last replay
        self._asked_at: float | None = None
        self._context = zmq.Context()
        self._sub = self._connect(zmq.SUB, address)
        self._sub.subscribe(topic)
        self._ask: Any = self._connect(zmq.DEALER, replay_address) if replay_address is not None else None
        self._poller = zmq.Poller()
        for socket in filter(None, (self._sub, self._ask)):
            self._poller.register(socket, zmq.POLLIN)

    def _connect(self, kind: int, address: str) -> Any:
        host, port = split_address(address)
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.rcvhwm = _MESSAGES
        socket.setsockopt(self._zmq.MAXMSGSIZE, _MESSAGE_BYTES)
        if ":" in host:
            socket.setsockopt(self._zmq.IPV6, 1)
        socket.connect(f"tcp://{join_address(host, port)}")
        return socket

    def poll(self, timeout: float = 0.0) -> int:
        """Takes in what has come, waiting for so many seconds for something; how many batches there were."""
        if not self.whole:
            self._ask_for_what_is_missing()
        ready = dict(self._poller.poll(int(timeout * 1000)))
        taken = 0
        if self._ask is not None and self._ask in ready:
            taken += self._take_replayed()
        if self._sub in ready:
            taken += self._take_published()
        return taken

    def close(self) -> None:
        """Ends the connections; `objects` stays as it is."""
        for socket in filter(None, (self._sub, self._ask)):
            socket.close()
        self._context.term()

    def __enter__(self) -> EventIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _received(self, socket: Any) -> list[bytes] | None:
        try:
            frames: list[bytes] = socket.recv_multipart(self._zmq.NOBLOCK)
        except self._zmq.Again:
            return None
        return frames

    def _take_published(self) -> int:
        taken = 0
        while (frames := self._received(self._sub)) is not None:
            seq = unpack_seq(frames[1]) if len(frames) == 3 else None
            batch = _batch(frames[2]) if seq is not None else None
            if seq is None or batch is None:
                continue
            taken += 1
            if batch.term != self._term:
                self._next, self._latest, self._term = None, -1, batch.term
            self._latest = max(self._latest, seq)
            if self._apply(seq, batch):
                self.whole = True
            elif self._next is None or seq > self._next:
                self.gaps += self.whole
                self._asked_at = None if self.whole else self._asked_at
                self.whole = False
        return taken

    def _take_replayed(self) -> int:
        taken = 0
        while (frames := self._received(self._ask)) is not None:
            seq = unpack_seq(frames[-2]) if len(frames) >= 2 else None
            batch = _batch(frames[-1]) if seq is not None else None
            if seq is None or batch is None:
                self._end_of_replay()
                continue
            taken += 1
            if self._next is None and self._latest < 0:
                self._term = batch.term  # nothing was published since this index is here
            self._progress |= self._apply(seq, batch)
        return taken

    def _apply(self, seq: int, batch: Batch) -> bool:
        """False: it is not the next batch, and does not begin anew."""
        begins = any(not isinstance(event, Stored | Removed) for event in batch.events)
        if batch.term != self._term or (self._next is not None and seq < self._next):
            return False
        if seq != self._next and not begins:
            return False
        for event in batch.events:
            if isinstance(event, Stored):
                self.objects.update(zip(event.block_hashes, event.nbytes, strict=False))
            elif isinstance(event, Removed):
                for key in event.block_hashes:
                    self.objects.pop(key, None)
            else:
                self.objects.clear()
        self._next = seq + 1
        return True

    def _ask_for_what_is_missing(self) -> None:
        now = time.monotonic()
        if self._ask is None or (self._asked_at is not None and now - self._asked_at < _ASK_AGAIN_S):
            return
        self._asked_at, self._progress = now, False
        self._send(pack_seq(0 if self._next is None else self._next))

    def _end_of_replay(self) -> None:
        if self.whole:
            return
        if self._next is not None and self._next > self._latest:
            self.whole = True
        elif self._progress:
            self._asked_at = None  # there is more by now
        else:
            self._send(ANEW)  # what is missing is not kept any more

    def _send(self, what: bytes) -> None:
        try:
            self._ask.send_multipart([b"", what], self._zmq.NOBLOCK)
        except self._zmq.Again:
            self._asked_at = None


def _batch(payload: bytes) -> Batch | None:
    try:
        return decode(payload)
    except msgspec.MsgspecError:
        return None
