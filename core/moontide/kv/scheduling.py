"""The scheduler half of a connector: decides what to load, hold and save. Knows no engine and no inference framework.

Called from the scheduler's one thread. Nothing here raises because of what a client sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from moontide.kv.keys import Chain, KeySpace, Span
from moontide.kv.messages import ClaimJob, HoldJob, PeerLoad, PoolLoad, ReleaseJob, SaveJob, StepPlan, WorkerReport
from moontide.kv.params import HoldRequest, Ignored, PullRequest, new_hold_id, parse
from moontide.kv.pool import KeyIndex
from moontide.kv.stats import Stats

__all__ = ["BlockFinder", "RequestView", "ScheduledRequest", "SchedulerHalf"]

_LOOKUP_AGE_S = 1.0

logger = logging.getLogger("moontide.kv")


class BlockFinder(Protocol):
    """`pool.Lookup`, or `pool.KeyIndex` of the embedded cache."""

    def exist(self, blocks: Sequence[bytes]) -> list[bool]: ...


@dataclass
class RequestView:
    """What has to be known of a request. ``bypass``: why its content cannot be expressed in keys, if so."""

    request_id: str
    prompt: Sequence[int]
    spans: Sequence[Span] = ()
    bypass: str = ""
    params: Any = None


@dataclass
class ScheduledRequest:
    """A request's share of one step: positions [computed, computed + scheduled).

    ``table`` gives all its block ids, and is called only when they are needed; ``fresh`` are those that it got in this
    step, or may have got from someone else since it was last scheduled.
    """

    request_id: str
    computed: int
    scheduled: int
    table: Callable[[], Sequence[int]]
    fresh: Sequence[int] = ()


@dataclass
class _Offer:
    source: str
    first_token: int
    num_tokens: int


@dataclass
class _Request:
    view: RequestView
    chain: Chain | None
    pull: PullRequest | None = None
    hold: bool = False
    pool: bool = False
    offer: _Offer | None = None
    loading: str = ""
    exists: list[bool] = field(default_factory=list)
    looked_up: float = float("-inf")
    considered: int = 0
    """full blocks up to here need not be saved any more"""


class SchedulerHalf:
    """``addresses``: of the workers' engines by TP rank, set once they are known."""

    def __init__(
        self,
        space: KeySpace,
        stats: Stats,
        *,
        finder: BlockFinder | None,
        may_produce: bool = True,
        may_consume: bool = True,
        max_held_blocks: int = 1 << 32,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.addresses: tuple[str, ...] = ()
        self._space = space
        self._size = space.block_tokens
        self._stats = stats
        self._finder = finder
        self._may_produce = may_produce
        self._may_consume = may_consume
        self._max_held_blocks = max_held_blocks
        self._held: dict[str, int] = {}
        self._clock = clock
        self._requests: dict[str, _Request] = {}
        self._plan = StepPlan()
        self._arrivals: list[str] = []

    # -- a request arrives -------------------------------------------------------------------------------------------

    def arrived(self, view: RequestView) -> None:
        request = _Request(view, None)
        wish = parse(view.params)
        if isinstance(wish, Ignored):
            self._stats.count("bypassed", f"params_{wish.reason}")
            logger.info("kv_transfer_params of %s ignored: %s %s", view.request_id, wish.reason, wish.detail)
        if view.bypass:
            self._stats.count("bypassed", view.bypass)
        else:
            request.chain = Chain(self._space, view.prompt, view.spans)
            request.hold = isinstance(wish, HoldRequest)
            request.pool = self._finder is not None
        if isinstance(wish, PullRequest):
            request.pull = wish
            if not self._pull_fits(request, wish):
                self._drop_pull(request)
        if request.hold and not self._may_produce:
            self._stats.count("bypassed", "role")
            request.hold = False
        self._requests[view.request_id] = request
        if request.pull is not None:
            self._arrivals.append(view.request_id)

    def _pull_fits(self, request: _Request, pull: PullRequest) -> bool:
        reason = ""
        if request.chain is None:
            reason = "content"
        elif not self._may_consume:
            reason = "role"
        elif pull.num_tokens > len(request.view.prompt):
            reason = "params_tokens"
        if reason:
            self._stats.count("bypassed", reason)
        return not reason

    def _drop_pull(self, request: _Request) -> None:
        """The blocks held for this request are not needed (any more): say so, once."""
        if request.pull is not None:
            self._plan.releases.append(ReleaseJob(request.pull))
            request.pull = None

    # -- it is scheduled ---------------------------------------------------------------------------------------------

    def match(self, request_id: str, computed: int) -> int:
        """Tokens beyond ``computed`` (a multiple of the block size) that can be loaded. May be called any number of
        times; nothing happens before `allocated`."""
        request = self._requests.get(request_id)
        if request is None or request.chain is None:
            return 0
        request.offer = None
        if request.pull is not None:
            more = request.pull.num_tokens - computed
            if more > 0:
                request.offer = _Offer("peer", computed, more)
                return more
        if request.pool and self._may_consume:
            blocks = self._pool_hits(request, computed // self._size)
            if blocks:
                request.offer = _Offer("pool", computed, blocks * self._size)
                return blocks * self._size
        return 0

    def _pool_hits(self, request: _Request, first: int) -> int:
        """How many blocks from ``first`` on the pool has in a row. One token at least is left to compute."""
        assert request.chain is not None and self._finder is not None
        last = min(request.chain.full_blocks, (len(request.view.prompt) - 1) // self._size)
        if first >= last:
            return 0
        if self._clock() - request.looked_up > _LOOKUP_AGE_S:
            request.exists = self._finder.exist(request.chain.blocks(request.chain.full_blocks))
            request.looked_up = self._clock()
        count = 0
        while first + count < last and request.exists[first + count]:
            count += 1
        return count

    def allocated(self, request_id: str, table: Sequence[int], num_tokens: int) -> None:
        """The engine reserved blocks; ``num_tokens`` of them are to be loaded, beyond those computed before."""
        request = self._requests.get(request_id)
        if request is None or request.chain is None:
            return
        offer, request.offer = request.offer, None
        if num_tokens <= 0 or offer is None:
            # All is here already, or the engine declined: the other side need not wait for us.
            self._drop_pull(request)
            return
        first = offer.first_token // self._size
        end_token = offer.first_token + num_tokens
        if offer.source == "peer" and request.pull is not None:
            end = -(-end_token // self._size)
            job = PeerLoad(
                request_id, request.pull, list(table[first:end]), first, request.chain.digest(request.pull.num_tokens)
            )
            request.pull = None
            self._plan.peer_loads.append(job)
        else:
            self._drop_pull(request)
            end = end_token // self._size
            hashes = request.chain.blocks(end)[first:]
            self._plan.pool_loads.append(PoolLoad(request_id, hashes, list(table[first:end])))
        self._plan.written += table[first:end]
        request.loading = offer.source
        request.considered = max(request.considered, end_token // self._size)

    def source_of(self, request_id: str) -> str:
        """Where the load that was just allocated comes from: "peer", "pool" or ""."""
        request = self._requests.get(request_id)
        return request.loading if request is not None else ""

    def build(self, scheduled: Iterable[ScheduledRequest]) -> StepPlan:
        """The plan of this step; the next one starts empty."""
        plan, self._plan = self._plan, StepPlan()
        self._claim_for_the_waiting(plan)
        if self._finder is None:
            return plan
        for part in scheduled:
            plan.written += part.fresh
            request = self._requests.get(part.request_id)
            if request is not None and request.pool and self._may_produce:
                self._save(plan, request, part)
        return plan

    def _claim_for_the_waiting(self, plan: StepPlan) -> None:
        """Requests that came with a hold but were not scheduled at once: a long queue here must not let it expire."""
        arrivals, self._arrivals = self._arrivals, []
        for request_id in arrivals:
            request = self._requests.get(request_id)
            if request is not None and request.pull is not None:
                plan.claims.append(ClaimJob(request.pull))

    def _save(self, plan: StepPlan, request: _Request, part: ScheduledRequest) -> None:
        assert request.chain is not None
        full = min((part.computed + part.scheduled) // self._size, request.chain.full_blocks)
        if full <= request.considered:
            return
        table = part.table()
        wanted = [
            position
            for position in range(request.considered, full)
            if not (position < len(request.exists) and request.exists[position])
        ]
        request.considered = full
        if wanted and len(table) >= full:
            hashes = request.chain.blocks(full)
            plan.saves.append(
                SaveJob(request.view.request_id, [hashes[at] for at in wanted], [table[at] for at in wanted])
            )

    # -- it ends -----------------------------------------------------------------------------------------------------

    def finished(
        self, request_id: str, *, complete: bool, table: Sequence[int], computed: int
    ) -> tuple[bool, dict[str, Any] | None]:
        """(whether the blocks must stay until the workers name the request, params for the client)."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False, None
        self._drop_pull(request)
        if not request.hold or not complete or request.chain is None:
            return False, None
        count = len(request.view.prompt)
        blocks = -(-count // self._size)
        if count == 0 or computed < count or len(table) < blocks or not self.addresses:
            self._stats.count("bypassed", "hold_incomplete")
            return False, None
        if sum(self._held.values()) + blocks > self._max_held_blocks:
            # Anyone may ask for holds and then not come for them.
            self._stats.count("bypassed", "holds_full")
            return False, None
        self._held[request_id] = blocks
        hold_id = new_hold_id()
        job = HoldJob(request_id, bytes.fromhex(hold_id), list(table[:blocks]), count, request.chain.digest(count))
        self._plan.holds.append(job)
        answer = PullRequest(
            moontide=1,
            hold=hold_id,
            addresses=self.addresses,
            num_tokens=count,
            num_blocks=blocks,
            block_size=self._size,
        )
        return True, answer.as_params()

    def sent(self, request_ids: Iterable[str]) -> None:
        """The holds of these requests are over, on all workers."""
        for request_id in request_ids:
            self._held.pop(request_id, None)

    def reported(self, report: WorkerReport) -> None:
        """What the workers found out. Comes before the engine reschedules the requests that are named."""
        for request_id in report.failed:
            request = self._requests.get(request_id)
            if request is None:
                continue
            # Never the same failing hit again. After a peer's failure the pool may still have the blocks.
            if request.loading == "pool":
                request.pool = False
            request.loading = ""
            request.considered = 0
        if isinstance(self._finder, KeyIndex):
            for block, rank in report.saved:
                self._finder.saved(block, rank)
            for block in report.missing:
                self._finder.missing(block)

    @property
    def has_jobs(self) -> bool:
        """Whether a step is needed although no request is scheduled."""
        plan = self._plan
        return bool(plan.holds or plan.releases or plan.peer_loads or plan.pool_loads)
