"""Registered memory: more than once, in threads, beyond 4 GiB, held by a silent peer, and after a fork."""

from __future__ import annotations

import asyncio
import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest

import moontide
from moontide import errors
from support.peer_process import SIZE, Peer
from support.waiting import wait_for

GIB = 1 << 30
CONFIG = moontide.load_config({}, environ={})


def make_engine(local_reads: str = "auto", progress_timeout: str = "2s") -> moontide.Engine:
    settings = {"local_reads": local_reads, "progress_timeout": progress_timeout}
    return moontide.Engine(config=moontide.load_config(settings, environ={}))


def test_the_same_memory_may_be_registered_again_in_part_and_with_other_rights() -> None:
    with make_engine() as engine, make_engine() as other:
        memory = bytearray(range(256)) * 64
        whole = engine.register(memory, name="whole")
        private = engine.register((whole.address + 100, 200), name="part", readable=False, writable=True)
        link = other.open(engine.address)
        target = bytearray(len(memory))
        other.register(target)
        other.read([(target, link.region("whole"), 0, len(memory))]).wait(10)
        assert target == memory
        with pytest.raises(errors.Denied):
            other.read([(target, link.region("part"), 0, 16)]).wait(10)
        other.write([(target, link.region("part"), 0, 16)]).wait(10)
        private.unregister(timeout=10)
        other.read([(target, link.region("whole"), 100, 200)]).wait(10)
        whole.unregister(timeout=10)
        with pytest.raises(errors.NotFound):
            whole.unregister(timeout=10)


@pytest.mark.parametrize("pool", ["alone", "in threads"])
def test_a_pool_takes_overlapping_views_and_one_buffer_many_times(pool: str) -> None:
    with moontide.Store(lend=64 << 20, config=CONFIG) as store:
        data = np.random.default_rng(1).integers(0, 256, 400_000, dtype=np.uint8)
        views = [data[start : start + 200_000] for start in range(0, 200_001, 20_000)]

        def round_trip(name: str) -> None:
            keys = [f"{name}/{number}" for number in range(len(views))]
            assert store.put_many(list(zip(keys, views, strict=True))) == [None] * len(views)
            for key, view in zip(keys, views, strict=True):
                assert store.get(key) == view.tobytes()

        if pool == "alone":
            round_trip("one")
            return
        failures: list[BaseException] = []

        def guarded(name: str) -> None:
            try:
                round_trip(name)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(f"thread {number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failures == []


@pytest.mark.parametrize(
    ("local_reads", "lent", "path"),
    [("shm", True, "shm"), ("cma", False, "cma"), ("off", False, "tcp"), ("auto", True, "self")],
)
def test_offsets_beyond_four_gib(local_reads: str, lent: bool, path: str) -> None:
    size = 4 * GIB + (1 << 20)  # never touched but where the test writes
    with make_engine(local_reads) as owner, make_engine(local_reads) as reader:
        if path == "self":
            reader = owner
        buffers: list[memoryview] = []
        regions: list[moontide.Region | moontide.Arena] = []
        for engine, name in ((owner, "theirs"), (reader, "ours")):
            if lent:
                regions.append(engine.allocate(size, name=name, writable=True))
                buffers.append(regions[-1].buffer)  # type: ignore[union-attr]
            else:
                buffers.append(memoryview(mmap.mmap(-1, size)))
                regions.append(engine.register(buffers[-1], name=name, writable=True))
        theirs, ours = buffers
        remote = reader.open(owner.address).region("theirs")
        assert remote.length == size
        for offset in (4 * GIB - 5, size - 4096, 17):
            theirs[offset : offset + 4096] = expected = os.urandom(4096)
            transfer = reader.read([((regions[1], size - 5000), remote, offset, 4096)])
            transfer.wait(10)
            assert transfer.path == path
            assert ours[size - 5000 : size - 904] == expected
            ours[4 * GIB - 9 : 4 * GIB - 1] = b"boundary"
            reader.write([((regions[1], 4 * GIB - 9), remote, offset, 8)]).wait(10)
            assert theirs[offset : offset + 8] == b"boundary"
        with pytest.raises(errors.Denied):
            reader.read([((regions[1], 0), remote, size - 1, 2)]).wait(10)
        del ours, theirs
        buffers.clear()


@pytest.mark.cluster
def test_an_unregistration_that_waits_names_the_transfer_the_peer_and_the_stage() -> None:
    with Peer(local_reads="off") as peer, make_engine("off", "500ms") as engine:
        memory = bytearray(SIZE)
        region = engine.register(memory)
        link = engine.open(peer.address)
        heap = link.region("heap")
        engine.write([(memory, heap, 0, SIZE)]).wait(20)
        peer.stop()
        try:
            stuck = engine.write([(memory, heap, 0, SIZE)], timeout=30)
            with pytest.raises(errors.TimedOut, match=rf"transfer 2 with {link.address}, posted on tcp, \d+ of {SIZE}"):
                region.unregister(timeout=0.2)
            stuck.cancel()
            with pytest.raises(
                errors.TimedOut, match=rf"transfer 2 with {link.address}, over with CANCELED and not qu"
            ):
                region.unregister(timeout=0.2)
        finally:
            peer.go_on()
        region.unregister(timeout=20)
        assert stuck.quiet


def _in_child(check: Callable[[], None]) -> None:
    """Runs `check` in a forked child and fails with what it raised."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            check()
            os.write(writer, b"fine")
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode()[:4000])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        assert answer.read().decode() == "fine"
    os.waitpid(child, 0)


def _refuses(call: Callable[[], object]) -> None:
    with pytest.raises(errors.Closed, match="fork"):
        call()


def test_after_a_fork_the_childs_engine_says_so_and_the_parents_goes_on() -> None:
    with make_engine() as engine, make_engine() as other:
        memory = engine.allocate(4096, name="ours")
        theirs = other.register(bytearray(4096), name="theirs")
        link = engine.open(other.address)
        remote = link.region("theirs")
        prepared = engine.prepare("read", [(memory, remote, 0, 16)])
        hold = [(memory, remote, 0, 16)]

        def child() -> None:
            for call in (
                lambda: engine.read(hold),
                lambda: engine.write(hold),
                prepared.post,
                lambda: engine.open(other.address),
                lambda: engine.register(bytearray(16)),
                lambda: engine.allocate(4096),
                lambda: memory.region.unregister(),
                lambda: link.claim(b"x"),
                lambda: engine.hold(b"x", b"", ttl=1),
                engine.stats,
            ):
                _refuses(call)
            assert engine.closed
            engine.close()
            with make_engine() as fresh:  # a new one works
                fresh.register(bytearray(16))

        _in_child(child)
        engine.read(hold).wait(10)
        prepared.post().wait(10)
        theirs.unregister(timeout=10)
        assert link.open


def test_after_a_fork_the_childs_store_says_so_and_the_parents_goes_on() -> None:
    with moontide.Store(lend=8 << 20, config=CONFIG) as store:
        store.put("key", b"value")

        def child() -> None:
            for call in (
                lambda: store.put("other", b"value"),
                lambda: store.get("key"),
                lambda: store.put_many([("other", b"value")]),
                lambda: store.exists("key"),
                lambda: store.remove("key"),
                store.list,
                store.stats,
            ):
                _refuses(call)
            assert [type(item) for item in store.get_many(["key"])] == [errors.Closed]
            store.close()
            with moontide.Store(lend=8 << 20, config=CONFIG) as fresh:
                fresh.put("key", b"child")
                assert fresh.get("key") == b"child"

        _in_child(child)
        assert store.get("key") == b"value"
        store.put("other", bytes(100_000))
        assert len(store.get("other")) == 100_000


FORKS = """
import os, sys, moontide
engine, store = moontide.Engine(), moontide.Store(lend=8 << 20)
store.put("key", b"value")
memory = engine.allocate(4096)
child = os.fork()
if child == 0:
    sys.exit(3)  # with all that runs at the end of an interpreter
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert store.get("key") == b"value"
print("fine")
"""


def test_a_forked_child_may_end_as_processes_do() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def test_after_a_fork_awaiting_says_so_and_the_parent_goes_on() -> None:
    async def main() -> None:
        async with moontide.AsyncStore(lend=8 << 20, config=CONFIG) as store:
            with make_engine() as engine, make_engine() as other:
                memory = engine.allocate(4096, name="ours")
                other.register(bytearray(4096), name="theirs")
                remote = engine.open(other.address).region("theirs")
                await store.put("key", b"value")

                async def refused() -> None:
                    with pytest.raises(errors.Closed, match="fork"):
                        await store.get("key")
                    with pytest.raises(errors.Closed, match="fork"):
                        await engine.read([(memory, remote, 0, 16)])
                    with pytest.raises(errors.Closed, match="fork"):
                        await engine.open_async(other.address)

                def child() -> None:
                    # the parent's loop is still running as far as this thread knows; a child has one of its own
                    asyncio._set_running_loop(None)
                    asyncio.new_event_loop().run_until_complete(refused())

                _in_child(child)
                assert await store.get("key") == b"value"
                await engine.read([(memory, remote, 0, 16)])

    asyncio.run(main())


def test_regions_of_a_peer_come_and_go_by_the_thousand() -> None:
    with make_engine() as engine, make_engine() as other:
        memory = bytearray(64 * 2000)
        regions = [engine.register(memoryview(memory)[64 * i : 64 * i + 64], name=f"r{i}") for i in range(2000)]
        link = other.open(engine.address)
        wait_for(lambda: len(link.regions) == 2000)
        target = bytearray(64)
        other.register(target)
        memory[64 * 1234] = 42
        other.read([(target, link.region("r1234"), 0, 64)]).wait(10)
        assert target[0] == 42
        for region in regions:
            region.unregister(timeout=10)
        wait_for(lambda: not link.regions)
