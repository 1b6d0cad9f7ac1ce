"""Reuse through the pool with a fake store: hits, failures that cost a miss, and memory that is not given away."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from fakes.kv import Fabric, FakeStore, FakeTransfer
from fakes.kv_node import BLOCKS, PROMPT, SIZE, TABLE, Node, until
from moontide.errors import Internal, NoSpace, TimedOut, Unavailable
from moontide.kv.crew import Crew
from moontide.kv.keys import Span
from moontide.kv.pool import PoolDoor
from moontide.kv.scheduling import RequestView, ScheduledRequest

FULL = len(PROMPT) // SIZE


@pytest.fixture
def fabric() -> Fabric:
    return Fabric()


def run(node: Node, request_id: str, prompt: list[int], table: list[int], **options: Any) -> int:
    loaded = node.prefill(request_id, prompt, table, **options)
    node.finish(request_id, prompt, table)
    node.step()
    return loaded


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 5, 100])
def test_what_one_request_computed_the_next_one_loads(fabric: Fabric, embedded: bool, chunk: int) -> None:
    node = Node(fabric, "a:1", FakeStore(), embedded=embedded)
    assert run(node, "1", PROMPT, TABLE, chunk=chunk) == 0
    first = node.content(TABLE, FULL * SIZE)
    node.cache[:] = -1
    table = [5, 6, 7, 8]
    assert run(node, "2", PROMPT, table, chunk=chunk) == FULL * SIZE
    assert node.content(table, FULL * SIZE) == first
    assert node.counts()["blocks|load|pool"] == FULL


def test_a_restarted_engine_finds_what_the_one_before_saved(fabric: Fabric) -> None:
    objects: dict[bytes, bytes] = {}
    assert run(Node(fabric, "a:1", FakeStore(objects)), "1", PROMPT, TABLE) == 0
    assert len(objects) == FULL
    assert run(Node(fabric, "a:2", FakeStore(objects)), "1", PROMPT, TABLE) == FULL * SIZE


def test_one_token_is_always_left_to_compute(fabric: Fabric) -> None:
    node = Node(fabric, "a:1", FakeStore())
    prompt = PROMPT[: 2 * SIZE]
    run(node, "1", prompt, TABLE)
    assert run(node, "2", prompt, TABLE) == SIZE


def test_only_the_shared_prefix_is_loaded_and_only_the_rest_is_saved(fabric: Fabric) -> None:
    store = FakeStore()
    node = Node(fabric, "a:1", store)
    run(node, "1", PROMPT, TABLE)
    other = [*PROMPT[: 2 * SIZE], 1, 2, 3, 4, 5]
    store.calls.clear()
    assert run(node, "2", other, [11, 12, 13, 14]) == 2 * SIZE
    assert [call for call in store.calls if call[0] == "put"] == [("put", 1)]
    assert len(store.objects) == FULL + 1


def test_a_salt_or_an_adapter_shares_nothing(fabric: Fabric) -> None:
    node = Node(fabric, "a:1", FakeStore())
    run(node, "1", PROMPT, TABLE)
    node.scheduler.arrived(RequestView("2", PROMPT, [Span("salt", "x")]))
    assert node.scheduler.match("2", 0) == 0
    node.scheduler.arrived(RequestView("3", PROMPT, bypass="inexpressible"))
    assert node.scheduler.match("3", 0) == 0
    assert node.counts()["bypassed|inexpressible"] == 1


def test_local_blocks_are_not_loaded_again(fabric: Fabric) -> None:
    node = Node(fabric, "a:1", FakeStore())
    run(node, "1", PROMPT, TABLE)
    node.scheduler.arrived(RequestView("2", PROMPT))
    assert [node.scheduler.match("2", local) for local in (0, 4, 8, 12)] == [12, 8, 4, 0]
    node.scheduler.allocated("2", [1, 12, 13, 14], node.scheduler.match("2", 4))
    before = node.cache[:, 1].copy()
    assert not node.load("2").failed
    assert np.array_equal(node.cache[:, 1], before)
    assert node.content([TABLE[1], TABLE[2]], 8) == node.content([12, 13], 8)


def test_blocks_evicted_after_the_lookup_are_named_and_not_asked_for_again(fabric: Fabric) -> None:
    store = FakeStore()
    node = Node(fabric, "a:1", store)
    run(node, "1", PROMPT, TABLE)
    node.scheduler.arrived(RequestView("2", PROMPT))
    node.scheduler.allocated("2", [5, 6, 7, 8], node.scheduler.match("2", 0))
    del store.objects[list(store.objects)[1]]
    finished = node.load("2")
    assert finished.failed == {"2": "NOT_FOUND"} and finished.failed_blocks == {6}
    assert node.scheduler.match("2", 0) == 0
    # Another request takes the hit that is still there.
    node.scheduler.arrived(RequestView("3", PROMPT))
    assert node.scheduler.match("3", 0) == SIZE


def test_the_embedded_index_forgets_what_turned_out_to_be_missing(fabric: Fabric) -> None:
    store = FakeStore()
    node = Node(fabric, "a:1", store, embedded=True)
    run(node, "1", PROMPT, TABLE)
    store.objects.clear()
    node.scheduler.arrived(RequestView("2", PROMPT))
    node.scheduler.allocated("2", [5, 6, 7, 8], node.scheduler.match("2", 0))
    assert node.load("2").failed_blocks == {5, 6, 7}
    node.scheduler.arrived(RequestView("3", PROMPT))
    assert node.scheduler.match("3", 0) == 0


def test_after_a_peers_failure_the_pool_is_asked_once(fabric: Fabric) -> None:
    store = FakeStore()
    prefill, decode = Node(fabric, "p:1", store), Node(fabric, "d:1", store)
    prefill.prefill("p", PROMPT, TABLE, params={"do_remote_decode": True})
    _, params = prefill.finish("p", PROMPT, TABLE)
    prefill.engine.close()
    decode.scheduler.arrived(RequestView("d", PROMPT, params=params))
    assert decode.scheduler.match("d", 0) == len(PROMPT)
    decode.scheduler.allocated("d", [1, 2, 3, 4], len(PROMPT))
    assert decode.load("d").failed == {"d": "UNAVAILABLE"}
    assert decode.scheduler.match("d", 0) == FULL * SIZE
    decode.scheduler.allocated("d", [1, 2, 3, 4], FULL * SIZE)
    assert decode.load("d").failed == {}


def test_a_pool_that_is_away_costs_a_miss_and_is_left_alone_for_a_while(fabric: Fabric) -> None:
    store = FakeStore()
    node = Node(fabric, "a:1", store)
    run(node, "1", PROMPT, TABLE)
    store.down = True
    store.calls.clear()
    for name in "2345":
        assert run(node, name, PROMPT, TABLE) == 0
    assert len([call for call in store.calls if call[0] == "exists"]) == 1
    counts = node.counts()
    assert counts["lookups|UNAVAILABLE"] == 1 and counts["lookups|away"] == 3


def test_a_lookup_that_hangs_ends_at_its_deadline(fabric: Fabric) -> None:
    store = FakeStore()
    node = Node(fabric, "a:1", store)
    run(node, "1", PROMPT, TABLE)
    release = threading.Event()
    store.before_exists = release.wait  # type: ignore[assignment]
    node.scheduler.arrived(RequestView("2", PROMPT))
    assert node.scheduler.match("2", 0) == 0
    assert node.counts()["lookups|late"] == 1
    release.set()


def test_the_door_opens_again_after_its_pause() -> None:
    now = [0.0]
    answers: list[Exception | FakeStore] = [Unavailable("down"), Internal("odd"), FakeStore()]
    tried = []

    def connect() -> Any:
        tried.append(now[0])
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    crew = Crew("door", 1, 4)
    door = PoolDoor(connect, crew, clock=lambda: now[0])
    assert door.store() is None
    until(lambda: len(tried) == 1 and door._shut_until == 0.5)
    now[0] = 0.4
    assert door.store() is None and len(tried) == 1
    now[0] = 0.6
    assert door.store() is None
    # A failure that says nothing about the pool's health does not shut the door: it is tried at once.
    until(lambda: door.store() is not None)
    door.failed(TimedOut("slow"))
    assert door.store() is None
    now[0] = 5.0
    assert door.store() is not None
    door.close()
    assert door.store() is None


def test_saves_beyond_the_bound_are_dropped_and_counted(fabric: Fabric) -> None:
    store = FakeStore()
    store.gate = lambda transfer: None
    node = Node(fabric, "a:1", store, settings={"max_save_blocks": 2})
    run(node, "1", PROMPT, TABLE, chunk=SIZE)
    assert node.counts()["saves|busy"] == 1 and len(store.objects) == 2


def test_the_path_is_told_by_what_the_engine_read(fabric: Fabric) -> None:
    store = FakeStore()
    node = Node(fabric, "a:1", store)
    run(node, "1", PROMPT, TABLE)
    get = store.get_parts

    def reads(*paths: str) -> Any:
        def get_parts(keys: Any, parts: Any) -> FakeTransfer:
            for path in paths:
                fabric.path_bytes[f"bytes_{path}"] = fabric.path_bytes.get(f"bytes_{path}", 0) + 1
            return get(keys, parts)

        return get_parts

    for name, paths, told in (("2", ("shm",), "shm"), ("3", ("tcp", "shm"), "shm+tcp"), ("4", (), "unknown")):
        store.get_parts = reads(*paths)  # type: ignore[method-assign]
        node.counts()
        run(node, name, PROMPT, [5, 6, 7, 8])
        assert f"bytes|load|pool|{told}" in node.counts()


def test_a_full_pool_is_counted_not_raised(fabric: Fabric) -> None:
    store = FakeStore()

    def gate(transfer: FakeTransfer) -> None:
        transfer.results = [NoSpace("full")] * len(transfer.results)
        transfer.open_gates()

    store.gate = gate
    node = Node(fabric, "a:1", store)
    run(node, "1", PROMPT, TABLE)
    assert node.counts()["saves|NO_SPACE"] == FULL


class Slow:
    """Puts that stay unquiet until told otherwise."""

    def __init__(self, store: FakeStore) -> None:
        self.transfers: list[FakeTransfer] = []
        store.gate = self.transfers.append


@pytest.mark.parametrize("use", ["forward", "load"])
def test_blocks_are_not_overwritten_while_a_save_reads_them(fabric: Fabric, use: str) -> None:
    store = FakeStore()
    node = Node(fabric, "a:1", store, settings={"fence_timeout": 5.0})
    run(node, "0", [1] * 5, [30, 31])
    slow = Slow(store)
    # Preempted or finished or aborted: whatever freed the blocks, another request gets them.
    run(node, "1", PROMPT, TABLE)
    assert len(slow.transfers) == 1
    order: list[str] = []

    def settle() -> None:
        order.append("settled")
        slow.transfers[0].open_gates()

    threading.Timer(0.1, settle).start()
    if use == "forward":
        prompt = [3] * 6
        node.scheduler.arrived(RequestView("2", prompt))
        node.step(
            ScheduledRequest("2", 0, 6, lambda: [TABLE[1], 25], [TABLE[1], 25]), forward=lambda: order.append("written")
        )
    else:
        node.scheduler.arrived(RequestView("2", [1] * 5))
        assert node.scheduler.match("2", 0) == 4
        node.scheduler.allocated("2", [TABLE[1], 25], 4)
        assert not node.load("2").failed
        order.append("written")
    assert order == ["settled", "written"]
    assert node.counts()["fence_waits"] == 1


def test_other_blocks_do_not_wait(fabric: Fabric) -> None:
    store = FakeStore()
    node = Node(fabric, "a:1", store)
    slow = Slow(store)
    run(node, "1", PROMPT, TABLE)
    others = [block for block in range(BLOCKS) if block not in TABLE]
    node.scheduler.arrived(RequestView("2", [3] * 6))
    node.step(ScheduledRequest("2", 0, 6, lambda: others, others[:2]))
    assert "fence_waits" not in node.counts() and not slow.transfers[0].done


def test_a_save_that_never_ends_is_cancelled_and_the_step_goes_on(fabric: Fabric) -> None:
    store = FakeStore()
    node = Node(fabric, "a:1", store)
    slow = Slow(store)
    run(node, "1", PROMPT, TABLE)
    node.scheduler.arrived(RequestView("2", [3] * 6))
    node.step(ScheduledRequest("2", 0, 6, lambda: TABLE, TABLE[:2]))
    counts = node.counts()
    assert slow.transfers[0].canceled and counts["fence_abandoned"] == 1
    # The pool that did this is left alone, and nobody waits for the same save again.
    node.step(ScheduledRequest("2", 0, 6, lambda: TABLE, TABLE[:2]))
    assert "fence_waits" not in node.counts() and node.worker._door.store() is None  # type: ignore[union-attr]


def test_an_unread_request_of_a_preempted_run_is_saved_once(fabric: Fabric) -> None:
    store = FakeStore()
    node = Node(fabric, "a:1", store)
    node.scheduler.arrived(RequestView("1", PROMPT))
    node.compute(PROMPT, TABLE, 0, 8)
    node.step(ScheduledRequest("1", 0, 8, lambda: TABLE))
    # Preempted, resumed with another table, which replaces the first.
    other = [21, 22, 23, 24]
    node.compute(PROMPT, other, 0, len(PROMPT))
    node.step(ScheduledRequest("1", 0, len(PROMPT), lambda: other))
    assert sum(count for call, count in store.calls if call == "put") == FULL
    third = store.objects[node.space.key(node.scheduler._requests["1"].chain.blocks(FULL)[-1], 0)]  # type: ignore[union-attr]
    assert third == node.cache[:, other[2]].tobytes()
