"""The connector: vLLM's hooks, each handed to the scheduler half or the worker half of moontide.kv.

vLLM puts no boundary around these calls: an exception here ends its engine. So nothing here depends on what a client
sent, every load and hold is reported exactly once, and an optional save that cannot be made is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)

from moontide.config import Config, load_config
from moontide.errors import Incompatible
from moontide.kv.crew import Crew
from moontide.kv.keys import KeySpace, self_check
from moontide.kv.layout import Layout, decode_layout, encode_layout
from moontide.kv.messages import StepPlan, WorkerReport
from moontide.kv.pool import KeyIndex, Lookup, PoolDoor
from moontide.kv.ports import EnginePort, StorePort
from moontide.kv.scheduling import SchedulerHalf
from moontide.kv.settings import KvSettings
from moontide.kv.stats import Stats
from moontide.kv.working import Finished, WorkerHalf
from moontide.plugins.vllm.adapt import check_supported, describe_cache, scheduled_requests, view_request
from moontide.plugins.vllm.metrics import MoontidePromMetrics, MoontideStats

__all__ = ["MoontideConnector"]

logger = logging.getLogger("vllm.moontide")


@dataclass
class MoontideHandshake(KVConnectorHandshakeMetadata):  # type: ignore[misc]
    """From each worker to the scheduler half, at start."""

    address: str
    layout: bytes


@dataclass
class MoontideMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """From the scheduler half to the workers, each step."""

    plan: StepPlan


@dataclass
class MoontideWorkerMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc]
    """From the workers to the scheduler half, in steps that have news."""

    report: WorkerReport

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        return MoontideWorkerMetadata(self.report.merged_with(other.report))


def _key_space(layout: Layout) -> KeySpace:
    return KeySpace((layout.model.as_tuple(), layout.shape()), layout.block_tokens, layout.rank.tp_size)


class _WorkerSide:
    def __init__(self, vllm_config: Any, kv_cache_config: Any, settings: KvSettings, config: Config, stats: Stats):
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._settings = settings
        self._config = config
        self._stats = stats
        self._memory: Any = None
        self._layout: Layout | None = None
        self._engine: EnginePort | None = None
        self.half: WorkerHalf | None = None
        self.failed_blocks: set[int] = set()

    def register(self, kv_caches: dict[str, Any]) -> None:
        from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

        import moontide

        layout, self._memory = describe_cache(
            self._vllm_config, self._kv_cache_config, kv_caches, get_tensor_model_parallel_rank()
        )
        engine = moontide.Engine(self._settings.listen, config=self._config)
        for name, extent in self._memory.ranges.items():
            engine.register(extent, name=name, readable=True, writable=False)
        embedded = self._settings.master is None

        def connect() -> StorePort:
            lend = self._settings.cache_bytes if embedded else 0
            store: StorePort = moontide.Store(self._settings.master, lend=lend, engine=engine, config=self._config)
            return store

        use_pool = self._settings.pool and not (embedded and self._settings.cache_bytes == 0)
        self._layout, self._engine = layout, engine
        self.half = WorkerHalf(
            engine,
            layout,
            self._memory.bases,
            _key_space(layout),
            self._settings,
            self._stats,
            connect=connect if use_pool else None,
            embedded=embedded,
        )
        logger.info(
            "Moontide: worker listens on %s, %d layers, %d blocks of %d bytes, %s",
            *(engine.address, len(layout.layers), layout.num_blocks, layout.block_bytes, layout.physical),
        )

    def handshake(self) -> MoontideHandshake | None:
        if self._engine is None or self._layout is None:
            return None
        return MoontideHandshake(self._engine.address, encode_layout(self._layout))

    def poll(self) -> Finished:
        finished = self.half.poll() if self.half is not None else Finished()
        self.failed_blocks |= finished.failed_blocks
        return finished

    def close(self) -> None:
        half, self.half = self.half, None
        engine, self._engine = self._engine, None
        if half is not None:
            half.close()
        if engine is not None:
            engine.close()


class _SchedulerSide:
    def __init__(self, vllm_config: Any, settings: KvSettings, config: Config, stats: Stats) -> None:
        self._transfer = vllm_config.kv_transfer_config
        self._settings = settings
        self._config = config
        self._stats = stats
        self._door: PoolDoor | None = None
        self.index: KeyIndex | None = None
        self.half: SchedulerHalf | None = None
        self.block_tokens = 1

    def connect(self, workers: dict[int, MoontideHandshake]) -> None:
        """All workers are up. Their layouts say what a block is."""
        layouts = [decode_layout(workers[rank].layout) for rank in sorted(workers)]
        space = _key_space(layouts[0])
        for rank, layout in enumerate(layouts):
            if _key_space(layout) != space or layout.rank.tp_rank != rank:
                raise Incompatible(f"the cache of TP rank {rank} differs from that of rank 0: {layout} {layouts[0]}")
        self.block_tokens = space.block_tokens
        self.half = SchedulerHalf(
            space,
            self._stats,
            finder=self._finder(space),
            may_produce=self._transfer.is_kv_producer,
            may_consume=self._transfer.is_kv_consumer,
            max_held_blocks=int(self._settings.max_held_share * layouts[0].num_blocks),
        )
        self.half.addresses = tuple(workers[rank].address for rank in sorted(workers))

    def _finder(self, space: KeySpace) -> Lookup | KeyIndex | None:
        settings, master = self._settings, self._settings.master
        if not settings.pool or (master is None and settings.cache_bytes == 0):
            logger.info("Moontide: hands KV cache over between peers; no pool")
            return None
        if master is None:
            logger.info(
                "Moontide: hands KV cache over between peers; no master is set (MOONTIDE_MASTER), so each worker keeps "
                "an embedded cache of %d MiB that ends with it",
                settings.cache_bytes >> 20,
            )
            self.index = KeyIndex(space.tp_size)
            return self.index
        logger.info("Moontide: hands KV cache over between peers; reuses blocks of the pool at %s", master)
        if self._transfer.kv_load_failure_policy == "fail":
            logger.warning(
                "Moontide: a block that leaves the pool between lookup and load fails its request; set "
                '"kv_load_failure_policy": "recompute" in --kv-transfer-config to compute it instead'
            )

        def open_store() -> StorePort:
            import moontide

            store: StorePort = moontide.Store(master, config=self._config)
            return store

        self._door = PoolDoor(open_store, Crew("moontide-pool", 1, 4))
        self._door.store()
        return Lookup(self._door, space, settings, self._stats)

    def close(self) -> None:
        if self._door is not None:
            self._door.close()


class MoontideConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Hands KV cache over from prefill to decode engines and reuses it through the pool.

    Claims no hybrid memory allocator: vLLM then keeps one group of blocks, for which a failed load can be reported
    block by block in all versions.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self_check()
        check_supported(vllm_config)
        config = load_config()
        settings = KvSettings.resolve(vllm_config.kv_transfer_config.kv_connector_extra_config, config)
        self._stats = Stats()
        self._worker: _WorkerSide | None = None
        self._scheduler: _SchedulerSide | None = None
        if role == KVConnectorRole.WORKER:
            self._worker = _WorkerSide(vllm_config, kv_cache_config, settings, config, self._stats)
        else:
            self._scheduler = _SchedulerSide(vllm_config, settings, config, self._stats)

    # -- worker ------------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        if self._worker is not None:
            self._worker.register(kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return self._worker.handshake() if self._worker is not None else None

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Comes before a step touches any block, so it is where saves are waited for and holds are made."""
        if self._worker is not None and self._worker.half is not None:
            self._worker.half.before_forward(kv_connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._worker is not None and self._worker.half is not None and self.has_connector_metadata():
            self._worker.half.start_loads(self._get_connector_metadata().plan)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads end before their request is scheduled: nothing to wait for."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are saved whole, after the forward pass."""

    def wait_for_save(self) -> None:
        if self._worker is not None and self._worker.half is not None and self.has_connector_metadata():
            self._worker.half.after_forward(self._get_connector_metadata().plan)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        if self._worker is None:
            return None, None
        finished = self._worker.poll()
        return finished.sent or None, finished.received or None

    if hasattr(base, "KVConnectorTransferResults"):

        def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
            finished = self._worker.poll() if self._worker is not None else Finished()
            # Failures are named block by block, not by request: there is one group, and blocks that did arrive count.
            return base.KVConnectorTransferResults(finished_sending=finished.sent, finished_recving=finished.received)

    def get_block_ids_with_load_errors(self) -> set[int]:
        if self._worker is None:
            return set()
        failed, self._worker.failed_blocks = self._worker.failed_blocks, set()
        return failed

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        if self._worker is None or self._worker.half is None:
            return None
        report = self._worker.half.report()
        return MoontideWorkerMetadata(report) if report is not None else None

    # -- scheduler ---------------------------------------------------------------------------------------------------

    def set_xfer_handshake_metadata(self, metadata: dict[int, KVConnectorHandshakeMetadata]) -> None:
        if self._scheduler is None:
            return
        if not all(isinstance(one, MoontideHandshake) for one in metadata.values()):
            # vLLM's MultiConnector hands each child what its first child said.
            logger.error("Moontide: got another connector's handshake and stays off; make it the first of its siblings")
            return
        self._scheduler.connect(metadata)

    def on_new_request(self, request: Any) -> None:
        half = self._half()
        if half is not None and self._scheduler is not None:
            half.arrived(view_request(request, self._scheduler.block_tokens))

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        half = self._half()
        count = half.match(request.request_id, num_computed_tokens) if half is not None else 0
        return count, count > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        half = self._half()
        if half is not None:
            half.allocated(request.request_id, blocks.get_block_ids()[0], num_external_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        return (0,)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        if num_external_tokens == 0:
            return {}
        from vllm.v1.metrics.cache_hit_source import CacheHitSource

        half = self._half()
        source = half.source_of(request.request_id) if half is not None else ""
        tiers = {"peer": CacheHitSource.P2P, "pool": CacheHitSource.HOST}
        return {tiers.get(source, CacheHitSource.EXTERNAL_UNSPECIFIED): num_external_tokens}

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        half = self._half()
        if half is None or self._scheduler is None:
            return MoontideMetadata(StepPlan())
        return MoontideMetadata(half.build(scheduled_requests(scheduler_output, self._scheduler.block_tokens)))

    def update_connector_output(self, connector_output: Any) -> None:
        half = self._half()
        metadata = connector_output.kv_connector_worker_meta
        if half is not None:
            half.sent(connector_output.finished_sending or ())
        if half is not None and isinstance(metadata, MoontideWorkerMetadata):
            half.reported(metadata.report)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        from vllm.v1.request import RequestStatus

        half = self._half()
        if half is None:
            return False, None
        complete = request.status in (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)
        return half.finished(
            request.request_id, complete=complete, table=block_ids, computed=request.num_computed_tokens
        )

    def take_events(self) -> Iterable[Any]:
        return ()

    def has_pending_push_work(self) -> bool:
        half = self._half()
        return half is not None and half.has_jobs

    def reset_cache(self) -> bool | None:
        """The embedded cache is forgotten; a pool is shared with others and is not ours to empty."""
        if self._scheduler is None or self._scheduler.index is None:
            return None
        self._scheduler.index.clear()
        return True

    # -- both --------------------------------------------------------------------------------------------------------

    def _half(self) -> SchedulerHalf | None:
        return self._scheduler.half if self._scheduler is not None else None

    def get_kv_connector_stats(self) -> MoontideStats | None:
        data = self._stats.drain()
        return MoontideStats(data=data) if data else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> MoontideStats:
        return MoontideStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[type[Any], type[Any]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> MoontidePromMetrics:
        return MoontidePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Orderly ends are a courtesy: peers and nodes see a death by themselves."""
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()
