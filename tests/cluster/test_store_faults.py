"""The pool when its processes are killed, stopped and started again: exact bytes or a miss, and it goes on."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

import moontide
from moontide import errors
from support.pool_process import Pool, Server, StoreProcess, content
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CONFIG = moontide.load_config({}, environ={})
SIZE = 300_000


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(nodes=2) as pool:
        yield pool


@pytest.fixture
def store(pool: Pool) -> Iterator[moontide.Store]:
    with moontide.Store(pool.address, config=CONFIG) as store:
        wait_for(lambda: store.stats()["nodes_ready"] == 2, 10, "both nodes")
        yield store


def works(store: moontide.Store, key: str) -> bool:
    """A put and a get of a new key; while the pool stands up again either may fail with an error of the tree."""
    try:
        store.put(key, content(key, 0, SIZE))
        value = store.get(key)
    except errors.MoontideError:
        return False
    assert value == content(key, 0, SIZE)
    return True


def exact_or_missing(store: moontide.Store, keys: list[str]) -> int:
    """How many are there; every one that is has the bytes of its put."""
    found = store.get_many(keys)
    there = 0
    for key, value in zip(keys, found, strict=True):
        if isinstance(value, bytes):
            assert value == content(key, 0, SIZE), f"{key} has bytes that nobody put"
            there += 1
    return there


def fill(store: moontide.Store, count: int = 20) -> list[str]:
    keys = [f"object {number}" for number in range(count)]
    assert store.put_many([(key, content(key, 0, SIZE)) for key in keys]) == [None] * count
    return keys


def test_a_master_that_restarts_gets_its_facts_back(pool: Pool, store: moontide.Store) -> None:
    keys = fill(store)
    store.remove(keys[0])
    term = store.stats()["term"]
    pool.master.restart()
    wait_for(lambda: _stats(store).get("nodes_ready") == 2, 30, "the nodes joining again")
    assert store.stats()["term"] > term
    assert exact_or_missing(store, keys[1:]) == len(keys) - 1, "nothing committed is lost"
    assert not store.exists(keys[0]), "nothing removed comes back"
    with moontide.Store(pool.address, config=CONFIG) as fresh:
        assert exact_or_missing(fresh, keys[1:]) == len(keys) - 1
        assert len(fresh.list("object")) == len(keys) - 1
    assert wait_for(lambda: works(store, f"after {os.urandom(4).hex()}"), 30)


def _stats(store: moontide.Store) -> dict[str, int]:
    try:
        return store.stats()
    except errors.MoontideError:
        return {}


def test_a_killed_node_takes_its_objects_and_no_others(pool: Pool, store: moontide.Store) -> None:
    keys = fill(store)
    pool.nodes[0].kill()
    assert wait_for(lambda: works(store, f"meanwhile {os.urandom(4).hex()}"), 30)
    there = wait_for(lambda: exact_or_missing(store, keys), 30)
    assert 0 < there < len(keys)
    pool.nodes[0] = pool.add_node()
    wait_for(lambda: store.stats()["nodes_ready"] == 2, 20, "the new node")
    # a node that is away may only have lost its line to the master: its objects are given up after a grace time
    wait_for(lambda: sum(store.exists_many(keys)) == there, 30, "exists and get agreeing")
    lost = [key for key in keys if not store.exists(key)]
    assert store.put_many([(key, content(key, 0, SIZE)) for key in lost]) == [None] * len(lost)
    assert exact_or_missing(store, keys) == len(keys)


def test_a_node_that_was_drained_is_killed_and_nobody_notices(pool: Pool, store: moontide.Store) -> None:
    keys = fill(store)
    twice = [f"twice {number}" for number in range(5)]
    store.put_many([(key, content(key, 0, SIZE)) for key in twice], replicas=2)
    (drained,) = {place.node for place in store.stat(keys[0]).places}
    assert store.drain(drained).objects > 0
    wait_for(lambda: _put_and_read(store) and store.drain(drained) == (0, 0), 30, "the node being empty")
    assert store.stats()["nodes_draining"] == 1
    places = [place.node for key in keys + twice for place in store.stat(key).places]
    assert drained not in places
    victim = next(server for server in pool.nodes if _node_of(server, store, drained, places))
    victim.kill()
    assert exact_or_missing(store, keys) == len(keys), "nothing lay on the node that died"
    assert exact_or_missing(store, twice) == len(twice)
    with moontide.Store(pool.address, config=CONFIG) as fresh:
        assert exact_or_missing(fresh, keys + twice) == len(keys + twice)
    with pytest.raises(errors.NotFound):
        store.drain("0" * 32)


def _put_and_read(store: moontide.Store) -> bool:
    key = f"meanwhile {os.urandom(4).hex()}"
    store.put(key, content(key, 0, 1000))
    assert store.get(key) == content(key, 0, 1000)
    return True


def _node_of(server: Server, store: moontide.Store, drained: str, living: list[str]) -> bool:
    """Whether the server is the node that was drained: the engines' addresses of the others are known."""
    others = {place.address for info in store.list() for place in store.stat(info.key).places}
    return server.address not in others


def test_a_drain_that_is_canceled_leaves_a_node_like_any_other(pool: Pool, store: moontide.Store) -> None:
    keys = fill(store)
    (drained,) = {place.node for place in store.stat(keys[0]).places}
    store.drain(drained)
    store.drain(drained, cancel=True)
    assert store.stats()["nodes_draining"] == 0
    assert exact_or_missing(store, keys) == len(keys)
    more = [f"more {number}" for number in range(20)]
    store.put_many([(key, content(key, 0, SIZE)) for key in more])
    assert drained in {place.node for key in more for place in store.stat(key).places}
    # A target that dies in the middle takes what it has, and the rest goes on.
    store.drain(drained)
    wait_for(lambda: store.stats()["repairs"] > 0, 20, "the first object having gone")
    wait_for(lambda: store.drain(drained).objects == 0, 30, "the node being empty")
    store.drain(drained, cancel=True)
    assert exact_or_missing(store, keys + more) == len(keys + more)


def test_everything_killed_and_started_again(pool: Pool, store: moontide.Store) -> None:
    keys = fill(store)
    for server in (pool.nodes[0], pool.master, pool.nodes[1]):
        server.restart()
    wait_for(lambda: _stats(store).get("nodes_ready") == 2, 30, "the pool standing again")
    assert exact_or_missing(store, keys) == 0, "memory of processes that died is gone"
    assert wait_for(lambda: works(store, f"after {os.urandom(4).hex()}"), 30)


@pytest.mark.parametrize("who", ["master", "node", "both nodes"])
def test_a_stopped_process_costs_time_or_a_miss_never_bytes(pool: Pool, store: moontide.Store, who: str) -> None:
    keys = fill(store)
    stopped = {"master": [pool.master], "node": pool.nodes[:1], "both nodes": pool.nodes}[who]
    for server in stopped:
        server.stop()
    with StoreProcess(pool.address) if who != "master" else StoreProcessAbsent() as other:
        other.send("put_many", prefix="during ", count=5, version=0, size=SIZE)
        exact_or_missing(store, keys)
        for server in stopped:
            server.go_on()
        outcomes = other.receive()
        assert len(outcomes) == 5
    wait_for(lambda: _stats(store).get("nodes_ready") == 2, 60, "the pool standing again")
    assert wait_for(lambda: works(store, f"after {os.urandom(4).hex()}"), 60)
    exact_or_missing(store, keys)
    exact_or_missing(store, [f"during {number}" for number in range(5)])


class StoreProcessAbsent:
    """No second client: a new one could not even greet a stopped master."""

    def __enter__(self) -> StoreProcessAbsent:
        return self

    def __exit__(self, *_: object) -> None: ...

    def send(self, command: str, **arguments: object) -> None: ...

    def receive(self) -> list[str]:
        return [""] * 5


def test_a_putter_killed_in_mid_put_costs_its_own_put(pool: Pool, store: moontide.Store) -> None:
    for turn in range(5):
        with StoreProcess(pool.address) as putter:
            putter.send("put_many", prefix=f"turn {turn} ", count=40, version=0, size=SIZE)
            if turn % 2:
                wait_for(lambda turn=turn: store.exists(f"turn {turn} 0"), 10)
            putter.kill()
        exact_or_missing(store, [f"turn {turn} {number}" for number in range(40)])
        for key in (f"turn {turn} {number}" for number in range(40)):
            if store.exists(key):
                store.remove(key)
    assert wait_for(lambda: works(store, f"after {os.urandom(4).hex()}"), 30)
    wait_for(lambda: store.stats()["unfinished_bytes"] == 0, 60, "unfinished puts given up")


def test_a_stopped_putter_finds_its_put_ended_or_done(pool: Pool, store: moontide.Store) -> None:
    with StoreProcess(pool.address) as putter:
        assert putter.ask("put", key="first", version=0, size=SIZE) == "ok"
        putter.send("put_many", prefix="stopped ", count=60, version=0, size=SIZE)
        wait_for(lambda: store.exists("stopped 0"), 10)
        putter.stop()
        assert wait_for(lambda: works(store, f"beside it {os.urandom(4).hex()}"), 30)
        present = exact_or_missing(store, [f"stopped {number}" for number in range(60)])
        putter.go_on()
        outcomes = putter.receive()
        assert len(outcomes) == 60
        assert outcomes.count("ok") >= present
    exact_or_missing(store, [f"stopped {number}" for number in range(60)])


def test_a_stopped_getter_gets_exact_bytes_or_a_miss_though_the_pool_churns(pool: Pool, store: moontide.Store) -> None:
    store.put("hot", content("hot", 0, SIZE))
    with StoreProcess(pool.address) as getter:
        getter.send("get_loop", key="hot", versions=4, size=SIZE, count=2000)
        for version in range(1, 4):
            getter.stop()
            store.remove("hot")
            for number in range(250):  # more than both nodes hold: every byte of the arenas is used again
                store.put(f"churn {version} {number}", content("churn", number, SIZE))
            store.put("hot", content("hot", version, SIZE))
            getter.go_on()
        seen = getter.receive()
    assert "wrong" not in seen, seen
    assert sum(seen.values()) == 2000
    assert set(seen) <= {"0", "1", "2", "3", "NOT_FOUND", "TIMED_OUT", "UNAVAILABLE"}


@pytest.mark.parametrize("port", ["master", "node"])
def test_garbage_on_a_port_hurts_nobody(pool: Pool, store: moontide.Store, port: str) -> None:
    server = pool.master if port == "master" else pool.nodes[0]
    host, number = server.address.rsplit(":", 1)
    for garbage in (os.urandom(65536), b"GET / HTTP/1.1\r\n\r\n", b"MTM1" + b"\xff" * 60, b""):
        with socket.create_connection((host, int(number)), timeout=5) as connection:
            connection.sendall(garbage)
            assert wait_for(lambda: works(store, f"beside {os.urandom(4).hex()}"), 30)
    assert server.process.poll() is None
