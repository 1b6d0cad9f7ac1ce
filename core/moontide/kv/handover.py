"""The hand-over of a request's blocks from a prefill engine to a decode engine.

    decode                                       prefill
      open(address of my rank)          ──────►
      claim(hold id)                    ──────►    payload: layout, blocks, tokens, digest of the content
      compare layouts and digest                   (claimed holds are renewed by heartbeat while the link lives)
      read the blocks                   ──────►    (one-sided: no code of the prefill engine's Python runs)
      release(hold id)                  ──────►    "held until now", or EXPIRED
      only now: the load is done                   only now, or at expiry or our death: the blocks are free

A load whose release was not answered so may have read blocks that were already given to someone else: it has failed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

import msgspec

from moontide.errors import Closed, Incompatible, Invalid, MoontideError, NotFound, PeerLost, TimedOut, Unavailable
from moontide.kv.layout import Layout, compare, decode_layout, encode_layout, refuse
from moontide.kv.messages import ClaimJob, HoldJob, HoldPayload, PeerLoad, ReleaseJob
from moontide.kv.params import PullRequest
from moontide.kv.plan import at_positions, read_entries
from moontide.kv.ports import EnginePort, PeerPort, TransferPort
from moontide.kv.settings import KvSettings
from moontide.kv.stats import Stats

__all__ = ["Holder", "LoadOutcome", "PeerLinks", "PeerLoader"]

PAYLOAD_VERSION = 1
_CLAIM_RETRY_S = 0.02
_LINKS = 256
_SILENCE_S = 2.0

logger = logging.getLogger("moontide.kv")


class LoadOutcome(msgspec.Struct, kw_only=True):
    """How a load ended. By now nothing writes into its blocks any more."""

    request_id: str
    source: str
    # "peer" or "pool"
    failed_blocks: tuple[int, ...] = ()
    cause: str = ""
    """code of the error; empty if all arrived"""
    detail: str = ""
    num_blocks: int = 0
    num_bytes: int = 0
    path: str = ""
    seconds: float = 0.0
    missing: tuple[bytes, ...] = ()


class Holder:
    """The prefill side. Called by the engine's own thread only."""

    def __init__(self, engine: EnginePort, layout: Layout, settings: KvSettings, stats: Stats) -> None:
        self._engine = engine
        self._layout = encode_layout(layout)
        self._ttl = settings.hold_ttl
        self._stats = stats
        self._requests: dict[bytes, str] = {}
        self._ended: list[str] = []

    def begin(self, job: HoldJob) -> None:
        """The blocks stay untouched until `poll` names the request. Never raises: what cannot be held has ended."""
        payload = HoldPayload(
            version=PAYLOAD_VERSION,
            layout=self._layout,
            blocks=tuple(job.blocks),
            num_tokens=job.num_tokens,
            digest=job.digest,
        )
        try:
            self._engine.hold(job.hold_id, msgspec.msgpack.encode(payload), ttl=self._ttl)
        except MoontideError as error:
            logger.warning("cannot hold the blocks of %s: %s", job.request_id, error)
            self._stats.count("holds", "refused")
            self._ended.append(job.request_id)
        else:
            self._requests[job.hold_id] = job.request_id

    @property
    def held(self) -> int:
        return len(self._requests)

    def poll(self) -> set[str]:
        """Requests whose hold ended since the last call; each once."""
        ended, self._ended = set(self._ended), []
        if self._requests:
            for hold_id, reason in self._engine.drain_holds():
                request_id = self._requests.pop(hold_id, None)
                if request_id is None:
                    self._stats.count("holds", "unknown")
                    continue
                self._stats.count("holds", reason)
                ended.add(request_id)
        return ended


class PeerLinks:
    """Open links by address. Thread-safe. A link that failed is dropped, so that a restarted peer is met anew.

    An address that did not answer is left alone for a while: the few threads that load must not all wait for one dead
    peer. Addresses come from clients, so both tables are bounded.
    """

    def __init__(self, engine: EnginePort, timeout: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._timeout = timeout
        self._clock = clock
        self._lock = threading.Lock()
        self._peers: OrderedDict[str, PeerPort] = OrderedDict()
        self._silent: OrderedDict[str, float] = OrderedDict()

    def get(self, address: str) -> tuple[PeerPort, bool]:
        """(link, whether it was open before: such a one may belong to a peer that is gone). Raises MoontideError."""
        with self._lock:
            peer = self._peers.get(address)
            if peer is not None and peer.open:
                self._peers.move_to_end(address)
                return peer, True
            self._peers.pop(address, None)
            if self._clock() < self._silent.get(address, 0.0):
                raise Unavailable(f"{address} did not answer just now")
        try:
            peer = self._engine.open(address, timeout=self._timeout)
        except TimedOut:
            self._left_alone(address)
            raise
        with self._lock:
            self._peers[address] = peer
            if len(self._peers) > _LINKS:
                # Loads under way keep their link; the engine ends it when the last of them is over.
                self._peers.popitem(last=False)
        return peer, False

    def drop(self, address: str, peer: PeerPort, *, silent: bool) -> None:
        """The link is of no use any more. ``silent``: the peer did not answer in time."""
        if silent:
            self._left_alone(address)
        with self._lock:
            if self._peers.get(address) is peer:
                del self._peers[address]
        peer.close()

    def _left_alone(self, address: str) -> None:
        with self._lock:
            self._silent[address] = self._clock() + _SILENCE_S
            self._silent.move_to_end(address)
            if len(self._silent) > _LINKS:
                self._silent.popitem(last=False)

    def close(self) -> None:
        with self._lock:
            peers, self._peers = list(self._peers.values()), OrderedDict()
        for peer in peers:
            peer.close()


class PeerLoader:
    """The decode side: blocking calls for the threads of a `Crew`. Thread-safe."""

    def __init__(
        self,
        engine: EnginePort,
        layout: Layout,
        bases: Mapping[str, int],
        settings: KvSettings,
        stats: Stats,
    ) -> None:
        self._engine = engine
        self._layout = layout
        self._bases = bases
        self._settings = settings
        self._stats = stats
        self._links = PeerLinks(engine, settings.open_timeout)

    def load(self, job: PeerLoad) -> LoadOutcome:
        """All blocks of the job or none. Every step has its deadline; any failure is an outcome, never an exception."""
        began = time.monotonic()
        outcome = LoadOutcome(request_id=job.request_id, source="peer", num_blocks=len(job.blocks))
        try:
            transfer, num_bytes = self._load(job)
        except MoontideError as error:
            outcome.cause, outcome.detail = error.code, error.message
        except Exception as error:  # a bug must cost one load, not the engine
            logger.exception("a load of %s failed", job.request_id)
            outcome.cause, outcome.detail = "INTERNAL", repr(error)
        else:
            outcome.path, outcome.num_bytes = transfer.path, num_bytes
        if outcome.cause:
            outcome.failed_blocks = tuple(job.blocks)
        outcome.seconds = time.monotonic() - began
        return outcome

    def claim(self, job: ClaimJob) -> None:
        """Has the engine renew the hold from now on. Best effort: the load claims again."""
        try:
            self._claimed(self._address(job.source), job.source)
        except MoontideError as error:
            logger.info("could not claim hold %s early: %s", job.source.hold, error)

    def release(self, job: ReleaseJob) -> None:
        """Frees blocks that are not needed. Best effort: the hold expires anyway."""
        try:
            peer, _ = self._claimed(self._address(job.source), job.source)
            peer.release(job.source.hold_id, timeout=self._settings.release_timeout)
        except MoontideError as error:
            logger.info("could not release hold %s early: %s", job.source.hold, error)
            self._stats.count("releases", error.code)
        else:
            self._stats.count("releases", "ok")

    def close(self) -> None:
        self._links.close()

    def _address(self, source: PullRequest) -> str:
        rank = self._layout.rank
        if len(source.addresses) != rank.tp_size:
            raise Incompatible(f"tp size: {rank.tp_size} here, {len(source.addresses)} there")
        return source.addresses[rank.tp_rank]

    def _load(self, job: PeerLoad) -> tuple[TransferPort, int]:
        address = self._address(job.source)
        peer, payload = self._claimed(address, job.source)
        try:
            return self._read(peer, job, payload)
        except (Closed, PeerLost, TimedOut) as error:
            # With the link ends the renewing of the hold.
            self._links.drop(address, peer, silent=isinstance(error, TimedOut))
            raise
        except Exception:
            self._give_up(peer, job.source)
            raise

    def _claimed(self, address: str, source: PullRequest) -> tuple[PeerPort, HoldPayload]:
        """A link that was open may turn out to lead to a peer that restarted; then a new one is made, once."""
        while True:
            peer, was_open = self._links.get(address)
            try:
                return peer, self._claim(peer, source)
            except (Closed, PeerLost, TimedOut) as error:
                self._links.drop(address, peer, silent=isinstance(error, TimedOut))
                if not was_open or isinstance(error, TimedOut):
                    raise

    def _claim(self, peer: PeerPort, source: PullRequest) -> HoldPayload:
        """The hold's payload. The prefill worker hears of a hold one step after the client does, hence the patience."""
        deadline = time.monotonic() + self._settings.claim_timeout
        while True:
            left = max(0.001, deadline - time.monotonic())
            try:
                data = peer.claim(source.hold_id, timeout=left)
                break
            except NotFound:
                if time.monotonic() + _CLAIM_RETRY_S >= deadline:
                    raise
                time.sleep(_CLAIM_RETRY_S)
        try:
            payload = msgspec.msgpack.decode(data, type=HoldPayload)
        except msgspec.MsgspecError as error:
            raise Invalid(f"not a hold's payload: {error}") from None
        if payload.version != PAYLOAD_VERSION:
            raise Incompatible(f"payload version: {PAYLOAD_VERSION} here, {payload.version} there")
        return payload

    def _read(self, peer: PeerPort, job: PeerLoad, payload: HoldPayload) -> tuple[TransferPort, int]:
        there = decode_layout(payload.layout)
        differences = compare(self._layout, there)
        if differences:
            raise refuse(differences)
        if payload.digest != job.digest or payload.num_tokens != job.source.num_tokens:
            raise Incompatible(
                f"the hold has other content: {job.source.num_tokens} tokens {job.digest.hex()[:16]} asked for, "
                f"{payload.num_tokens} tokens {payload.digest.hex()[:16]} held"
            )
        remote = at_positions(payload.blocks, job.first_position, len(job.blocks))
        entries = read_entries(self._layout, self._bases, there, peer.regions, job.blocks, remote)
        transfer = self._engine.read(entries, timeout=self._settings.read_timeout)
        try:
            transfer.wait()
        except BaseException:
            transfer.cancel()
            raise
        finally:
            self._until_quiet(transfer, job.request_id)
        peer.release(job.source.hold_id, timeout=self._settings.release_timeout)
        return transfer, sum(length for *_, length in entries)

    def _until_quiet(self, transfer: TransferPort, request_id: str) -> None:
        """Blocks of a load are given back only when nothing can write into them. Waits for that, however long."""
        began = time.monotonic()
        while not transfer.quiet:
            try:
                transfer.wait_quiet(timeout=1.0)
            except TimedOut:
                self._stats.count("hostage_waits")
                logger.warning("the blocks of %s are hostage for %.0f s", request_id, time.monotonic() - began)

    def _give_up(self, peer: PeerPort, source: PullRequest) -> None:
        try:
            peer.release(source.hold_id, timeout=self._settings.release_timeout)
        except MoontideError as error:
            logger.info("could not release hold %s after a refusal: %s", source.hold, error)
