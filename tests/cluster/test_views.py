"""Views: an object's bytes where they lie. What is looked at stays, whoever removes, restarts, stops or dies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

import moontide
from moontide import errors
from support.pool_process import Pool, Server, StoreProcess, content
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

CONFIG = moontide.load_config({}, environ={})
SIZE = 1 << 20


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(nodes=1, lend="16MiB") as pool:
        yield pool


@pytest.fixture(params=["embedded", "pool"])
def store(request: pytest.FixtureRequest, pool: Pool) -> Iterator[moontide.Store]:
    master = pool.address if request.param == "pool" else None
    with moontide.Store(master, lend=0 if master else 16 << 20, config=CONFIG) as store:
        yield store


@pytest.fixture
def client(pool: Pool) -> Iterator[moontide.Store]:
    with moontide.Store(pool.address, config=CONFIG) as store:
        yield store


def churn(store: moontide.Store, count: int = 40) -> None:
    """Uses every byte of the segment that may be used, more than once."""
    for number in range(count):
        store.remove_many([f"churn {number}"])
        store.put(f"churn {number}", content(f"churn {number}", 0, SIZE))


def held(store: moontide.Store) -> int:
    return store.stats()["held_bytes"]


@pytest.mark.parametrize("size", [0, 1, 4097, SIZE])
def test_a_view_has_the_bytes_and_copies_none(store: moontide.Store, size: int) -> None:
    value = content("value", 0, size)
    store.put("value", value)
    with store.view("value") as view:
        assert view.in_place
        assert (view.key, len(view), bytes(view.data)) == (b"value", size, value)
        assert view.data.readonly
        with pytest.raises(TypeError):
            view.data[:] = bytes(size)
        again = store.view("value")
        assert np.array_equal(np.frombuffer(again.data, np.uint8), np.frombuffer(value, np.uint8))
        again.close()
    assert view.closed
    with pytest.raises(errors.Closed):
        _ = view.data
    assert store.counters()["views"] == 2
    assert store.counters()["gets"] == 0


def test_misses_and_bad_keys(store: moontide.Store) -> None:
    store.put("there", b"x")
    found = store.view_many(["absent", "there"])
    assert isinstance(found[0], errors.NotFound)
    assert isinstance(found[1], moontide.View)
    found[1].close()
    assert store.view_many([]) == []
    with pytest.raises(errors.NotFound):
        store.view("absent")
    with pytest.raises(errors.Invalid):
        store.view("")


def test_an_array_keeps_the_memory_of_its_view(store: moontide.Store) -> None:
    store.put("a", content("a", 0, SIZE))
    view = store.view("a")
    array = np.frombuffer(view.data, np.uint8)
    words = np.asarray(view.data[:8])
    view.close()
    view.close()
    store.remove("a")
    churn(store)
    assert array.tobytes() == content("a", 0, SIZE)
    assert words.tobytes() == content("a", 0, SIZE)[:8]
    assert held(store) > SIZE
    del array, words
    wait_for(lambda: held(store) == 0, what="the space coming free")


def test_what_is_looked_at_outlives_its_object(store: moontide.Store) -> None:
    """Removed and put anew, and all other space used: the bytes are those that were there. Then they come free."""
    store.put("a", content("a", 0, SIZE))
    first = store.view("a")
    second = store.view("a")
    store.remove("a")
    with pytest.raises(errors.NotFound):
        store.view("a")
    wait_for(lambda: held(store) > SIZE, what="the pool counting what is looked at")
    store.put("a", content("a", 1, SIZE))
    churn(store)
    assert bytes(first.data) == content("a", 0, SIZE)
    first.close()
    churn(store)
    assert bytes(second.data) == content("a", 0, SIZE)
    assert held(store) > SIZE
    second.close()
    wait_for(lambda: held(store) == 0, what="the space coming free")


def test_a_view_that_is_garbage_is_closed(client: moontide.Store) -> None:
    client.put("a", content("a", 0, SIZE))
    view = client.view("a")
    client.remove("a")
    wait_for(lambda: held(client) > 0, what="the pool counting what is looked at")
    del view
    wait_for(lambda: held(client) == 0, what="the space coming free")


def test_more_than_a_share_of_the_segment_is_copied(client: moontide.Store) -> None:
    keys = [f"object {number}" for number in range(8)]
    client.put_many([(key, content(key, 0, SIZE)) for key in keys])
    views = [view for view in client.view_many(keys) if isinstance(view, moontide.View)]
    assert [bytes(view.data) for view in views] == [content(key, 0, SIZE) for key in keys]
    assert [view.in_place for view in views].count(True) == 3, "a quarter of 16 MiB, headers included"
    for view in views:
        view.close()
    with client.view(keys[-1]) as view:
        assert view.in_place, "what was given back may be used again"


def test_without_shared_memory_a_view_is_a_copy(pool: Pool, client: moontide.Store) -> None:
    client.put("a", content("a", 0, SIZE))
    config = moontide.load_config({"local_reads": "off"}, environ={})
    with moontide.Store(pool.address, config=config) as store, store.view("a") as view:
        assert not view.in_place
        assert bytes(view.data) == content("a", 0, SIZE)


def test_a_dead_viewer_pins_nothing_and_a_stopped_one_does(pool: Pool, client: moontide.Store) -> None:
    client.put("a", content("a", 0, SIZE))
    with StoreProcess(pool.address) as viewer:
        assert viewer.ask("look", key="a") == "in place"
        viewer.stop()
        client.remove("a")
        wait_for(lambda: held(client) > SIZE, what="the pool counting what is looked at")
        churn(client)
        assert held(client) > SIZE
        viewer.go_on()
        assert viewer.ask("looked_at", key="a", version=0) == "same"
        viewer.stop()
        viewer.kill()
        wait_for(lambda: held(client) == 0, what="the space coming free with its viewer's death")


def test_views_outlive_node_and_master(pool: Pool, client: moontide.Store) -> None:
    client.put("a", content("a", 0, SIZE))
    view = client.view("a")
    pool.master.restart()
    pool.nodes[0].kill()
    assert bytes(view.data) == content("a", 0, SIZE)
    pool.nodes[0] = pool.add_node()
    wait_for(lambda: _ready(client), 20, "the new node")
    wait_for(lambda: _put(client, "a"), 20, "a put")
    with client.view("a") as new:
        assert new.in_place
        assert bytes(new.data) == content("a", 1, SIZE)
    assert bytes(view.data) == content("a", 0, SIZE)
    view.close()


def test_a_restarted_master_hears_what_is_looked_at(pool: Pool, client: moontide.Store) -> None:
    client.put("a", content("a", 0, SIZE))
    with client.view("a") as view:
        client.remove("a")
        wait_for(lambda: held(client) > SIZE, what="the pool counting what is looked at")
        pool.master.restart()
        wait_for(lambda: _ready(client) and held(client) > SIZE, 20, "the node telling it again")
        churn(client)
        assert bytes(view.data) == content("a", 0, SIZE)
    wait_for(lambda: held(client) == 0, what="the space coming free")


def test_awaiting(pool: Pool) -> None:
    async def run() -> None:
        async with moontide.AsyncStore(pool.address, config=CONFIG) as store:
            await store.put("a", content("a", 0, SIZE))
            views = await asyncio.gather(*(store.view("a") for _ in range(20)))
            assert all(bytes(view.data) == content("a", 0, SIZE) for view in views)
            for view in views:
                view.close()
            found = await store.view_many(["a", "b"])
            assert isinstance(found[0], moontide.View)
            assert isinstance(found[1], errors.NotFound)

    asyncio.run(run())


def _ready(store: moontide.Store) -> bool:
    try:
        return store.stats()["nodes_ready"] == 1
    except errors.MoontideError:
        return False


def _put(store: moontide.Store, key: str) -> bool:
    try:
        store.put(key, content(key, 1, SIZE))
    except errors.AlreadyExists:
        store.remove(key)
        return False
    except errors.MoontideError:
        return False
    return True


def test_views_of_many_clients_do_not_add_up_to_the_segment(pool: Pool, client: moontide.Store) -> None:
    """However many look, half of the segment stays for puts."""
    keys = [f"object {number}" for number in range(12)]
    client.put_many([(key, content(key, 0, SIZE)) for key in keys])
    servers: list[StoreProcess] = []
    try:
        for turn in range(4):
            servers.append(StoreProcess(pool.address))
            for key in keys[turn * 3 : turn * 3 + 3]:
                servers[-1].ask("look", key=key)
        client.remove_many(keys)
        wait_for(lambda: 0 < held(client) <= 8 << 20, what="at most half of it being held")
        churn(client)
    finally:
        for server in servers:
            server.close()
    wait_for(lambda: held(client) == 0, what="the space coming free")


def test_a_node_that_leaves_takes_no_bytes_from_a_view(pool: Pool) -> None:
    other = Server("node", "--master", pool.address, "--lend", "16MiB")
    try:
        with moontide.Store(pool.address, config=CONFIG) as store:
            wait_for(lambda: store.stats()["nodes_ready"] == 2, what="both nodes")
            keys = [f"object {number}" for number in range(6)]
            store.put_many([(key, content(key, 0, SIZE)) for key in keys])
            views = [view for view in store.view_many(keys) if isinstance(view, moontide.View)]
            assert other.terminate() == 0
            assert [bytes(view.data) for view in views] == [content(key, 0, SIZE) for key in keys]
            for view in views:
                view.close()
    finally:
        other.close()
