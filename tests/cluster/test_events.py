"""Events of a real master, followed over ZeroMQ while objects come and go and processes restart."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import moontide
from moontide.events import EventIndex
from support.pool_process import Server, free_port
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CONFIG = moontide.load_config({}, environ={})


@pytest.fixture
def master() -> Iterator[Server]:
    ports = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    server = Server("master", "--listen", ports[0], "--events-listen", ports[1], "--events-replay-listen", ports[2])
    yield server
    server.close()


@pytest.fixture
def node(master: Server) -> Iterator[Server]:
    server = Server("node", "--master", master.address, "--lend", "8MiB")
    yield server
    server.close()


@pytest.fixture
def index(master: Server) -> Iterator[EventIndex]:
    found = re.search(r"events at (\S+) and (\S+)", master.line)
    assert found is not None, master.line
    with EventIndex(found[1], found[2]) as index:
        yield index


def same(index: EventIndex, store: moontide.Store) -> bool:
    index.poll(0.05)
    return index.whole and index.objects == {info.key: info.length for info in store.list()}


def test_an_index_is_what_the_pool_has(master: Server, node: Server, index: EventIndex) -> None:
    with moontide.Store(master.address, config=CONFIG) as store:
        wait_for(lambda: store.stats()["nodes_ready"] == 1, what="the node")
        store.put_many([(f"key {number}", bytes(number)) for number in range(300)])
        store.remove_many([f"key {number}" for number in range(0, 300, 7)])
        wait_for(lambda: same(index, store) and len(index.objects) > 200, what="puts and removes")
        store.put("brief", b"x", ttl=0.05)
        wait_for(lambda: not store.exists("brief") and same(index, store), what="the end of a ttl")
        for number in range(30):  # evicts
            store.put(f"large {number}", bytes(1 << 20))
        wait_for(lambda: same(index, store), what="evictions")
        assert not all(store.exists_many([f"large {number}" for number in range(30)]))


def test_restarts_of_master_and_node(master: Server, node: Server, index: EventIndex) -> None:
    with moontide.Store(master.address, config=CONFIG) as store:
        wait_for(lambda: store.stats()["nodes_ready"] == 1, what="the node")
        store.put_many([(f"key {number}", bytes(number)) for number in range(300)])
        wait_for(lambda: same(index, store) and len(index.objects) == 300, what="puts")
        master.restart()
        wait_for(lambda: _listed(store) == 300, 30, "the facts coming back")
        wait_for(lambda: same(index, store), 20, "the index after the master's restart")
        assert len(index.objects) == 300
        node.restart()
        wait_for(lambda: _listed(store) == 0, 30, "the node's objects being given up")
        wait_for(lambda: same(index, store), 20, "the index after the node's restart")
        assert index.objects == {}


def _listed(store: moontide.Store) -> int:
    try:
        return len(store.list())
    except moontide.errors.MoontideError:
        return -1


def test_without_the_option_nothing_is_published() -> None:
    server = Server("master", "--listen", "127.0.0.1:0")
    assert "events" not in server.line
    server.close()
