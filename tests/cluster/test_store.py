"""The pool between real processes, and inside one: what users put is what they get."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import safetensors.numpy

import moontide
from moontide import errors
from support.pool_process import Pool, Server, content
from support.waiting import wait_for

CONFIG = moontide.load_config({}, environ={})


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(nodes=2) as pool:
        yield pool


@pytest.fixture(params=["embedded", "pool"])
def store(request: pytest.FixtureRequest, pool: Pool) -> Iterator[moontide.Store]:
    master = pool.address if request.param == "pool" else None
    with moontide.Store(master, lend=0 if master else 32 << 20, config=CONFIG) as store:
        yield store
        store.remove_many([info.key for info in store.list()])


@pytest.mark.parametrize("size", [0, 1, 63, 4096, 4097, 1 << 20, (3 << 20) + 7])
def test_values_of_any_size_come_back_exactly(store: moontide.Store, size: int) -> None:
    value = content("value", size, size)
    store.put("value", value)
    assert store.get("value") == value
    target = bytearray(size + 16)
    assert store.get_into("value", target) == size
    assert target == value + bytes(16)
    assert store.list("val") == [moontide.ObjectInfo(b"value", size)]


def test_replicas_lie_on_different_nodes_and_where_they_are_wanted(pool: Pool) -> None:
    with moontide.Store(pool.address, lend=8 << 20, config=CONFIG) as store:
        wait_for(lambda: store.stats()["nodes_ready"] == 3, what="three nodes")
        store.put("three", b"3" * 10_000, replicas=3)
        places = store.stat("three").places
        assert len({place.node for place in places}) == 3
        store.put("own", b"own", prefer=["own"])
        (own,) = store.stat("own").places
        assert places[0] == own, "the place in this process is the first to be read"
        store.put("away", b"away", replicas=3, avoid=[own.node])
        assert own.node not in {place.node for place in store.stat("away").places}
        assert len(store.stat("away").places) == 2
        assert store.put_many([("many", b"m")], replicas=2) == [None]
        store.put_tensors("tree", {"a": np.arange(10)}, replicas=2)
        assert [len(store.stat(key).places) for key in ("many", "tree")] == [2, 2]
        for bad in ({"replicas": 0}, {"replicas": 9}, {"avoid": ["own"]}, {"prefer": ["node"]}, {"prefer": own.node}):
            with pytest.raises(errors.Invalid):
                store.put("bad", b"", **bad)  # type: ignore[arg-type]
        store.remove_many(["three", "own", "away", "many", "tree"])


def test_parts_of_an_object_are_slices_of_its_bytes(store: moontide.Store) -> None:
    size = 700_001
    value = content("value", 0, size)
    store.put("value", value)
    store.put("empty", b"")
    random = np.random.default_rng(7)
    offsets = [0, 1, 63, 64, 65, 262_143, 262_144, size - 1, size, *random.integers(0, size, 40).tolist()]
    lengths = [0, 1, 64, 4096, 262_144, size, size + 1, 1 << 62, *random.integers(0, size, 40).tolist()]
    parts = [("value", offset, length) for offset, length in zip(offsets, lengths, strict=False)]
    parts += [("value", 0, length) for length in lengths] + [("empty", 0, 10)]
    expected = [value[offset : offset + length] for _, offset, length in parts[:-1]] + [b""]
    assert store.get_range_many(parts) == expected
    assert [store.get_range(*part) for part in parts[:10]] == expected[:10]
    assert store.get_range_many([]) == []
    target = np.zeros(1000, dtype=np.uint32)
    assert store.get_into("value", target, offset=4321) == target.nbytes
    assert target.tobytes() == value[4321 : 4321 + target.nbytes]
    assert store.get_into("value", target, offset=size - 10) == 10
    assert store.get_into("value", target, length=8) == 8
    assert target.tobytes()[:10] == value[:8] + value[size - 2 :]
    assert store.counters()["range_gets"] > 50


def test_parts_that_are_not_there_say_so(store: moontide.Store) -> None:
    store.put("value", b"0123456789")
    with pytest.raises(errors.Invalid, match=r"11.* 10 bytes"):
        store.get_range("value", 11, 1)
    with pytest.raises(errors.Invalid, match=r"11.* 10 bytes"):
        store.get_into("value", bytearray(4), offset=11)
    with pytest.raises(errors.TooLarge, match=r"5.* 4 bytes"):
        store.get_into("value", bytearray(4), offset=1, length=5)
    with pytest.raises(errors.NotFound):
        store.get_range("none", 0, 1)
    for bad in ((-1, 1), (0, -1), (1 << 64, 1), (0.5, 1)):
        with pytest.raises(errors.Invalid, match="whole number"):
            store.get_range("value", *bad)  # type: ignore[arg-type]
    found = store.get_range_many([("value", 2, 3), ("none", 0, 1), ("value", 99, 1), ("", 0, 1), ("value", 8, 9)])
    assert [type(item).__name__ if isinstance(item, Exception) else item for item in found] == [
        b"234",
        "NotFound",
        "Invalid",
        "Invalid",
        b"89",
    ]


def test_parts_are_of_one_put_while_the_object_is_put_anew(store: moontide.Store) -> None:
    size, stop = 200_000, threading.Event()

    def put_anew() -> None:
        turn = 0
        while not stop.is_set():
            turn = turn % 250 + 1
            store.put("value", bytes([turn]) * (size + turn))
            store.remove("value")

    writer = threading.Thread(target=put_anew)
    writer.start()
    try:
        found = 0
        while found < 100:
            part = store.get_range_many([("value", 1000, size)])[0]
            if isinstance(part, bytes):
                found += 1
                assert part == part[:1] * (size - 1000 + part[0]), "bytes of several puts, or another length"
    finally:
        stop.set()
        writer.join()
    store.remove_many(["value"])


def test_keys(store: moontide.Store) -> None:
    keys: list[str | bytes] = ["a/b", "a_b", b"\x00\xff", "ключ", "k" * 1024, "a", "aa"]
    for number, key in enumerate(keys):
        store.put(key, str(number).encode())
    assert [store.get(key) for key in keys] == [str(number).encode() for number in range(len(keys))]
    raw = sorted(key.encode() if isinstance(key, str) else key for key in keys)
    assert [info.key for info in store.list()] == raw
    assert [info.key for info in store.list("a")] == [key for key in raw if key.startswith(b"a")]
    for bad in ("", "k" * 1025, b""):
        with pytest.raises(errors.Invalid):
            store.put(bad, b"x")
        with pytest.raises(errors.Invalid):
            store.get(bad)


def test_what_is_there_and_what_is_not(store: moontide.Store) -> None:
    with pytest.raises(errors.NotFound):
        store.get("key")
    with pytest.raises(errors.NotFound):
        store.remove("key")
    assert not store.exists("key")
    store.put("key", b"one")
    assert store.exists("key")
    with pytest.raises(errors.AlreadyExists):
        store.put("key", b"two")
    assert store.get("key") == b"one"
    store.remove("key")
    assert not store.exists("key")
    with pytest.raises(errors.NotFound):
        store.get("key")
    store.put("key", b"three")
    assert store.get("key") == b"three"
    with pytest.raises(errors.TooLarge):
        store.get_into("key", bytearray(4))
    with pytest.raises(errors.Invalid, match="encode the text"):
        store.put("text", "a str")


def test_batches_have_one_result_per_item(store: moontide.Store) -> None:
    store.put("b", b"there")
    results = store.put_many([("a", b"1"), ("b", b"2"), ("", b"3"), ("c", content("c", 0, 100_000)), ("d", "text")])
    assert [type(error).__name__ if error else "ok" for error in results] == [
        "ok",
        "AlreadyExists",
        "Invalid",
        "ok",
        "Invalid",
    ]
    found = store.get_many(["c", "nothing", "a", "b"])
    assert found[0] == content("c", 0, 100_000)
    assert isinstance(found[1], errors.NotFound)
    assert found[2:] == [b"1", b"there"]
    assert store.exists_many(["a", "x", "b"]) == [True, False, True]
    removed = store.remove_many(["a", "x", "b"])
    assert [type(error).__name__ if error else "ok" for error in removed] == ["ok", "NotFound", "ok"]
    assert store.put_many([]) == []
    assert store.get_many([]) == []


def test_many_small_objects_in_one_batch(store: moontide.Store) -> None:
    items = [(f"many/{number:05}", content("many", number, number % 300)) for number in range(3000)]
    assert store.put_many(items) == [None] * 3000
    assert store.get_many([key for key, _ in items]) == [value for _, value in items]
    assert len(store.list("many/")) == 3000
    assert store.remove_many([key for key, _ in items]) == [None] * 3000


def test_parts_of_registered_memory(store: moontide.Store) -> None:
    memory = np.frombuffer(bytearray(content("memory", 0, 1 << 20)), dtype=np.uint8).copy()
    region = store.engine.register(memory, name="parts")
    at = region.address
    parts = [[(at, 1000), (at + 5000, 3000), (at + 100, 50)], [(at + 65536, 65536)]]
    operation = store.put_parts(["one", "two"], parts, commit="async")
    assert operation.wait(20) == [None, None]
    operation.wait_quiet(20)
    assert store.exists_many(["one", "two"]) == [True, True], "a client sees its own puts"
    raw = memory.tobytes()
    assert store.get("one") == raw[:1000] + raw[5000:8000] + raw[100:150]
    memory[:200_000] = 0
    back = store.get_parts(["two", "absent"], [[(at, 65000), (at + 70000, 536)], [(at + 90000, 10)]])
    results = back.wait(20)
    back.wait_quiet(20)
    assert results[0] is None
    assert isinstance(results[1], errors.NotFound)
    assert memory[:65000].tobytes() + memory[70000:70536].tobytes() == raw[65536:131072]
    with pytest.raises(errors.Invalid, match="allowed are sync, async"):
        store.put_parts(["x"], [[]], commit="later")
    region.unregister(timeout=10)


def test_pins_and_times_to_live(store: moontide.Store) -> None:
    store.put("kept/hard", content("pin", 0, 100_000), pin="hard")
    store.put("kept/short", content("pin", 1, 100_000), pin="hard", ttl=0.5)
    store.put_tensors("kept/tree", [np.arange(10)], pin="soft", ttl=3600)
    assert store.stats()["hard_pinned_bytes"] >= 200_000
    wait_for(lambda: not store.exists("kept/short"), what="the end of its time")
    with pytest.raises(errors.NotFound):
        store.get("kept/short")
    store.put("kept/short", b"again")
    assert [info.key for info in store.list("kept/")] == [b"kept/hard", b"kept/short", b"kept/tree"]
    outcome = store.keep_many(["kept/hard", "no such key", "kept/short"], ttl=0.2)
    assert [type(error).__name__ for error in outcome] == ["NoneType", "NotFound", "NoneType"]
    wait_for(lambda: not store.exists("kept/hard"), what="the end of the new time")
    wait_for(lambda: store.stats()["hard_pinned_bytes"] == 0, what="no pin")
    store.keep("kept/tree", ttl=0.2)
    wait_for(lambda: not store.list("kept/"), what="nothing left")
    with pytest.raises(errors.NotFound):
        store.keep("kept/tree", pin="hard")
    for wrong in ({"pin": "very"}, {"ttl": 0}, {"ttl": -1.0}, {"ttl": float("nan")}, {"ttl": 1e12}):
        with pytest.raises(errors.Invalid, match="pin =|ttl ="):
            store.put("kept/wrong", b"", **wrong)
        with pytest.raises(errors.Invalid, match="pin =|ttl ="):
            store.keep("kept/wrong", **wrong)


def test_a_hard_pin_outlasts_what_is_put_after_it() -> None:
    with moontide.Store(lend=2 << 20) as store:
        store.put("hard", content("pin", 0, 50_000), pin="hard")
        for number in range(200):
            store.put(f"fill/{number}", content("fill", number, 50_000))
        assert store.stats()["evicted"] > 100
        assert store.get("hard") == content("pin", 0, 50_000)
        store.keep("hard")  # like any other from now on
        for number in range(200, 400):
            store.put(f"fill/{number}", content("fill", number, 50_000))
        assert store.stats()["hard_pinned_bytes"] == 0


def test_trees_of_tensors(store: moontide.Store) -> None:
    layers = [{"w": np.full((3, 5), i, np.float32), "b": np.full(i % 4, i, np.int16)} for i in range(300)]
    tree = {"layers": layers, "step": np.array(7), "none": None, "pair": (np.arange(6).reshape(2, 3).T, np.ones(1))}
    store.put_tensors("tree", tree)
    found = store.get_tensors("tree")
    assert repr(found) == repr(tree)
    assert found["pair"][0].shape == (3, 2)
    with pytest.raises(errors.AlreadyExists):
        store.put_tensors("tree", tree)
    with pytest.raises(errors.NotFound):
        store.get_tensors("no tree")
    with pytest.raises(errors.Invalid, match="allowed are numpy, torch"):
        store.get_tensors("tree", framework="jax")
    store.put("bytes", b"no tensors")
    for get in (store.get_tensors, lambda key: store.get_tensors_into(key, np.ones(1))):
        with pytest.raises(errors.Invalid, match="the object holds no tensors"):
            get("bytes")


def test_tensors_are_read_to_their_places(store: moontide.Store) -> None:
    tree = {"k": np.arange(100_000.0), "v": [np.arange(7, dtype=np.uint8)]}
    store.put_tensors("kv", tree)
    into = {"k": np.zeros(100_000), "v": [np.zeros(7, np.uint8)]}
    before = store.counters()
    store.get_tensors_into("kv", into)
    after = store.counters()
    assert repr(into) == repr(tree)
    assert after["get_bytes"] - before["get_bytes"] < 810_000, "read once: nothing was looked at before"
    # another writer's object with the same tensors, in another order and without an outline
    store.put("theirs", safetensors.numpy.save({"v.0": tree["v"][0], "k": tree["k"] + 1}))
    store.get_tensors_into("theirs", into)
    assert into["k"].tolist() == (tree["k"] + 1).tolist()
    for wrong in ({"k": np.zeros(100_000)}, {"k": np.zeros(99_999), "v": [np.zeros(7, np.uint8)]}, np.zeros(1)):
        with pytest.raises(errors.Invalid, match="asked for .*, the object has"):
            store.get_tensors_into("kv", wrong)
    with pytest.raises(errors.NotFound):
        store.get_tensors_into("no tree", into)


@pytest.mark.parametrize("policy", ["prefix", "lru"])
def test_a_prefix_that_was_put_as_one_goes_from_its_end(policy: str) -> None:
    config = moontide.load_config({"eviction": policy, "lease": "100ms"}, environ={})
    size, blocks = 4096, 8
    with moontide.Store(lend=2 << 20, config=config) as store:
        memory = np.zeros(size, dtype=np.uint8)
        region = store.engine.register(memory, name="block")
        kept = set()
        for number in range(200):
            keys = [f"{number} {block}" for block in range(blocks)]
            parts = [[(region.address, size)]] * blocks
            operation = store.put_parts(keys, parts, prefix=True)
            assert operation.wait(20) == [None] * blocks
            operation.wait_quiet(20)
            for one in range(0, number + 1, 7):
                there = store.exists_many([f"{one} {block}" for block in range(blocks)])
                assert there == sorted(there, reverse=True), "what is left is a prefix"
                kept.add(sum(there))
        assert {0, blocks} < kept, "some are whole, some are gone, some are cut"
        region.unregister(timeout=10)


def test_an_eviction_policy_that_does_not_exist_is_refused() -> None:
    with pytest.raises(errors.Invalid, match="fifo"):
        moontide.Store(lend=1 << 20, config=dataclasses.replace(CONFIG, eviction="fifo"))


def test_a_full_pool_evicts_the_oldest_and_says_no_to_what_never_fits() -> None:
    with moontide.Store(lend=4 << 20, config=CONFIG) as store:
        with pytest.raises(errors.TooLarge):
            store.put("huge", bytes(5 << 20))
        for number in range(60):
            store.put(f"block {number}", content("block", number, 256 << 10))
            assert store.get(f"block {number}") == content("block", number, 256 << 10)
        stats = store.stats()
        assert stats["committed_bytes"] + stats["unfinished_bytes"] + stats["retiring_bytes"] <= stats["capacity_bytes"]
        assert stats["evicted"] > 0
        left = [info.key for info in store.list()]
        assert b"block 59" in left
        assert b"block 0" not in left
        for info in store.list():
            assert store.get(info.key) == content("block", int(info.key.split()[1]), 256 << 10)


def test_await_is_the_same_store(pool: Pool) -> None:
    async def main() -> None:
        async with moontide.AsyncStore(pool.address, config=CONFIG) as store:
            await store.put("async", content("async", 0, 100_000))
            values = await asyncio.gather(*(store.get("async") for _ in range(10)))
            assert values == [content("async", 0, 100_000)] * 10
            assert await store.exists_many(["async", "no"]) == [True, False]
            assert [info.key for info in await store.list("asy")] == [b"async"]
            with pytest.raises(errors.NotFound):
                await store.get("no")
            late = asyncio.ensure_future(store.get("async"))
            await asyncio.sleep(0)
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late
            assert await store.get("async") == content("async", 0, 100_000)
            assert await store.get_range("async", 10, 20) == content("async", 0, 100_000)[10:30]
            parts = await store.get_range_many([("async", 99_990, 100), ("no", 0, 1)])
            assert parts[0] == content("async", 0, 100_000)[-10:] and isinstance(parts[1], errors.NotFound)
            buffer = bytearray(5)
            assert await store.get_into("async", buffer, offset=7) == 5
            assert buffer == content("async", 0, 100_000)[7:12]
            await store.keep("async", pin="soft", ttl=60)
            await store.remove("async")
            await store.put_tensors("tensors", [np.arange(5)])
            into = np.zeros(5, np.int64)
            await store.get_tensors_into("tensors", [into])
            assert into.tolist() == (await store.get_tensors("tensors"))[0].tolist() == [0, 1, 2, 3, 4]

    asyncio.run(main())


def test_many_writers_of_one_key_have_one_winner(pool: Pool) -> None:
    with moontide.Store(pool.address, config=CONFIG) as first, moontide.Store(pool.address, config=CONFIG) as second:
        for turn in range(20):
            outcomes: list[str] = []

            def put(store: moontide.Store, version: int, key: str, into: list[str]) -> None:
                try:
                    store.put(key, content(key, version, 10_000))
                    into.append(str(version))
                except errors.AlreadyExists:
                    into.append("exists")

            key = f"race {turn}"
            threads = [
                threading.Thread(target=put, args=(store, version, key, outcomes))
                for version, store in enumerate([first, second, first, second])
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            winners = [outcome for outcome in outcomes if outcome != "exists"]
            assert len(outcomes) == 4
            assert len(winners) == 1
            assert first.get(key) == second.get(key) == content(key, int(winners[0]), 10_000)
            first.remove(key)


def test_a_process_lends_and_uses(pool: Pool) -> None:
    with moontide.Store(pool.address, lend=16 << 20, config=CONFIG) as lender:
        wait_for(lambda: lender.stats()["nodes_ready"] == 3, 10, "the third node")
        with moontide.Store(pool.address, config=CONFIG) as user:
            keys = [f"spread {number}" for number in range(30)]
            assert user.put_many([(key, content(key, 0, 200_000)) for key in keys]) == [None] * 30
            assert lender.get_many(keys) == [content(key, 0, 200_000) for key in keys]
            user.remove_many(keys)
    with moontide.Store(pool.address, config=CONFIG) as user:
        wait_for(lambda: user.stats()["nodes_ready"] == 2, 20, "the third node gone")


def test_servers_end_on_a_signal() -> None:
    with Pool(nodes=1) as pool:
        assert pool.nodes[0].terminate() == 0
        assert pool.master.terminate() == 0
        pool.master = Server("master", "--listen", pool.address)


def test_a_store_without_its_master_says_so() -> None:
    from support.pool_process import free_port

    with moontide.Store(f"127.0.0.1:{free_port()}", config=CONFIG) as store:
        operation = store.put_parts(["key"], [[]])
        assert not operation.done
        with pytest.raises(errors.TimedOut):
            operation.wait(0.2)
        operation.cancel()
        assert isinstance(operation.wait(5)[0], errors.Canceled)
