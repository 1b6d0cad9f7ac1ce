"""Objects that take the place of others: by one client, by many, over restarts and kills."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

import moontide
from moontide import errors
from support.pool_process import Pool, StoreProcess, content
from support.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SIZE = 100_000
CONFIG = moontide.load_config({}, environ={})


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(nodes=2) as pool:
        yield pool


@pytest.fixture
def store(pool: Pool) -> Iterator[moontide.Store]:
    with moontide.Store(pool.address, config=CONFIG) as store:
        wait_for(lambda: store.stats()["nodes_ready"] == 2, 10, "both nodes")
        yield store


def test_an_object_takes_the_place_of_another(store: moontide.Store) -> None:
    first = store.upsert("key", b"first")
    assert store.stat("key").version == first
    second = store.upsert("key", b"second, and longer")
    assert second != first
    assert store.get("key") == b"second, and longer"
    assert store.upsert_many([("key", b"third"), ("other", b"new")]) == [
        store.stat("key").version,
        store.stat("other").version,
    ]
    assert store.stats()["objects"] == 2
    with pytest.raises(errors.AlreadyExists):
        store.put("key", b"as ever")
    assert store.get("key") == b"third"
    wait_for(lambda: store.stats()["retiring_bytes"] == 0, 10, "what was replaced is gone")


def test_only_the_version_that_was_read_is_replaced(store: moontide.Store) -> None:
    first = store.upsert("key", b"first")
    assert store.upsert("key", b"second", version=first) != first
    with pytest.raises(errors.Stale):
        store.upsert("key", b"third", version=first)
    with pytest.raises(errors.Stale):
        store.upsert("nothing", b"value", version=first)
    with pytest.raises(errors.Invalid, match="version"):
        store.upsert("key", b"value", version="newest")
    with pytest.raises(errors.Invalid, match="versions"):
        store.upsert_many([("key", b"value")], versions=[])
    found = store.upsert_many([("key", b"a"), ("free", b"b")], versions=[first, None])
    assert isinstance(found[0], errors.Stale)
    assert store.get("free") == b"b"
    assert store.get("key") == b"second"


def test_options_are_those_of_the_new_object(store: moontide.Store) -> None:
    store.put("key", b"pinned", pin="hard")
    assert store.stats()["hard_pinned_bytes"] > 0
    store.upsert("key", content("key", 1, SIZE), replicas=2)
    assert len(store.stat("key").places) == 2
    wait_for(lambda: store.stats()["hard_pinned_bytes"] == 0, 10, "the pin went with the old object")


def test_awaited(pool: Pool, store: moontide.Store) -> None:
    async def main() -> None:
        async with moontide.AsyncStore(pool.address, config=CONFIG) as awaited:
            version = await awaited.upsert("key", b"one")
            assert (await awaited.stat("key")).version == version
            assert len(await awaited.upsert_many([("key", b"two")], versions=[version])) == 1
            with pytest.raises(errors.Stale):
                await awaited.upsert("key", b"three", version=version)

    asyncio.run(main())
    assert store.get("key") == b"two"


def test_many_count_up_one_number(pool: Pool, store: moontide.Store) -> None:
    store.put("number", b"0")
    with StoreProcess(pool.address) as one, StoreProcess(pool.address) as two:
        for process in (one, two):
            process.send("count_up", key="number", count=100)
        one.receive()
        two.receive()
    assert store.get("number") == b"200"


def test_readers_see_one_of_the_versions(pool: Pool, store: moontide.Store) -> None:
    store.put("key", content("key", 0, SIZE))
    with StoreProcess(pool.address) as reader, StoreProcess(pool.address) as writer:
        reader.send("get_loop", key="key", versions=200, size=SIZE, count=1500)
        writer.send("upsert_loop", key="key", first=1, count=199, size=SIZE)
        assert writer.receive() == 199
        seen = reader.receive()
    assert "wrong" not in seen, seen
    assert store.get("key") == content("key", 199, SIZE)


def test_one_that_is_killed_in_the_middle_costs_the_old_object_nothing(pool: Pool, store: moontide.Store) -> None:
    store.put("key", content("key", 0, SIZE))
    versions = {content("key", version, SIZE): version for version in range(3000)}
    for turn in range(4):
        with StoreProcess(pool.address) as writer:
            writer.send("upsert_loop", key="key", first=1 + 500 * turn, count=499, size=SIZE)
            wait_for(lambda turn=turn: versions.get(_get(store), 0) > 500 * turn, 20, "it has begun")
            writer.kill()
        assert wait_for(lambda: _get(store), 20, "the object") in versions
    pool.master.restart()
    wait_for(lambda: store.stats()["nodes_ready"] == 2, 30, "both nodes")
    assert wait_for(lambda: _get(store), 30, "the object after a restart") in versions
    # A new master cannot know whose the replacement was that it found: it waits for its client as for any open put.
    wait_for(lambda: _upserted(store, b"done"), 60, "another upsert")
    assert store.get("key") == b"done"
    wait_for(lambda: store.stats()["unfinished_bytes"] == 0, 60, "unfinished puts given up")


def _upserted(store: moontide.Store, value: bytes) -> bool:
    try:
        store.upsert("key", value)
    except errors.TimedOut:
        return False
    return True


def _get(store: moontide.Store) -> bytes:
    """Nothing: a miss."""
    try:
        return store.get("key")
    except errors.MoontideError:
        return b""


def test_a_version_outlives_the_master(pool: Pool, store: moontide.Store) -> None:
    version = store.upsert("key", os.urandom(100))
    version = store.upsert("key", b"kept", version=version)
    pool.master.restart()
    wait_for(lambda: _get(store) == b"kept", 30, "the object")
    assert store.stat("key").version == version
    assert store.upsert("key", b"next", version=version) != version
