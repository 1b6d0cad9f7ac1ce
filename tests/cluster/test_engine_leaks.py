"""Nothing is left of peers that come, transfer and are killed; engines that all open each other at once succeed."""

from __future__ import annotations

import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import moontide
from moontide import errors
from support.peer_process import Peer
from support.short_lived import SIZE, Nursery
from support.waiting import wait_for

pytestmark = pytest.mark.cluster

CYCLES = 1000
WARM_UP = 100
GROWTH_BYTES_MAX = 6 << 20  # of resident memory over the cycles after the warm-up


def make_engine(local_reads: str) -> moontide.Engine:
    settings = {"local_reads": local_reads, "progress_timeout": "500ms"}
    return moontide.Engine(config=moontide.load_config(settings, environ={}))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def one_cycle(number: int, engine: moontide.Engine, nursery: Nursery, mode: str) -> None:
    """Connect, transfer, kill: while nothing is under way, while a write is, or while the peer reads from here."""
    memory = bytearray(SIZE)
    region = engine.register(memory)
    pid, address = nursery.spawn(local_reads=mode, reads=engine.address if number % 3 == 2 else "")
    link = engine.open(address, timeout=10)
    remote = link.region("theirs")
    engine.read([(memory, remote, 0, SIZE)]).wait(10)
    transfer = engine.write([(memory, remote, 0, SIZE)])
    if number % 3 == 0:
        transfer.wait(10)
    nursery.kill(pid)
    try:
        transfer.wait(10)
    except errors.MoontideError as error:
        assert isinstance(error, (errors.PeerLost, errors.TimedOut, errors.Unavailable)), error
    transfer.wait_quiet(10)
    wait_for(lambda: not link.open, 10, "the end of the link")
    region.unregister(timeout=10)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_thousand_peers_come_transfer_and_are_killed() -> None:
    with Nursery() as nursery, make_engine("auto") as local, make_engine("off") as remote:
        engines = {"auto": local, "off": remote}
        ours = [engine.allocate(SIZE, name="ours") for engine in engines.values()]

        def cycles(first: int, last: int) -> None:
            for number in range(first, last):
                mode = "auto" if number % 2 == 0 else "off"
                one_cycle(number, engines[mode], nursery, mode)
            wait_for(lambda: all(engine.stats()["links"] == 0 for engine in engines.values()), 20, "every link over")

        cycles(0, WARM_UP)
        before = (descriptors(), threads())
        resident = resident_bytes()
        cycles(WARM_UP, CYCLES)
        wait_for(lambda: (descriptors(), threads()) == before, 20, f"{before} descriptors and threads")
        assert resident_bytes() - resident < GROWTH_BYTES_MAX
        for engine, memory in zip(engines.values(), ours, strict=True):
            assert engine.stats()["hostages"] == 0
            assert engine.stats()["links_opened"] > CYCLES / 2
            memory.region.unregister(timeout=10)


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_eight_engines_of_one_process_open_each_other_at_once(mode: str) -> None:
    engines = [make_engine(mode) for _ in range(8)]
    try:
        memories = []
        for number, engine in enumerate(engines):
            memories.append(engine.register(bytearray([number]) * 100_000, name="ours"))
        gate = threading.Barrier(len(engines))

        def connect(number: int) -> list[int]:
            engine = engines[number]
            gate.wait(20)
            opening = [engine.open_async(other.address, timeout=20) for other in engines]
            target = bytearray(100_000)
            engine.register(target)
            seen = []
            for operation in opening:
                engine.read([(target, operation.wait(20).region("ours"), 0, 100_000)]).wait(20)
                assert target.count(target[0]) == len(target)
                seen.append(target[0])
            return seen

        with ThreadPoolExecutor(len(engines)) as pool:
            assert list(pool.map(connect, range(len(engines)), timeout=60)) == [list(range(8))] * 8
    finally:
        for engine in engines:
            engine.close()


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_eight_processes_open_each_other_at_once(mode: str) -> None:
    peers = [Peer(local_reads=mode, size=100_000) for _ in range(8)]
    try:
        digests = [peer.ask("fill", region="heap", seed=number) for number, peer in enumerate(peers)]
        addresses = [peer.address for peer in peers]
        with ThreadPoolExecutor(len(peers)) as pool:
            answers = list(pool.map(lambda peer: peer.ask("read_all", addresses=addresses), peers, timeout=60))
        assert answers == [digests] * 8
    finally:
        for peer in peers:
            peer.close()


def test_failures_and_registrations_by_the_thousand_leave_nothing() -> None:
    with make_engine("auto") as engine, make_engine("auto") as other:
        theirs = other.register(bytearray(SIZE), name="theirs")  # not writable
        ours = engine.register(bytearray(SIZE))
        remote = engine.open(other.address).region("theirs")

        def fail_and_register(times: int) -> None:
            spare = bytearray(4096)
            for _ in range(times):
                with pytest.raises(errors.Denied):
                    engine.write([(ours, remote, 0, 16)]).wait(10)
                with pytest.raises(errors.Denied):
                    engine.read([(ours, remote, SIZE, 16)]).wait(10)
                engine.register(spare).unregister(timeout=10)

        fail_and_register(500)
        before = (descriptors(), threads(), resident_bytes())
        fail_and_register(5000)
        assert (descriptors(), threads()) == before[:2]
        assert resident_bytes() - before[2] < GROWTH_BYTES_MAX
        assert not engine.dump().transfers
        assert engine.stats()["hostages"] == 0
        theirs.unregister(timeout=10)


def test_descriptors_do_not_grow_with_transfers() -> None:
    with Peer(local_reads="off") as peer, make_engine("off") as engine:
        memory = engine.register(bytearray(SIZE), writable=True)
        heap = engine.open(peer.address).region("heap")
        engine.read([(memory, heap, 0, 4096)]).wait(10)
        before = (descriptors(), threads())
        batch = engine.prepare("read", [(memory, heap, 0, 4096)])
        for _ in range(300):
            for transfer in [batch.post() for _ in range(32)]:
                transfer.wait(10)
        assert (descriptors(), threads()) == before
