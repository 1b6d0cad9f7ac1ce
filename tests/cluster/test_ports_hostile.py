"""Every port, with and without a secret and TLS, against bytes and crowds that no honest peer sends: the process lives,
its memory is bounded, strangers are ended, and others are served meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import moontide
from support import hostile
from support.certificates import Authority
from support.peer_process import Peer
from support.pool_process import Server, free_port
from support.waiting import wait_for

pytestmark = pytest.mark.cluster

ROOM = 160 << 20  # more than this no crowd may cost
CROWD = 10_000


@dataclass
class Target:
    """A port of a process, and a way to see that honest peers are served."""

    address: str
    pid: int
    stack: ExitStack
    config: moontide.Config
    kind: str

    def serves(self) -> bool:
        if self.kind == "engine":
            with moontide.Engine(config=self.config) as engine:
                link = engine.open(self.address, timeout=20)
                memory = engine.allocate(4096, name="ours")
                engine.read([(memory, link.region("heap"), 0, 4096)], timeout=20).wait(20)
        else:
            with moontide.Store(self.address, config=self.config) as store:
                store.exists("key")
        return True


@pytest.fixture(params=["engine", "engine secret", "engine tls", "master", "master secret", "master tls"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    kind, _, guard = request.param.partition(" ")
    flags = {}
    if guard:
        secret = tmp_path / "secret"
        secret.write_bytes(b"the cluster's own secret")
        secret.chmod(0o600)
        flags["secret_file"] = str(secret)
    if guard == "tls":
        flags |= Authority(tmp_path).issue("everybody")
    with ExitStack() as stack:
        stack.enter_context(hostile.descriptors(CROWD))  # the target has as many
        if kind == "engine":
            peer = stack.enter_context(Peer(size=1 << 20, config=flags))
            address, pid = peer.address, peer.process.pid
        else:
            arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
            server = Server("master", "--listen", f"127.0.0.1:{free_port()}", *arguments)
            stack.callback(server.close)
            address, pid = server.address, server.process.pid
        yield Target(address, pid, stack, moontide.load_config({"connect_timeout": "20s", **flags}, environ={}), kind)


def test_bytes_that_nobody_sends(target: Target) -> None:
    assert target.serves()
    before = hostile.resident_bytes(target.pid)
    for seed in range(3):
        assert hostile.assault(target.address, seed) > 100
    assert target.serves()
    assert hostile.resident_bytes(target.pid) - before < ROOM


def test_a_crowd_that_says_nothing(target: Target) -> None:
    assert target.serves()
    before = hostile.resident_bytes(target.pid)
    crowd = hostile.crowd(target.address, CROWD)
    assert wait_for(target.serves, 30, "service beside the crowd")
    assert hostile.resident_bytes(target.pid) - before < ROOM
    # nobody stays for long
    for stranger in crowd:
        assert hostile.ended(stranger, 20)
    assert target.serves()


def test_slow_senders_of_long_messages(target: Target) -> None:
    assert target.serves()
    before = hostile.resident_bytes(target.pid)
    slow = hostile.crowd(target.address, 500)
    # each says that megabytes follow, and sends as much as is taken without waiting
    for index, stranger in enumerate(slow):
        message = list(hostile.MESSAGES.values())[index % len(hostile.MESSAGES)]
        stranger.settimeout(0)
        with suppress(OSError):
            stranger.send(hostile.header(1 << 24, message=message))
            stranger.send(bytes(1 << 18))
    assert target.serves()
    assert hostile.resident_bytes(target.pid) - before < ROOM
    for stranger in slow:
        assert hostile.ended(stranger, 20)
    assert target.serves()


def test_an_answer_that_nobody_reads(target: Target) -> None:
    """Requests without end on connections whose answers stay unread."""
    rude = hostile.crowd(target.address, 50)
    question = hostile.header(4, message=hostile.MESSAGES["probe"]) + b"\1\0\1\0"
    before = hostile.resident_bytes(target.pid)
    for stranger in rude:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stranger.settimeout(0)
        with suppress(OSError):
            for _ in range(200):
                stranger.send(question * 100)
    assert target.serves()
    assert hostile.resident_bytes(target.pid) - before < ROOM
    # one that has no hello to say is not answered for long
    for stranger in rude:
        assert hostile.ended(stranger, 20)
