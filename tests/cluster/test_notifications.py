"""Notifications: on their own and behind a transfer, bounded, with both ends in real processes or in one."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import moontide
from moontide import errors
from support.peer_process import Peer

pytestmark = pytest.mark.cluster

SIZE = 1 << 20


@pytest.fixture(params=["auto", "off"], ids=["one host", "tcp"])
def engines(request: pytest.FixtureRequest) -> Iterator[tuple[moontide.Engine, moontide.Engine]]:
    config = moontide.load_config({"local_reads": request.param, "progress_timeout": "500ms"}, environ={})
    with moontide.Engine(config=config) as here, moontide.Engine(config=config) as there:
        yield here, there


def test_a_notification_arrives_once_and_in_order(engines: tuple[moontide.Engine, moontide.Engine]) -> None:
    here, there = engines
    peer = here.open(there.address)
    for number in range(100):
        peer.notify(str(number).encode())
    assert there.receive(timeout=10) == [(here.instance_id, str(number).encode()) for number in range(100)]
    with pytest.raises(errors.TimedOut):
        there.receive(timeout=0.05)


def test_notifications_of_many_threads_arrive_whole_and_each_in_order(
    engines: tuple[moontide.Engine, moontide.Engine],
) -> None:
    here, there = engines
    peer = here.open(there.address)
    many, each = 8, 500

    def tell(sender: int) -> None:
        for number in range(each):
            text = f"{sender} {number} ".encode() * 20
            peer.notify(text + hashlib.sha256(text).digest())

    with ThreadPoolExecutor(many) as pool:
        told = [pool.submit(tell, sender) for sender in range(many)]
        seen: dict[int, list[int]] = {sender: [] for sender in range(many)}
        while sum(map(len, seen.values())) < many * each:
            for _, payload in there.receive(timeout=20):
                text, digest = payload[:-32], payload[-32:]
                assert hashlib.sha256(text).digest() == digest
                sender, number = map(int, text.split()[:2])
                seen[sender].append(number)
        for each_told in told:
            each_told.result()
    assert all(numbers == list(range(each)) for numbers in seen.values())


def test_a_write_notifies_when_its_bytes_are_there(engines: tuple[moontide.Engine, moontide.Engine]) -> None:
    here, there = engines
    target = bytearray(SIZE)
    with_target = there.register(target, name="target", writable=True)
    memory = here.allocate(SIZE, name="source")
    peer = here.open(there.address)
    for number in range(1, 30):
        memory.buffer[:] = bytes([number]) * SIZE
        transfer = here.write([(memory, peer.region("target"), 0, SIZE)], notify=bytes([number]))
        [(sender, payload)] = there.receive(timeout=10)
        assert (sender, payload) == (here.instance_id, bytes([number]))
        assert target == bytes([number]) * SIZE
        transfer.wait(10)
    with_target.unregister(timeout=10)


def test_a_failed_write_notifies_nobody(engines: tuple[moontide.Engine, moontide.Engine]) -> None:
    here, there = engines
    region = there.register(bytearray(64), name="target", writable=True)
    memory = here.allocate(64, name="source")
    remote = here.open(there.address).region("target")
    failed = here.write([(memory, remote, 0, 64), (memory, remote, 60, 64)], notify=b"no")
    with pytest.raises(errors.Denied):
        failed.wait(10)
    region.unregister(timeout=10)
    with pytest.raises(errors.TimedOut):
        there.receive(timeout=0.1)


def test_receiving_without_blocking_the_event_loop(engines: tuple[moontide.Engine, moontide.Engine]) -> None:
    here, there = engines

    async def run() -> list[tuple[str, bytes]]:
        waiting = asyncio.ensure_future(asyncio.wait_for(_receive(there), 10))
        await asyncio.sleep(0)
        await (await here.open_async(there.address)).notify_async(b"hello")
        return await waiting

    assert asyncio.run(run()) == [(here.instance_id, b"hello")]


async def _receive(engine: moontide.Engine) -> list[tuple[str, bytes]]:
    return await engine.receive_async()


def test_what_is_too_long_or_too_much_is_refused(engines: tuple[moontide.Engine, moontide.Engine]) -> None:
    here, there = engines
    peer = here.open(there.address)
    with pytest.raises(errors.TooLarge):
        peer.notify(bytes((1 << 20) + 1))
    for _ in range(64):
        peer.notify(bytes(1 << 20))
    with pytest.raises(errors.Overloaded):
        peer.notify(b"one more")
    assert len(there.receive(timeout=10)) == 64
    peer.notify(b"now it fits")
    assert there.receive(timeout=10) == [(here.instance_id, b"now it fits")]


def test_a_stopped_peer_is_not_notified_and_says_so() -> None:
    config = moontide.load_config({"progress_timeout": "500ms"}, environ={})
    with Peer() as process, moontide.Engine(config=config) as engine:
        peer = engine.open(process.address)
        process.stop()
        with pytest.raises(errors.MoontideError) as caught:
            peer.notify(b"are you there")
        assert isinstance(caught.value, (errors.TimedOut, errors.PeerLost))
        process.go_on()
