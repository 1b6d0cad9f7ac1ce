"""The master's HTTP port against strangers: it answers others meanwhile, and its memory stays bounded."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from moontide.directory import Names
from support import hostile
from support.directory_servers import MasterServer
from support.waiting import wait_for

pytestmark = pytest.mark.cluster

CONNECTIONS = 10_000
INSTANCE = "a" * 32


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterServer]:
    made = MasterServer(tmp_path)
    yield made
    made.kill()


def memory_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/status").read_text().split()
    return int(fields[fields.index("VmRSS:") + 1]) * 1024


def dial(master: MasterServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", master.port), 30)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_half_open_connections_take_nobodys_place(master: MasterServer) -> None:
    names = Names(master.url, timeout=20)
    published = names.publish("decode", "127.0.0.1:1", INSTANCE, ttl=60).record
    before = memory_bytes(master.process.pid)
    with contextlib.ExitStack() as open_ones, hostile.descriptors(CONNECTIONS) as count:
        for number in range(count):
            connection = open_ones.enter_context(dial(master))
            with contextlib.suppress(OSError):
                connection.sendall(b"PUT /v1/segments/x HTTP/1.1\r\nContent-Length: 9999\r\n" + b"\r\n" * (number % 2))
            if number % 1000 == 0:
                assert names.lookup("decode") == published
        assert names.lookup("decode") == published
        assert memory_bytes(master.process.pid) - before < 64 << 20
        assert len(list(Path(f"/proc/{master.process.pid}/fd").iterdir())) < 700
    wait_for(lambda: len(list(Path(f"/proc/{master.process.pid}/fd").iterdir())) < 100, 30, "the end of them")
    names.close()


def test_noise_is_answered_or_dropped(master: MasterServer) -> None:
    chance = random.Random(7)
    names = Names(master.url, timeout=20)
    published = names.publish("decode", "127.0.0.1:1", INSTANCE, ttl=60).record
    request = (
        b"PUT /v1/segments/x HTTP/1.1\r\nHost: x\r\nContent-Length: 70\r\n\r\n"
        b'{"address":"127.0.0.1:1","instance":"' + INSTANCE.encode() + b'","ttl":9 }'
    )
    for turn in range(300):
        noise = chance.randbytes(chance.randrange(2000))
        if turn % 3:
            damaged = bytearray(request)
            for _ in range(chance.randrange(1, 6)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            noise = bytes(damaged)[: chance.randrange(len(damaged))] if turn % 3 == 2 else bytes(damaged)
        with dial(master) as connection, contextlib.suppress(OSError):
            connection.sendall(noise)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                continue
        if turn % 50 == 0:
            assert names.lookup("decode") == published
    assert names.lookup("decode") == published
    names.close()
    assert master.process.poll() is None


def test_endless_headers_and_bodies_are_cut(master: MasterServer) -> None:
    before = memory_bytes(master.process.pid)
    for head in (
        b"GET /v1/segments/x HTTP/1.1\r\nX: ",
        b"PUT /v1/segments/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9223372036854775807\r\n\r\n",
        b"PUT /v1/segments/x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
    ):
        with dial(master) as connection:
            connection.sendall(head)
            deadline = time.monotonic() + 30
            with pytest.raises(OSError):
                while time.monotonic() < deadline:
                    connection.sendall(b"x" * 65536)
        assert memory_bytes(master.process.pid) - before < 64 << 20
