"""Reuse of blocks through the pool: look up, load, save. The pool is a cache: when it is away, it costs a miss."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

from moontide.errors import AlreadyExists, Closed, MoontideError, NotFound, PeerLost, TimedOut, Unavailable
from moontide.kv.crew import Crew
from moontide.kv.handover import LoadOutcome
from moontide.kv.keys import KeySpace
from moontide.kv.layout import Layout
from moontide.kv.messages import PoolLoad, SaveJob
from moontide.kv.plan import block_parts
from moontide.kv.ports import OperationPort, StorePort
from moontide.kv.settings import KvSettings
from moontide.kv.stats import Stats

__all__ = ["KeyIndex", "Lookup", "PoolDoor", "PoolLoader", "Saver"]

_AWAY = (Closed, PeerLost, TimedOut, Unavailable)
_BACKOFF_FIRST_S = 0.5
_BACKOFF_LAST_S = 10.0
_CANCEL_S = 0.5

logger = logging.getLogger("moontide.kv")


class PoolDoor:
    """The way to the pool: opens in the background, shuts when the pool does not answer, tries again after a pause.

    Thread-safe. ``connect`` blocks, so it runs on a thread of the crew.
    """

    def __init__(self, connect: Callable[[], StorePort], crew: Crew, *, clock: Callable[[], float] = time.monotonic):
        self._connect = connect
        self._crew = crew
        self._clock = clock
        self._lock = threading.Lock()
        self._store: StorePort | None = None
        self._connecting = False
        self._closed = False
        self._shut_until = 0.0
        self._backoff = _BACKOFF_FIRST_S

    def store(self) -> StorePort | None:
        """The client, or None while the pool is away. Never waits."""
        with self._lock:
            if self._closed or self._clock() < self._shut_until:
                return None
            if self._store is not None or self._connecting:
                return self._store
            self._connecting = True
        try:
            self._crew.submit(self._open)
        except MoontideError:
            with self._lock:
                self._connecting = False
        return None

    def _open(self) -> None:
        try:
            store = self._connect()
        except Exception as error:  # whatever it is, the pool is away
            with self._lock:
                self._connecting = False
            self.failed(error)
            return
        with self._lock:
            self._connecting = False
            self._store, unwanted = (None, store) if self._closed else (store, None)
        if unwanted is not None:
            unwanted.close()

    def succeeded(self) -> None:
        with self._lock:
            self._backoff = _BACKOFF_FIRST_S

    def failed(self, error: Exception) -> None:
        """Shuts the door for a while if the error says that the pool does not answer."""
        if isinstance(error, MoontideError) and not isinstance(error, _AWAY):
            return
        with self._lock:
            now = self._clock()
            if now < self._shut_until:
                return
            self._shut_until = now + self._backoff
            pause, self._backoff = self._backoff, min(self._backoff * 2, _BACKOFF_LAST_S)
        logger.warning("the pool does not answer, next try in %.1f s: %s", pause, error)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            store, self._store = self._store, None
        if store is not None:
            store.close()


class KeyIndex:
    """Which blocks the cache embedded in the workers has; known to the scheduler half from their reports. Bounded."""

    def __init__(self, tp_size: int, limit: int = 1 << 18) -> None:
        self._tp_size = tp_size
        self._limit = limit
        self._ranks: OrderedDict[bytes, set[int]] = OrderedDict()

    def saved(self, block: bytes, tp_rank: int) -> None:
        self._ranks.setdefault(block, set()).add(tp_rank)
        self._ranks.move_to_end(block)
        if len(self._ranks) > self._limit:
            self._ranks.popitem(last=False)

    def missing(self, block: bytes) -> None:
        self._ranks.pop(block, None)

    def clear(self) -> None:
        self._ranks.clear()

    def exist(self, blocks: Iterable[bytes]) -> list[bool]:
        return [len(self._ranks.get(block, ())) == self._tp_size for block in blocks]


class Lookup:
    """Which blocks the pool has, asked with a deadline. For the scheduler's thread."""

    def __init__(self, door: PoolDoor, space: KeySpace, settings: KvSettings, stats: Stats) -> None:
        self._door = door
        self._space = space
        self._timeout = settings.lookup_timeout
        self._stats = stats
        # One call at a time: a second one would only wait for the first. A call that hangs is given up, not joined.
        self._crew = Crew("moontide-lookup", 1, 1)

    def exist(self, blocks: Sequence[bytes]) -> list[bool]:
        """Per block whether all ranks' parts exist; all False when the pool is away or slow."""
        nothing = [False] * len(blocks)
        store = self._door.store()
        if store is None or not blocks:
            self._stats.count("lookups", "away" if blocks else "nothing")
            return nothing
        found: list[Sequence[bool]] = []
        failure: list[Exception] = []
        done = threading.Event()
        size = self._space.tp_size
        keys = [self._space.key(block, rank) for block in blocks for rank in range(size)]

        def ask() -> None:
            try:
                found.append(store.exists_many(keys))
            except Exception as error:  # reported below, in the scheduler's thread
                failure.append(error)
            done.set()

        try:
            self._crew.submit(ask)
        except MoontideError:
            self._stats.count("lookups", "busy")
            return nothing
        if not done.wait(self._timeout):
            self._stats.count("lookups", "late")
            self._door.failed(TimedOut(f"a lookup took more than {self._timeout} s"))
            return nothing
        if failure:
            self._stats.count("lookups", getattr(failure[0], "code", "INTERNAL"))
            self._door.failed(failure[0])
            return nothing
        self._door.succeeded()
        answers = list(found[0])
        result = [all(answers[index * size : (index + 1) * size]) for index in range(len(blocks))]
        self._stats.count("lookups", "hit" if any(result) else "miss")
        return result


def _until_quiet(operation: OperationPort, stats: Stats) -> None:
    while not operation.quiet:
        try:
            operation.wait_quiet(timeout=1.0)
        except TimedOut:
            stats.count("hostage_waits")
            logger.warning("memory of a pool operation is hostage")


def _paths_between(before: Mapping[str, int], after: Mapping[str, int]) -> str:
    """Paths over which this process's engine read in between, joined by "+". Exact when it is one; more than one may
    be those of other loads that went on meanwhile."""
    prefix, totals = "bytes_", ("bytes_read", "bytes_written")
    grown = [key for key, number in after.items() if key.startswith(prefix) and number > before.get(key, 0)]
    return "+".join(sorted(key.removeprefix(prefix) for key in grown if key not in totals)) or "unknown"


class PoolLoader:
    """Blocking loads, for the threads of a crew. Thread-safe."""

    def __init__(
        self,
        door: PoolDoor,
        space: KeySpace,
        layout: Layout,
        bases: Mapping[str, int],
        settings: KvSettings,
        stats: Stats,
        *,
        path_bytes: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._door = door
        self._space = space
        self._layout = layout
        self._bases = bases
        self._timeout = settings.read_timeout
        self._stats = stats
        self._path_bytes = path_bytes

    def load(self, job: PoolLoad) -> LoadOutcome:
        """Loads what it can; the outcome names the blocks that did not arrive. Never raises."""
        began = time.monotonic()
        outcome = LoadOutcome(request_id=job.request_id, source="pool", num_blocks=len(job.blocks))
        try:
            results = self._load(job, outcome)
        except Exception as error:
            if not isinstance(error, MoontideError):
                logger.exception("a load of %s from the pool failed", job.request_id)
            self._door.failed(error)
            results = [error] * len(job.blocks)
        failed = [index for index, result in enumerate(results) if result is not None]
        outcome.failed_blocks = tuple(job.blocks[index] for index in failed)
        outcome.missing = tuple(job.hashes[index] for index in failed if isinstance(results[index], NotFound))
        if failed:
            first = results[failed[0]]
            outcome.cause = getattr(first, "code", "INTERNAL")
            outcome.detail = str(first)
        outcome.num_bytes = (len(job.blocks) - len(failed)) * self._layout.block_bytes
        outcome.seconds = time.monotonic() - began
        return outcome

    def _load(self, job: PoolLoad, outcome: LoadOutcome) -> Sequence[Exception | None]:
        store = self._door.store()
        if store is None:
            raise Unavailable("the pool does not answer")
        keys = self._space.keys(job.hashes, self._layout.rank.tp_rank)
        parts = [block_parts(self._layout, self._bases, block) for block in job.blocks]
        before = self._path_bytes()
        operation = store.get_parts(keys, parts)
        try:
            results = operation.wait(self._timeout)
        except BaseException:
            operation.cancel()
            raise
        finally:
            _until_quiet(operation, self._stats)
        outcome.path = _paths_between(before, self._path_bytes())
        return results


class _Saving:
    def __init__(self, operation: OperationPort, job: SaveJob, began: float) -> None:
        self.operation = operation
        self.job = job
        self.blocks = frozenset(job.blocks)
        self.began = began


class Saver:
    """Copies full blocks to the pool while the engine goes on. Called by the engine's own thread only.

    The source blocks belong to the engine, which may give them to another request at any time: `fence` stands between.
    """

    def __init__(
        self,
        door: PoolDoor,
        space: KeySpace,
        layout: Layout,
        bases: Mapping[str, int],
        settings: KvSettings,
        stats: Stats,
        *,
        embedded: bool,
    ) -> None:
        self._door = door
        self._space = space
        self._layout = layout
        self._bases = bases
        self._settings = settings
        self._stats = stats
        self._embedded = embedded
        self._saving: list[_Saving] = []
        self._saved: list[tuple[bytes, int]] = []

    @property
    def blocks_under_way(self) -> int:
        return sum(len(saving.blocks) for saving in self._saving)

    def save(self, job: SaveJob) -> None:
        """Starts the copy; what cannot be saved is dropped and counted, never an error."""
        count = len(job.blocks)
        store = self._door.store()
        if store is None:
            self._stats.count("saves", "away", by=count)
            return
        if self.blocks_under_way + count > self._settings.max_save_blocks:
            self._stats.count("saves", "busy", by=count)
            return
        try:
            keys = self._space.keys(job.hashes, self._layout.rank.tp_rank)
            parts = [block_parts(self._layout, self._bases, block) for block in job.blocks]
            operation = store.put_parts(keys, parts, commit="async", prefix=True)
        except Exception as error:
            self._fail(error, count)
            return
        self._saving.append(_Saving(operation, job, time.monotonic()))
        if self._embedded:
            # A copy inside this process: finished now, so that the next request already finds it.
            self._wait(self._saving, self._settings.fence_timeout)

    def poll(self) -> None:
        """Takes in what has finished. Cheap when nothing is under way."""
        if not self._saving:
            return
        under_way = []
        for saving in self._saving:
            if saving.operation.done and saving.operation.quiet:
                self._finish(saving)
            else:
                under_way.append(saving)
        self._saving = under_way

    def fence(self, blocks: Iterable[int]) -> None:
        """Returns when no save reads any of these blocks any more: they are about to be overwritten.

        Should one not end in time, all are cancelled: they have the same reader, and the engine must not wait for each.
        Should even that not free the memory (the reader is stopped in the middle of a copy), the step goes on: a put
        that was cancelled is never committed, so nobody is ever shown what its reader copies.
        """
        if not self._saving:
            return
        self.poll()
        wanted = set(blocks)
        conflicts = [saving for saving in self._saving if not wanted.isdisjoint(saving.blocks)]
        if conflicts:
            began = time.monotonic()
            self._wait(conflicts, self._settings.fence_timeout)
            self._stats.count("fence_waits")
            self._stats.observe("fence", seconds=time.monotonic() - began)

    def drain_saved(self) -> list[tuple[bytes, int]]:
        """(hash, rank) of blocks that the embedded cache got since the last call."""
        saved, self._saved = self._saved, []
        return saved

    def close(self) -> None:
        self._wait(self._saving, self._settings.fence_timeout)

    def _wait(self, savings: Sequence[_Saving], timeout: float) -> None:
        deadline = time.monotonic() + timeout
        for saving in list(savings):
            try:
                saving.operation.wait_quiet(timeout=max(0.001, deadline - time.monotonic()))
            except MoontideError:
                self._cancel_all()
                break
        self.poll()

    def _cancel_all(self) -> None:
        for saving in self._saving:
            saving.operation.cancel()
        deadline = time.monotonic() + _CANCEL_S
        hostages = []
        for saving in self._saving:
            try:
                saving.operation.wait_quiet(timeout=max(0.001, deadline - time.monotonic()))
            except MoontideError:
                hostages.append(saving)
        if hostages:
            count = sum(len(saving.blocks) for saving in hostages)
            self._stats.count("fence_abandoned", by=len(hostages))
            self._stats.count("saves", "abandoned", by=count)
            self._saving = [saving for saving in self._saving if saving not in hostages]
            self._door.failed(TimedOut(f"{count} blocks are still being read after their saves were cancelled"))

    def _finish(self, saving: _Saving) -> None:
        try:
            results = saving.operation.wait(0.001)
        except Exception as error:
            self._fail(error, len(saving.job.blocks))
            return
        rank = self._layout.rank.tp_rank
        stored = 0
        for block, result in zip(saving.job.hashes, results, strict=True):
            if result is None or isinstance(result, AlreadyExists):
                self._stats.count("saves", "ok" if result is None else "present")
                stored += result is None
                if self._embedded:
                    self._saved.append((block, rank))
            else:
                self._fail(result, 1)
        if stored:
            self._door.succeeded()
            self._stats.count("bytes", "save", "pool", "", by=stored * self._layout.block_bytes)
            self._stats.observe("save", "pool", seconds=time.monotonic() - saving.began)

    def _fail(self, error: Exception, count: int) -> None:
        self._stats.count("saves", getattr(error, "code", "INTERNAL"), by=count)
        if not isinstance(error, MoontideError):
            logger.error("a save failed: %r", error)
        self._door.failed(error)
