"""The engine between real processes: bytes on every path, the three ways to wait, and what users may pass."""

from __future__ import annotations

import array
import asyncio
import hashlib
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import moontide
from moontide import errors
from support.peer_process import SIZE, Peer, pattern
from support.waiting import wait_for

PATHS = [  # local_reads of both sides, region of the peer, path of reads, path of writes
    ("auto", "arena", "shm", "pull"),
    ("auto", "heap", "cma", "pull"),
    ("shm", "arena", "shm", "pull"),
    ("shm", "heap", "tcp", "pull"),
    ("cma", "heap", "cma", "pull"),
    ("off", "heap", "tcp", "tcp"),
    ("off", "arena", "tcp", "tcp"),
]


def make_engine(local_reads: str = "auto") -> moontide.Engine:
    return moontide.Engine(
        config=moontide.load_config({"local_reads": local_reads, "progress_timeout": "1s"}, environ={})
    )


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Peer() as process:
        yield process


@pytest.fixture
def engine() -> Iterator[moontide.Engine]:
    with make_engine() as engine:
        yield engine


@pytest.mark.parametrize(("local_reads", "region", "read_path", "write_path"), PATHS)
def test_bytes_are_exact_on_every_path(local_reads: str, region: str, read_path: str, write_path: str) -> None:
    with Peer(local_reads=local_reads) as process, make_engine(local_reads) as engine:
        link = engine.open(process.address)
        memory = engine.allocate(SIZE, name="ours")
        digest = process.ask("fill", region=region, seed=1)
        transfer = engine.read([(memory, link.region(region), 0, SIZE)])
        transfer.wait(20)
        assert transfer.path == read_path
        assert transfer.results == [None]
        assert hashlib.sha256(memory.buffer).hexdigest() == digest
        memory.buffer[:] = pattern(SIZE, 2)
        transfer = engine.write([(memory, link.region(region), 0, SIZE)])
        transfer.wait(20)
        assert transfer.path == write_path
        assert process.ask("digest", region=region) == hashlib.sha256(memory.buffer).hexdigest()
        transfer.wait_quiet(10)
        assert transfer.quiet


def test_why_a_path_is_not_used_is_said() -> None:
    with Peer(local_reads="off") as process, make_engine() as engine:
        paths = engine.open(process.address).paths
        assert paths["tcp"] == "ok"
        assert "another process" in paths["self"]
        assert "not on this host" in paths["shm"]


def test_waiting_polling_and_awaiting_are_one_thing(engine: moontide.Engine, peer: Peer) -> None:
    link = engine.open(peer.address)
    digest = peer.ask("fill", region="heap", seed=3)
    target = bytearray(SIZE)
    engine.register(target, name="target", readable=False)
    entry = (target, link.region("heap"), 0, SIZE)

    async def awaited() -> None:
        reads = [engine.read([entry]) for _ in range(4)]
        await asyncio.gather(*(asyncio.ensure_future(_wait(read)) for read in reads))
        assert all(read.done for read in reads)
        opened = await engine.open_async(peer.address)
        assert opened.instance_id == link.instance_id
        with pytest.raises(errors.Denied):
            await engine.read([(target, link.region("heap"), SIZE, 1)])

    async def _wait(read: moontide.Transfer) -> None:
        await read

    asyncio.run(awaited())
    assert hashlib.sha256(target).hexdigest() == digest
    target[:] = bytes(SIZE)
    polled = engine.read([entry])
    wait_for(lambda: polled.done)
    polled.wait(0)
    assert hashlib.sha256(target).hexdigest() == digest


def test_local_memory_may_be_any_buffer(engine: moontide.Engine, peer: Peer) -> None:
    link = engine.open(peer.address)
    peer.ask("fill", region="heap", seed=4)
    remote = link.region("heap")
    expected = pattern(SIZE, 4)
    numbers = np.zeros((16, 64), dtype=np.float32)
    region = engine.register(numbers, name="numbers")
    floats = array.array("d", bytes(8 * 512))
    engine.register(floats, name="floats")
    raw = bytearray(4096)
    number = engine.register(raw, name="raw")
    engine.read([(region, remote, 0, 2048), ((region, 2048), remote, 2048, 2048), (floats, remote, 100, 4096)]).wait(10)
    engine.read([(number.address + 16, remote, 8000, 64)]).wait(10)
    assert numbers.tobytes() == expected[:4096]
    assert floats.tobytes() == expected[100:4196]
    assert raw == bytes(16) + expected[8000:8064] + bytes(4096 - 80)
    with pytest.raises(errors.Invalid, match="more than the local memory"):
        engine.read([(numbers, remote, 0, 4097)])
    with pytest.raises(errors.Invalid, match="outside the local region"):
        engine.read([((region, 5000), remote, 0, 1)])
    with pytest.raises(errors.Denied, match="register it first"):
        engine.read([(bytearray(64), remote, 0, 64)]).wait(10)
    with pytest.raises(errors.Invalid, match="not contiguous"):
        engine.register(np.zeros((4, 4))[:, ::2])
    with pytest.raises(errors.Invalid):
        engine.register(b"")


def test_packed_records_and_prepared_batches(engine: moontide.Engine, peer: Peer) -> None:
    link = engine.open(peer.address)
    peer.ask("fill", region="heap", seed=5)
    remote = link.region("heap")
    expected = pattern(SIZE, 5)
    target = np.zeros(64 * 512, dtype=np.uint8)
    region = engine.register(target, name="blocks")
    record = np.dtype(
        [("op", "<u4"), ("flags", "<u4"), ("local", "<u8"), ("handle", "<u8"), ("offset", "<u8"), ("length", "<u8")]
    )
    blocks = np.zeros(64, dtype=record)
    order = np.random.default_rng(1).permutation(64)
    blocks["local"] = region.address + 512 * np.arange(64)
    blocks["handle"] = remote.handle
    blocks["offset"] = 512 * order
    blocks["length"] = 512
    batch = engine.prepare("read", blocks)
    assert len(batch) == 64
    for _ in range(3):
        target[:] = 0
        batch.post().wait(10)
        assert target.tobytes() == b"".join(expected[512 * i : 512 * i + 512] for i in order)
    with pytest.raises(errors.Invalid, match="40 bytes"):
        engine.read(b"x" * 41)
    with pytest.raises(errors.Invalid, match="allowed are read, write"):
        engine.prepare("copy", blocks)


def test_strided_entries(engine: moontide.Engine, peer: Peer) -> None:
    link = engine.open(peer.address)
    peer.ask("fill", region="heap", seed=9)
    heap = link.region("heap")
    expected = np.frombuffer(pattern(SIZE, 9), dtype=np.uint8)
    target = np.zeros(SIZE, dtype=np.uint8)
    region = engine.register(target, name="strided")
    assert SIZE >= 100_000 * 10
    # 100,000 elements are one entry; every second byte, and six of ten
    entries = [
        moontide.Strided(region, heap, 1, 1, count=100_000, local_stride=2, remote_stride=3),
        moontide.Strided((region, 200_000), heap, 0, 6, count=1000, remote_stride=10),
        (region, heap, SIZE - 5, 10),
    ]
    transfer = engine.read(entries)
    with pytest.raises(errors.Denied, match="outside remote region"):
        transfer.wait(10)
    assert [type(result).__name__ for result in transfer.results] == ["NoneType", "NoneType", "Denied"]
    assert np.array_equal(target[:200_000:2], expected[1:300_000:3])
    assert not target[1:200_000:2].any()
    assert np.array_equal(target[200_000:206_000].reshape(1000, 6), expected[:10_000].reshape(1000, 10)[:, :6])
    # the same as a packed record
    plain = [("op", "<u4"), ("flags", "<u4"), *((name, "<u8") for name in ("local", "handle", "offset", "length"))]
    record = np.dtype([*plain, ("count", "<u8"), ("local_stride", "<u8"), ("remote_stride", "<u8")])
    target[:] = 0
    batch = engine.prepare("read", np.array([(0, 0, region.address, heap.handle, 1, 1, 100_000, 2, 3)], dtype=record))
    assert len(batch) == 1
    batch.post().wait(10)
    assert np.array_equal(target[:200_000:2], expected[1:300_000:3])


@pytest.mark.parametrize(
    ("shape", "error", "said"),
    [
        ({"count": -1}, errors.Invalid, "count is not a number from 0"),
        ({"count": 2, "local_stride": -4096}, errors.Invalid, "local_stride is not a number from 0"),
        ({"count": 2, "remote_stride": 2**64}, errors.Invalid, "remote_stride is not a number from 0"),
        ({"count": 513}, errors.Invalid, "513 times with a local stride of 8, is more than the local memory of 4096"),
        ({"count": 3, "local_stride": 2**63}, errors.Invalid, "is more than the local memory"),
        (
            {"count": 2, "local_stride": 7},
            errors.Invalid,
            "a local stride of 7 bytes: elements of 8 bytes would overlap",
        ),
        ({"count": 2, "remote_stride": SIZE - 7}, errors.Denied, "not inside remote region 'heap'"),
        ({"count": 3, "remote_stride": 2**63}, errors.Denied, "not inside remote region 'heap'"),
    ],
)
def test_strided_entries_that_cannot_be_done(
    engine: moontide.Engine, peer: Peer, shape: dict[str, int], error: type[errors.MoontideError], said: str
) -> None:
    heap = engine.open(peer.address).region("heap")
    target = bytearray(4096)
    region = engine.register(target, name="bad")
    entry = moontide.Strided(region, heap, 0, 8, **shape)
    with pytest.raises(error, match=said):
        engine.read([entry]).wait(10)
    with pytest.raises(errors.Invalid, match="or Strided"):
        engine.read([(region, heap, 0, 8, 2, 8, 8)])  # type: ignore[list-item]
    region.unregister(timeout=5)
    assert not any(target)


def test_a_region_that_comes_later_is_waited_for(engine: moontide.Engine) -> None:
    with make_engine() as owner:
        link = engine.open(owner.address)
        with pytest.raises(errors.TimedOut, match=r"registered no region 'late' within 0.01 s; it has \[\]"):
            link.wait_region("late", timeout=0.01)
        waiting = link.wait_region_async("late")
        owner.register(bytearray(4096), name="other")
        assert link.wait_region("other", timeout=10).length == 4096
        assert not waiting.done
        owner.register(b"x" * 512, name="late")
        late = waiting.wait(10)
        assert (late.name, late.length, late.handle) == ("late", 512, link.region("late").handle)
        assert link.wait_region("late", timeout=0).id == late.id

        async def awaited() -> int:
            operation = link.wait_region_async("last")
            owner.register(bytearray(64), name="last")
            return (await operation).length

        assert asyncio.run(awaited()) == 64
        never = link.wait_region_async("never")
    with pytest.raises(errors.PeerLost):
        never.wait(10)
    with pytest.raises(errors.PeerLost):
        link.wait_region("late", timeout=10)
    forgotten = engine.open(engine.address).wait_region_async("never")
    engine.close()
    with pytest.raises((errors.PeerLost, errors.Closed)):
        forgotten.wait(10)


def test_one_result_per_entry(engine: moontide.Engine, peer: Peer) -> None:
    link = engine.open(peer.address)
    target = bytearray(4096)
    engine.register(target, name="small")
    heap = link.region("heap")
    transfer = engine.read(
        [(target, heap, 0, 10), (target, heap, SIZE - 5, 10), (target, heap, 2**64 - 1, 10), (target, heap, 0, 0)]
    )
    with pytest.raises(errors.Denied, match="outside remote region 'heap'"):
        transfer.wait(10)
    kinds = [type(result).__name__ if result else "ok" for result in transfer.results]
    assert kinds == ["ok", "Denied", "Denied", "ok"]
    assert engine.read([]).done
    with pytest.raises(errors.Invalid, match="offset is not a number"):
        engine.read([(target, heap, -1, 10)])
    with pytest.raises(errors.NotFound, match="it has \\['arena', 'heap'\\]"):
        link.region("nothing")


def test_an_engine_opens_itself(engine: moontide.Engine) -> None:
    link = engine.open(engine.address)
    source = engine.allocate(1 << 20, name="source")
    target = engine.allocate(1 << 20, name="target")
    source.buffer[:] = pattern(1 << 20, 8)
    wait_for(lambda: "source" in link.regions)
    transfer = engine.read([(target, link.region("source"), 0, 1 << 20)])
    transfer.wait(10)
    assert transfer.path == "self"
    for _ in range(5):
        assert engine.open(engine.address).instance_id == engine.instance_id
    assert engine.stats()["links"] == 2  # one link has both its ends here
    assert bytes(target.buffer) == pattern(1 << 20, 8)


def test_many_threads_share_an_engine(engine: moontide.Engine, peer: Peer) -> None:
    link = engine.open(peer.address)
    peer.ask("fill", region="heap", seed=6)
    expected = pattern(SIZE, 6)
    wrong: list[int] = []

    def worker(index: int) -> None:
        target = bytearray(64 << 10)
        engine.register(target, name=f"thread {index}")
        for turn in range(50):
            offset = (index * 7919 + turn * 104729) % (SIZE - len(target))
            engine.read([(target, link.region("heap"), offset, len(target))]).wait(10)
            if target != expected[offset : offset + len(target)]:
                wrong.append(turn)

    threads = [threading.Thread(target=worker, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_the_interpreter_goes_on_while_a_transfer_is_waited_for(engine: moontide.Engine, peer: Peer) -> None:
    link = engine.open(peer.address)
    target = bytearray(SIZE)
    engine.register(target, name="big")
    ticks = 0
    over = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not over.wait(0.001):
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    for _ in range(20):
        engine.read([(target, link.region("heap"), 0, SIZE)]).wait(10)
    over.set()
    ticker.join(10)
    assert ticks > 5
