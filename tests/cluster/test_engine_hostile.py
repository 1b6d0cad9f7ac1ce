"""Peers that lie, and callers that do the odd thing at the worst moment."""

from __future__ import annotations

import asyncio
import mmap
import socket
import struct
import threading

import pytest

import moontide
from moontide import errors
from support.lying_peer import FENCE, LyingPeer
from support.peer_process import SIZE, Peer
from support.waiting import wait_for

pytestmark = pytest.mark.cluster

CONFIG = moontide.load_config({"progress_timeout": "500ms"}, environ={})
TCP = moontide.load_config({"local_reads": "off", "progress_timeout": "2s"}, environ={})

MAGIC = 0x314D544D
PROBE, HELLO, REGIONS = 1, 2, 4


class Liar:
    """Speaks the control protocol by hand (csrc/wire/frame.h, csrc/wire/engine_messages.h)."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=10)

    def send(self, kind: int, message: int, payload: bytes, number: int = 1) -> None:
        self.socket.sendall(struct.pack("<IIBBHIQ", MAGIC, len(payload), kind, 0, message, 0, number) + payload)

    def ask(self, message: int, payload: bytes) -> tuple[int, bytes]:
        """(code, reply)"""
        self.send(1, message, payload)
        while True:
            header = self._exactly(24)
            _, length, kind, _, code, _, _ = struct.unpack("<IIBBHIQ", header)
            body = self._exactly(length)
            if kind == 2:
                return code, body

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError("closed by the engine")
            data += part
        return data

    def instance(self) -> bytes:
        code, reply = self.ask(PROBE, struct.pack("<HH", 1, 1))
        assert code == 0
        return reply[4:20]

    def hello(self, instance: bytes, address: bytes = b"127.0.0.1:1") -> tuple[int, bytes]:
        text = struct.pack("<I", len(address)) + address
        return self.ask(HELLO, struct.pack("<HH", 1, 1) + instance + text + b"\0" + struct.pack("<II", 0, 0))


def closed(liar: Liar) -> bool:
    try:
        while liar.socket.recv(65536):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_nobody_becomes_this_engine_by_saying_its_id() -> None:
    with moontide.Engine(config=CONFIG) as engine:
        liar = Liar(engine.address)
        code, _ = liar.hello(liar.instance())
        assert code == errors.Denied.number
        assert engine.stats()["links"] == 0
        honest = Liar(engine.address)
        code, _ = honest.hello(struct.pack("<QQ", 7, 9))
        assert code == 0
        assert engine.stats()["links"] == 1


@pytest.mark.parametrize("what", ["name", "key", "garbage"])
def test_a_peer_cannot_fill_the_memory_with_its_regions(what: str) -> None:
    with moontide.Engine(config=CONFIG) as engine:
        liar = Liar(engine.address)
        assert liar.hello(struct.pack("<QQ", 7, 9))[0] == 0
        name = b"x" * (1 << 20 if what == "name" else 8)
        key = b"k" * (1 << 20 if what == "key" else 8)
        region = struct.pack("<IQQBI", 1, 1, 4096, 3, 0) + struct.pack("<I", len(name)) + name
        region += struct.pack("<II", 1, 3) + b"cma" + struct.pack("<I", len(key)) + key
        liar.send(3, REGIONS, struct.pack("<I", 1) + (region if what != "garbage" else region[:-1]))
        assert closed(liar)
        wait_for(lambda: engine.stats()["links"] == 0)


def test_memory_that_is_read_only_is_never_written() -> None:
    with moontide.Engine(config=CONFIG) as engine, Peer() as peer:
        remote = engine.open(peer.address).region("heap")
        constant = bytes(4096)
        with pytest.raises(errors.Invalid, match="read-only"):
            engine.register(constant, writable=True)
        region = engine.register(constant, name="constant")
        with pytest.raises(errors.Denied, match="read-only"):
            engine.read([(region, remote, 0, 4096)]).wait(10)
        engine.write([(region, remote, 0, 4096)]).wait(10)
        assert constant == bytes(4096)
        with mmap.mmap(-1, 4096, prot=mmap.PROT_READ) as page:
            view = memoryview(page)
            mapped = engine.register(view, name="page")
            with pytest.raises(errors.Denied):
                engine.read([(mapped, remote, 0, 16)]).wait(10)
            mapped.unregister(timeout=10)
            del mapped, view
    with moontide.Store(lend=1 << 20, config=CONFIG) as store:
        store.put("key", b"value")
        with pytest.raises(errors.Invalid, match="read-only"):
            store.get_into("key", constant)
        with pytest.raises(errors.Denied, match="register it first"):
            store.put_parts(["wild"], [[(4096, 100)]])


def test_cancelling_one_write_leaves_the_others_alone() -> None:
    with Peer(local_reads="off") as peer, moontide.Engine(config=TCP) as engine:
        remote = engine.open(peer.address).region("heap")
        memory = engine.allocate(SIZE, name="ours")
        for _ in range(5):
            doomed = engine.write([(memory, remote, 0, SIZE)])
            others = [engine.write([(memory, remote, 0, 1 << 20)]) for _ in range(3)]
            doomed.cancel()
            for other in others:
                other.wait(20)
            doomed.wait_quiet(20)


def test_a_small_transfer_gets_its_turn_beside_a_long_one() -> None:
    with Peer(local_reads="off", size=64 << 20) as peer, moontide.Engine(config=TCP) as engine:
        remote = engine.open(peer.address).region("heap")
        memory = engine.allocate(64 << 20, name="ours")
        long = engine.read([(memory, remote, 0, 64 << 20)] * 12)
        small = engine.read([(memory, remote, 0, 64)])
        small.wait(20)
        assert not long.done, "it overtook nothing"
        long.wait(60)


def test_a_peer_that_lives_and_answers_nothing_blocks_nobody() -> None:
    liar = LyingPeer(region_bytes=256 << 20)
    try:
        with moontide.Engine(config=CONFIG) as engine, Peer() as honest:
            memory = engine.register(bytearray(80 << 20), name="ours")
            theirs, heap = engine.open(liar.address).region("heap"), engine.open(honest.address).region("heap")
            many = engine.write([(memory, theirs, 0, 80 << 20)])
            later = engine.read([(memory, theirs, 0, 1024)])
            engine.read([(memory, heap, 0, 4096)]).wait(20)
            for transfer in (many, later):
                with pytest.raises((errors.TimedOut, errors.PeerLost)):
                    transfer.wait(20)
            later.wait_quiet(20)
            wait_for(lambda: FENCE in liar.asked, 20, "its streams are fenced")
            wait_for(lambda: engine.stats()["links"] == 1, 20, "it is given up: it does not answer the fence")
            assert not many.quiet, "what it may still land is hostage"
            assert engine.stats()["hostages"] == 1
            liar.close()
            many.wait_quiet(20)
            engine.read([(memory, heap, 0, 4096)]).wait(20)
    finally:
        liar.close()


def test_closing_an_engine_under_running_transfers_and_waiters() -> None:
    for _ in range(5):
        with Peer(size=32 << 20) as peer:
            engine = moontide.Engine(config=CONFIG)
            remote = engine.open(peer.address).region("arena")
            memory = engine.allocate(32 << 20, name="ours")
            started = threading.Barrier(3)

            def read(engine: moontide.Engine, entry: moontide.engine.Entry, started: threading.Barrier) -> None:
                started.wait(10)
                try:
                    while True:
                        engine.read([entry]).wait(20)
                except errors.MoontideError:
                    pass

            entry = (memory, remote, 0, 32 << 20)
            threads = [threading.Thread(target=read, args=(engine, entry, started)) for _ in range(2)]
            for thread in threads:
                thread.start()
            started.wait(10)
            engine.close()
            for thread in threads:
                thread.join(20)
            assert not any(thread.is_alive() for thread in threads)


def test_what_is_awaited_ends_when_the_engine_closes() -> None:
    async def main() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen(1)
            engine = moontide.Engine(config=CONFIG)
            opening = asyncio.ensure_future(
                _wait(engine.open_async(f"127.0.0.1:{silent.getsockname()[1]}", timeout=30))
            )
            await asyncio.sleep(0)
            engine.close()
            with pytest.raises(errors.Closed):
                await asyncio.wait_for(opening, 10)

    async def _wait(operation: moontide.Operation[moontide.Peer]) -> moontide.Peer:
        return await operation

    asyncio.run(main())


def test_what_is_read_after_an_engine_closed_is_refused() -> None:
    owner = moontide.Engine(config=CONFIG)
    with moontide.Engine(config=CONFIG) as reader:
        theirs = owner.allocate(4096, name="theirs")
        link = reader.open(owner.address)
        remote = link.region("theirs")
        memory = reader.allocate(4096, name="ours")
        reader.read([(memory, remote, 0, 4096)]).wait(10)
        owner.close()
        theirs.buffer[:] = b"\xff" * 4096  # the memory is its owner's again
        with pytest.raises((errors.PeerLost, errors.Stale)):
            reader.read([(memory, remote, 0, 4096)]).wait(10)


def test_odd_timeouts_mean_what_they_say() -> None:
    with moontide.Engine(config=CONFIG) as engine, Peer() as peer:
        link = engine.open(peer.address, timeout=float("inf"))
        memory = engine.allocate(4096, name="ours")
        engine.read([(memory, link.region("heap"), 0, 16)], timeout=1e12).wait(10)
        engine.hold(b"for ever", b"", ttl=float("inf"))
        with pytest.raises(errors.Invalid, match="not a number"):
            engine.read([(memory, link.region("heap"), 0, 16)], timeout=float("nan"))
        with pytest.raises(errors.Invalid):
            engine.register(memory.buffer, name="x" * 300)
