"""Writing a peer's memory by its leave: quick, and never a byte into memory that was given back."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
from collections.abc import Iterator

import pytest

import moontide
from moontide import errors
from support.peer_process import SIZE, Peer, pattern
from support.waiting import wait_for

pytestmark = pytest.mark.cluster

LARGE = 96 << 20  # long enough to be stopped in the middle of


@pytest.fixture(params=["shm", "cma"])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine() -> Iterator[moontide.Engine]:
    config = moontide.load_config({"progress_timeout": "500ms"}, environ={})
    with moontide.Engine(config=config) as engine:
        yield engine


def lend(engine: moontide.Engine, path: str, nbytes: int) -> tuple[moontide.Region, memoryview]:
    """Memory that peers of this host may write: an arena they map, or memory of this process."""
    if path == "shm":
        arena = engine.allocate(nbytes, name="lent", writable=True, direct_write=True)
        return arena.region, arena.buffer
    memory = bytearray(nbytes)
    return engine.register(memory, name="lent", writable=True, direct_write=True), memoryview(memory)


def test_the_writer_writes_itself(engine: moontide.Engine, path: str) -> None:
    with Peer(direct_write=True) as peer:
        link = engine.open(peer.address)
        source = engine.register(pattern(SIZE, 1), name="ours")
        region = link.region("arena" if path == "shm" else "heap")
        transfer = engine.write([((source, 3), region, 5, SIZE - 8)])
        transfer.wait(20)
        assert transfer.path == path
        expected = bytes(5) + pattern(SIZE, 1)[3 : SIZE - 5] + bytes(3)
        assert peer.ask("digest", region=region.name) == hashlib.sha256(expected).hexdigest()
        assert peer.ask("stats")["leaves"] == 2
        assert peer.ask("stats")["pulls_served"] == 0


def test_without_leave_the_owner_pulls(engine: moontide.Engine) -> None:
    with Peer() as peer:
        source = engine.register(pattern(SIZE, 1), name="ours")
        link = engine.open(peer.address)
        for name in ("arena", "heap"):
            transfer = engine.write([(source, link.region(name), 0, SIZE)])
            transfer.wait(20)
            assert transfer.path == "pull"
        assert peer.ask("stats")["leaves"] == 0


def test_a_writer_gives_back_what_is_unregistered(engine: moontide.Engine, path: str) -> None:
    region, memory = lend(engine, path, SIZE)
    with Peer() as peer:
        peer.ask("open", address=engine.address)
        wait_for(lambda: engine.stats()["leaves"] == 1, 10, "the leave")
        engine.unregister(region, timeout=20)
        assert engine.stats()["leaves"] == 0
        memory[:] = b"\x11" * SIZE
        assert "NotFound" in str(peer.ask("start", op="write", length=SIZE, region="lent"))
        assert peer.process.poll() is None


def stop_in_the_middle(peer: Peer, memory: memoryview) -> None:
    """Stops the peer while it writes: the first byte is there, the last is not."""
    for _ in range(50):
        memory[0] = memory[-1] = 0
        peer.ask("start", op="write", length=LARGE, region="lent")
        peer.send("finish")  # a thread of the peer copies, beside the one that hears of withdrawn regions
        wait_for(lambda: memory[0] != 0, 20, "the first byte")
        peer.stop()
        if memory[-1] == 0:
            return
        peer.go_on()
        peer.answer()
    pytest.fail("the writer was never caught in the middle")


def test_a_stopped_writer_keeps_the_memory_until_it_is_done(engine: moontide.Engine, path: str) -> None:
    region, memory = lend(engine, path, LARGE)
    with Peer(size=LARGE) as peer:
        peer.ask("fill", region="heap", seed=1)
        peer.ask("open", address=engine.address)
        stop_in_the_middle(peer, memory)
        with pytest.raises(errors.TimedOut, match=rf"the leave of .*process {peer.process.pid}\) to write it"):
            engine.unregister(region, timeout=0.3)
        assert engine.stats()["hostages"] == 1
        peer.go_on()
        engine.unregister(region, timeout=20)
        assert engine.stats()["hostages"] == engine.stats()["leaves"] == 0
        memory[:] = b"\x11" * LARGE
        peer.answer()  # whatever the outcome
        assert memory == b"\x11" * LARGE


def test_a_dead_writer_gives_back_even_if_a_child_of_it_lives(engine: moontide.Engine, path: str) -> None:
    region, memory = lend(engine, path, LARGE)
    with Peer(size=LARGE) as peer:
        peer.ask("fill", region="heap", seed=1)
        peer.ask("open", address=engine.address)
        child = peer.ask("fork_a_sleeper")
        try:
            stop_in_the_middle(peer, memory)
            with pytest.raises(errors.TimedOut):
                engine.unregister(region, timeout=0.3)
            peer.kill()
            engine.unregister(region, timeout=20)
        finally:
            os.kill(child, signal.SIGKILL)
        memory[:] = b"\x11" * LARGE
        assert engine.stats()["leaves"] == 0


def test_a_lost_link_is_no_fence(engine: moontide.Engine, path: str) -> None:
    region, memory = lend(engine, path, LARGE)
    with Peer(size=LARGE) as peer:
        peer.ask("fill", region="heap", seed=1)
        link = engine.open(peer.address)
        peer.ask("open", address=engine.address)
        stop_in_the_middle(peer, memory)
        link.close()
        assert engine.stats()["leaves"] >= 1
        with pytest.raises(errors.TimedOut):
            engine.unregister(region, timeout=0.3)
        peer.go_on()
        engine.unregister(region, timeout=20)


def test_closing_waits_for_writers_and_never_frees_what_a_stopped_one_may_write(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = moontide.load_config({"progress_timeout": "500ms"}, environ={})
    with Peer(size=LARGE) as peer:
        peer.ask("fill", region="heap", seed=1)
        engine = moontide.Engine(config=config)
        lend(engine, path, SIZE)
        peer.ask("open", address=engine.address)
        engine.close()
        assert not caplog.records

        engine = moontide.Engine(config=config)
        _, memory = lend(engine, path, LARGE)
        peer.ask("open", address=engine.address)
        stop_in_the_middle(peer, memory)
        with caplog.at_level(logging.WARNING, "moontide"):
            engine.close()
        assert "may still write 1 regions" in caplog.text
        memory.release() if path == "shm" else None
        peer.go_on()
        peer.answer()
        assert peer.process.poll() is None


def test_leave_needs_both_rights() -> None:
    with moontide.Engine() as engine:
        for rights in ({"readable": False, "writable": True}, {}):
            with pytest.raises(errors.Invalid, match="readable and writable"):
                engine.register(bytearray(64), direct_write=True, **rights)
            with pytest.raises(errors.Invalid, match="readable and writable"):
                engine.allocate(64, direct_write=True, **rights)
