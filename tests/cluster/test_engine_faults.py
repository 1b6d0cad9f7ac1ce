"""The engine when peers die, stop, restart or are no peers at all: an outcome, a cause, and the memory back."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

import moontide
from moontide import errors
from support.peer_process import SIZE, LostMemory, Peer
from support.waiting import wait_for

pytestmark = pytest.mark.cluster


@pytest.fixture(params=["auto", "off"], ids=["one host", "tcp"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(mode: str) -> Iterator[moontide.Engine]:
    config = moontide.load_config({"local_reads": mode, "progress_timeout": "500ms"}, environ={})
    with moontide.Engine(config=config) as engine:
        yield engine


def assert_idle(engine: moontide.Engine) -> None:
    wait_for(lambda: engine.stats()["hostages"] == 0, 10, "every transfer quiet")


def test_a_killed_peer_fails_its_transfers_and_nothing_else(engine: moontide.Engine, mode: str) -> None:
    with Peer(local_reads=mode) as dead, Peer(local_reads=mode) as alive:
        memory = engine.allocate(SIZE, name="ours")
        doomed, fine = engine.open(dead.address), engine.open(alive.address)
        heap = doomed.region("heap")
        engine.write([(memory, heap, 0, SIZE)]).wait(20)
        dead.stop()
        stuck = engine.write([(memory, heap, 0, SIZE)], timeout=30)
        for _ in range(20):
            engine.read([(memory, fine.region("heap"), 0, 65536)]).wait(10)
        assert not stuck.done
        dead.kill()
        with pytest.raises(errors.MoontideError) as caught:
            stuck.wait(20)
        assert isinstance(caught.value, (errors.PeerLost, errors.Unavailable))
        stuck.wait_quiet(10)
        with pytest.raises(errors.PeerLost, match="open it again"):
            engine.read([(memory, heap, 0, 16)]).wait(10)
        engine.read([(memory, fine.region("heap"), 0, 16)]).wait(10)
        assert not doomed.open
        with pytest.raises(errors.MoontideError):
            engine.open(dead.address, timeout=2)
        assert_idle(engine)


def test_a_stopped_peer_times_out_and_may_come_back(engine: moontide.Engine, mode: str) -> None:
    with Peer(local_reads=mode) as process:
        memory = engine.allocate(SIZE, name="ours")
        link = engine.open(process.address)
        engine.write([(memory, link.region("heap"), 0, 4096)]).wait(20)
        process.stop()
        transfer = engine.write([(memory, link.region("heap"), 0, SIZE)])
        with pytest.raises(errors.TimedOut, match="no progress for 500 ms"):
            transfer.wait(20)
        assert [type(result) for result in transfer.results] == [errors.TimedOut]
        # no sign of life either: the link is given up
        wait_for(lambda: not link.open)
        # but what the peer has of it may land whenever it goes on, so the memory is a hostage until then
        assert not transfer.quiet
        assert engine.stats()["hostages"] == 1
        process.go_on()
        transfer.wait_quiet(20)
        again = wait_for(lambda: _try_open(engine, process.address), 20, "a new link")
        memory.buffer[:] = b"\x5a" * SIZE
        engine.write([(memory, again.region("heap"), 0, SIZE)]).wait(20)
        process.ask("stats")
        target = engine.allocate(SIZE, name="back")
        engine.read([(target, again.region("heap"), 0, SIZE)]).wait(20)
        assert bytes(target.buffer) == bytes(memory.buffer)
        assert_idle(engine)


def _try_open(engine: moontide.Engine, address: str) -> moontide.Peer | None:
    try:
        return engine.open(address, timeout=2)
    except errors.MoontideError:
        return None


def test_a_peer_restarted_on_its_port_is_another_peer(engine: moontide.Engine, mode: str) -> None:
    with Peer(local_reads=mode) as first:
        address = first.address
        link = engine.open(address)
        old, identity = link.region("heap"), link.instance_id
        memory = engine.allocate(4096, name="ours")
        first.kill()
        wait_for(lambda: not link.open)
        with Peer(local_reads=mode, listen=address) as second:
            again = engine.open(address, timeout=5)
            assert again.instance_id != identity
            second.ask("fill", region="heap", seed=1)
            with pytest.raises(errors.PeerLost):
                engine.read([(memory, old, 0, 4096)]).wait(10)
            engine.read([(memory, again.region("heap"), 0, 4096)]).wait(10)


def test_unregistered_memory_is_not_reached(engine: moontide.Engine, mode: str) -> None:
    with Peer(local_reads=mode) as process:
        link = engine.open(process.address)
        heap = link.region("heap")
        memory = engine.allocate(4096, name="ours")
        process.ask("unregister_heap")
        with pytest.raises(errors.Stale):
            engine.read([(memory, heap, 0, 4096)]).wait(10)
        wait_for(lambda: "heap" not in link.regions)


@pytest.mark.parametrize("whose", ["the peer's", "ours"])
def test_memory_that_went_away_costs_those_who_use_it(engine: moontide.Engine, mode: str, whose: str) -> None:
    with Peer(local_reads=mode) as peer:
        digest = peer.ask("fill", region="heap", seed=5)
        memory = engine.register(bytearray(SIZE), writable=True, name="ours")
        link = engine.open(peer.address)
        if whose == "ours":
            gone = LostMemory(SIZE)
            lost = engine.register((gone.address, gone.nbytes), name="lost")
            gone.lose()
            bad = [engine.write([(lost, link.region("heap"), i << 20, 1 << 20)]) for i in range(4)]
        else:
            peer.ask("register_lost", name="lost")
            remote = link.wait_region("lost", timeout=10)
            bad = [engine.read([(memory, remote, i << 20, 1 << 20)]) for i in range(4)]
        good = [engine.read([(memory, link.region("heap"), 0, SIZE)]) for _ in range(8)]
        for transfer in bad:
            with pytest.raises((errors.Denied, errors.Stale)):
                transfer.wait(20)
        for transfer in good:
            transfer.wait(20)
        assert peer.ask("digest", region="heap") == digest
        assert_idle(engine)


def test_holds_end_in_one_way_each(engine: moontide.Engine, mode: str) -> None:
    with Peer(local_reads=mode) as holder, Peer(local_reads=mode) as reader:
        for name, ttl in (("kept", 30), ("short", 0.2), ("orphan", 30)):
            holder.ask("hold", hold_id=name, ttl=ttl)
        link = engine.open(holder.address)
        with pytest.raises(errors.NotFound):
            link.claim(b"unknown", timeout=5)
        wait_for(lambda: ["short", "expired"] in holder.ask("drain_holds"), 10, "the expiry")
        with pytest.raises(errors.NotFound):
            link.claim(b"short", timeout=5)
        assert link.claim(b"kept", timeout=5) == b"payload of kept"
        reader.ask("open", address=holder.address)
        assert "Denied" in reader.ask("claim", hold_id="kept")["error"]
        assert reader.ask("claim", hold_id="orphan") == "payload of orphan"
        link.release(b"kept", timeout=5)
        with pytest.raises(errors.Expired):
            link.release(b"kept", timeout=5)
        reader.kill()
        ended: list[tuple[str, str]] = []

        def all_ended() -> bool:
            ended.extend(tuple(item) for item in holder.ask("drain_holds"))
            return len(ended) == 2

        wait_for(all_ended, 10, "both ends")
        assert sorted(ended) == [("kept", "released"), ("orphan", "peer_lost")]


def test_a_claimed_hold_is_renewed_until_its_reader_stops(mode: str) -> None:
    with Peer(local_reads=mode) as holder, Peer(local_reads=mode) as reader:
        holder.ask("hold", hold_id="short", ttl=0.6)
        reader.ask("open", address=holder.address)
        assert reader.ask("claim", hold_id="short") == "payload of short"
        waited = threading.Event()
        assert not waited.wait(1.5)  # several times the ttl
        assert holder.ask("drain_holds") == []
        reader.stop()
        wait_for(lambda: holder.ask("drain_holds") == [["short", "expired"]], 10, "the expiry")
        reader.go_on()
        assert "Expired" in reader.ask("release", hold_id="short")["error"]


GARBAGE = {
    "random bytes": os.urandom(4096),
    "nothing": b"",
    "half a header": b"MTM1" + b"\0" * 8,
    "an http request": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "length 2^31": struct.pack("<IIBBHIQ", 0x314D544D, 2**31, 1, 0, 2, 0, 1),
    "length 2^32 - 1": struct.pack("<IIBBHIQ", 0x314D544D, 2**32 - 1, 1, 0, 2, 0, 1),
    "malformed hello": struct.pack("<IIBBHIQ", 0x314D544D, 4, 1, 0, 2, 0, 1) + b"abcd",
    "promises descriptors": struct.pack("<IIBBHIQ", 0x314D544D, 0, 1, 200, 2, 0, 1),
    "a data stream of no link": struct.pack("<IIBBHIQ", 0x314D544D, 28, 1, 0, 3, 0, 1) + bytes(28),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_on_the_port_hurts_nobody(garbage: bytes) -> None:
    with Peer() as process, moontide.Engine(config=moontide.load_config({}, environ={})) as engine:
        host, port = process.address.rsplit(":", 1)
        link = engine.open(process.address)
        memory = engine.allocate(4096, name="ours")
        sockets = [socket.create_connection((host, int(port)), timeout=5) for _ in range(8)]
        for connection in sockets:
            connection.sendall(garbage)
        engine.read([(memory, link.region("heap"), 0, 4096)]).wait(10)
        for connection in sockets:
            connection.close()
        assert engine.open(process.address).open
        assert process.ask("stats")["links"] == 1


def test_thousands_of_half_open_connections_leave_the_peer_working() -> None:
    with Peer() as process, moontide.Engine(config=moontide.load_config({}, environ={})) as engine:
        host, port = process.address.rsplit(":", 1)
        sockets = []
        for _ in range(1500):
            connection = socket.socket()
            connection.settimeout(5)
            connection.connect((host, int(port)))
            sockets.append(connection)
        memory = engine.allocate(4096, name="ours")
        link = wait_for(lambda: _try_open(engine, process.address), 20, "a link beside them")
        engine.read([(memory, link.region("heap"), 0, 4096)]).wait(10)
        for connection in sockets:
            connection.close()


def test_transfers_go_on_while_others_are_dialed_that_do_not_answer() -> None:
    config = moontide.load_config({"connect_timeout": "30s"}, environ={})
    with Peer() as peer, moontide.Engine(config=config) as engine, contextlib.ExitStack() as silent:
        listeners = [silent.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(8)]
        opening = [engine.open_async(f"127.0.0.1:{each.getsockname()[1]}") for each in listeners]
        memory = engine.allocate(4096, name="ours")
        heap = engine.open(peer.address).region("heap")
        for _ in range(100):
            engine.read([(memory, heap, 0, 4096)]).wait(10)
        assert not any(operation.done for operation in opening)


def test_addresses_that_cannot_be_opened_say_why() -> None:
    with moontide.Engine(config=moontide.load_config({"connect_timeout": "500ms"}, environ={})) as engine:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            port = silent.getsockname()[1]
            with pytest.raises(errors.Unavailable):
                engine.open(f"127.0.0.1:{port}")  # bound, not listening: refused
            silent.listen(1)
            with pytest.raises(errors.TimedOut):
                engine.open(f"127.0.0.1:{port}")  # accepts and never answers
        with pytest.raises(errors.Denied, match="loopback"):
            engine.open("192.0.2.1:7000")
        with pytest.raises(errors.Denied, match="loopback"):
            moontide.Engine(config=moontide.load_config({"listen": "0.0.0.0:0", "advertise": "127.0.0.1"}, environ={}))
        for malformed in ("", "nonsense", "127.0.0.1", "127.0.0.1:99999", ":1"):
            with pytest.raises((errors.Invalid, errors.Denied, errors.Unavailable)):
                engine.open(malformed)
        with pytest.raises(errors.Unavailable, match="in use"):
            moontide.Engine(engine.address, config=moontide.load_config({}, environ={}))


def test_engines_that_open_each_other_at_once_all_get_through() -> None:
    engines = [moontide.Engine(config=moontide.load_config({}, environ={})) for _ in range(4)]
    try:
        for turn in range(10):
            barrier = threading.Barrier(len(engines))
            opened: list[moontide.Peer] = []

            def open_next(
                index: int, barrier: threading.Barrier = barrier, opened: list[moontide.Peer] = opened
            ) -> None:
                barrier.wait()
                opened.append(engines[index].open(engines[(index + 1) % len(engines)].address, timeout=10))

            threads = [threading.Thread(target=open_next, args=(index,)) for index in range(len(engines))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert len(opened) == len(engines), f"turn {turn}"
            for link in opened:
                link.close()
    finally:
        for engine in engines:
            engine.close()


def test_a_closed_engine_and_a_forked_child_say_so() -> None:
    engine = moontide.Engine(config=moontide.load_config({}, environ={}))
    memory = engine.allocate(4096, name="ours")
    link = engine.open(engine.address)
    remote = wait_for(lambda: link.regions.get("ours"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            engine.read([(memory, remote, 0, 16)])
        except errors.Closed as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    engine.read([(memory, remote, 16, 16)]).wait(10)
    engine.close()
    engine.close()
    with pytest.raises(errors.Closed):
        engine.read([(memory, remote, 0, 16)])


def test_nothing_leaks_over_many_peers() -> None:
    with moontide.Engine(config=moontide.load_config({}, environ={})) as engine:

        def fds() -> int:
            return len(os.listdir("/proc/self/fd"))

        memory = engine.allocate(4096, name="ours")

        def one_peer() -> None:
            with moontide.Engine(config=moontide.load_config({}, environ={})) as other:
                region = other.register(bytearray(4096), name="theirs")
                link = engine.open(other.address)
                engine.read([(memory, link.region("theirs"), 0, 4096)]).wait(10)
                region.unregister(timeout=10)
            wait_for(lambda: not link.open)

        for _ in range(3):
            one_peer()
        before, threads = fds(), threading.active_count()
        for _ in range(40):
            one_peer()
        wait_for(lambda: fds() <= before, 10, "descriptors back")
        assert threading.active_count() == threads
        assert engine.stats()["links"] == 0
