"""Engines that find each other by name, over real directories, while processes and directories come and go."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import moontide
from moontide import errors
from moontide.directory import Names
from support.directory_servers import SERVERS, DirectoryServer, MasterServer
from support.peer_process import Peer
from support.pool_process import free_port
from support.waiting import wait_for

pytestmark = pytest.mark.cluster

SIZE = 1 << 20


@pytest.fixture(params=list(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DirectoryServer]:
    made = SERVERS[request.param](tmp_path)
    yield made
    made.kill()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[DirectoryServer]:
    made = MasterServer(tmp_path)
    yield made
    made.kill()


def engine(server: DirectoryServer, **flags: str) -> moontide.Engine:
    given = {"directory": server.url, "directory_ttl": "2s", "connect_timeout": "5s", **flags}
    return moontide.Engine(config=moontide.load_config(given, environ={}))


def read(reader: moontide.Engine, peer: moontide.Peer) -> str:
    """Digest of the peer's arena, as it arrives here."""
    buffer = bytearray(SIZE)
    region = reader.register(buffer)
    reader.read([(region, peer.region("arena"), 0, SIZE)]).wait(20)
    region.unregister(timeout=20)
    return hashlib.sha256(buffer).hexdigest()


def opens(reader: moontide.Engine, name: str) -> moontide.Peer | None:
    try:
        return reader.open(name)
    except errors.MoontideError:
        return None


def test_a_peer_is_found_by_its_name_and_read(server: DirectoryServer) -> None:
    with Peer(size=SIZE, directory=server.url) as peer, engine(server) as reader:
        with pytest.raises(errors.NotFound, match="prefill-0"):
            reader.open("prefill-0")
        assert peer.ask("publish", name="prefill-0") > 0
        link = reader.open("prefill-0")
        assert link.address == peer.address
        assert peer.ask("fill", region="arena", seed=1) == read(reader, link)
        assert reader.open("segment:prefill-0").instance_id == link.instance_id
        assert reader.open(peer.address).instance_id == link.instance_id
        peer.ask("close_engine")
        with pytest.raises(errors.NotFound):
            reader.open("prefill-0")


def test_a_restarted_peer_is_found_and_nobody_else_is_restarted(server: DirectoryServer) -> None:
    listen = f"127.0.0.1:{free_port()}"
    with Peer(size=SIZE, directory=server.url) as bystander, engine(server) as reader:
        bystander.ask("publish", name="bystander")
        other = reader.open("bystander")
        seen, epochs = set(), []
        for turn in range(3):
            with Peer(size=SIZE, directory=server.url, listen=listen) as peer:
                epochs.append(peer.ask("publish", name="decode"))
                link = wait_for(lambda: opens(reader, "decode"), 10, "the new process")
                seen.add(link.instance_id)
                assert peer.ask("fill", region="arena", seed=turn) == read(reader, link)
                peer.kill()
            wait_for(lambda link=link: not link.open, 10, "the news of the death")
            with pytest.raises((errors.Unavailable, errors.TimedOut, errors.PeerLost, errors.NotFound), match="decode"):
                reader.open("decode")
        assert len(seen) == 3
        assert epochs == sorted(set(epochs))
        assert other.open
        assert reader.open("bystander").instance_id == other.instance_id
        wait_for(lambda: not reader._directory().list("decode"), 20, "the end of the dead record")


def test_links_and_names_outlive_a_directory(server: DirectoryServer) -> None:
    with Peer(size=SIZE, directory=server.url) as peer, engine(server) as reader:
        peer.ask("publish", name="prefill-0")
        link = reader.open("prefill-0")
        server.kill()
        wait_for(lambda: peer.ask("state") == "away", 20, "the renewal that fails")
        for seed in range(3):
            assert peer.ask("fill", region="arena", seed=seed) == read(reader, link)
        with pytest.raises(errors.Unavailable, match=server.address):
            reader.open("prefill-0")
        assert reader.open(peer.address).instance_id == link.instance_id
        server.start()
        wait_for(lambda: peer.ask("state") == "live", 20, "the renewal that succeeds")
        with engine(server) as newcomer:
            found = wait_for(lambda: opens(newcomer, "prefill-0"), 20, "the record")
            assert found.instance_id == link.instance_id
        assert link.open


def test_the_later_of_two_processes_has_the_name(server: DirectoryServer) -> None:
    with (
        Peer(size=SIZE, directory=server.url) as first,
        Peer(size=SIZE, directory=server.url) as second,
        engine(server) as reader,
    ):
        first.ask("publish", name="decode")
        assert reader.open("decode").address == first.address
        second.ask("publish", name="decode")
        assert reader.open("decode").address == second.address
        wait_for(lambda: first.ask("state") == "superseded", 20)
        assert second.ask("state") == "live"
        assert reader.open("decode").address == second.address


def test_a_stopped_process_does_not_take_its_name_back(server: DirectoryServer) -> None:
    with (
        Peer(size=SIZE, directory=server.url) as first,
        Peer(size=SIZE, directory=server.url) as second,
        engine(server) as reader,
    ):
        first.ask("publish", name="decode")
        first.stop()
        wait_for(lambda: not reader._directory().list("decode"), 20, "the end of its record")
        second.ask("publish", name="decode")
        first.go_on()
        wait_for(lambda: first.ask("state") == "superseded", 20)
        assert reader.open("decode").address == second.address


def test_a_record_about_somebody_else_is_stale(server: DirectoryServer) -> None:
    gone = uuid.uuid4().hex
    names = Names(server.url, timeout=5)
    with Peer(size=SIZE) as peer, engine(server) as reader:
        names.publish("decode", peer.address, gone, ttl=30)
        with pytest.raises(errors.Stale, match="decode") as caught:
            reader.open("decode")
        assert gone in str(caught.value)
        assert reader.open(peer.address).instance_id in str(caught.value)
    names.close()


def test_records_may_have_host_names(master: DirectoryServer) -> None:
    names = Names(master.url, timeout=5)
    with Peer(size=SIZE) as peer, engine(master) as reader:
        identity = reader.open(peer.address).instance_id
        names.publish("decode", peer.address.replace("127.0.0.1", "localhost"), identity, ttl=30)
        assert reader.open("decode").instance_id == identity
        names.publish("lost", "no-such-host.invalid:1", identity, ttl=30)
        with pytest.raises((errors.Unavailable, errors.TimedOut), match=r"'lost', published at no-such-host\.invalid"):
            reader.open("lost")
    names.close()


async def test_a_name_can_be_awaited(master: DirectoryServer) -> None:
    with Peer(size=SIZE, directory=master.url) as peer, engine(master) as reader:
        operation = reader.open_async("decode")
        with pytest.raises(errors.NotFound):
            await operation
        assert operation.done and operation.quiet
        peer.ask("publish", name="decode")
        links = await asyncio.gather(*(_opened(reader) for _ in range(20)))
        assert {link.address for link in links} == {peer.address}
        master.stop()
        late = reader.open_async("decode", timeout=10)
        with pytest.raises(errors.TimedOut):
            late.wait(0.05)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_await(late), 0.05)
        master.go_on()
        assert late.wait(20).address == peer.address
        late.wait_quiet(1)


async def _opened(reader: moontide.Engine) -> moontide.Peer:
    return await reader.open_async("decode")


async def _await(operation: moontide.Operation[Any]) -> Any:
    return await operation


def test_without_a_directory_names_are_addresses() -> None:
    config = moontide.load_config({}, environ={})
    with moontide.Engine(config=config) as one, moontide.Engine(config=config) as other:
        assert other.open(f"segment:{one.address}").instance_id == one.instance_id
        with pytest.raises(errors.Invalid, match="option directory"):
            other.open("decode")
        assert one.publish(one.address).state == "live"
        with pytest.raises(errors.Invalid, match="option directory"):
            one.publish("decode")


def test_a_loopback_address_does_not_go_to_other_hosts() -> None:
    config = moontide.load_config({"directory": "http://directory.invalid:80"}, environ={})
    with moontide.Engine(config=config) as one:
        with pytest.raises(errors.Invalid, match="would ask itself"):
            one.publish("decode")
        with pytest.raises(errors.Invalid, match="no address that peers can connect to"):
            one.publish("decode", advertise="0.0.0.0:80")
        with pytest.raises(errors.Unavailable, match=r"directory\.invalid"):
            one.publish("decode", advertise="10.0.0.1:80")


def test_a_name_can_be_given_up(master: DirectoryServer) -> None:
    with engine(master) as one, engine(master) as other:
        publication = one.publish("decode")
        one.publish("decode-too")
        assert other.open("decode").instance_id == other.open("decode-too").instance_id == one.instance_id
        one.withdraw("decode")
        one.withdraw("decode")
        assert publication.state == "withdrawn"
        with pytest.raises(errors.NotFound):
            other.open("decode")
        assert other.open("decode-too").instance_id == one.instance_id


def test_close_withdraws_and_ends_what_waits(master: DirectoryServer) -> None:
    names = Names(master.url, timeout=5)
    one = engine(master)
    publication = one.publish("decode")
    assert names.lookup("decode") == publication.record
    one.close()
    one.close()
    assert names.list("decode") == []
    assert publication.state == "withdrawn"
    for work in (lambda: one.publish("decode"), lambda: one.open("decode")):
        with pytest.raises(errors.Closed):
            work()
    two = engine(master)
    two.publish("decode")
    master.stop()
    waiting = two.open_async("decode", timeout=60)
    two.close()  # waits a second for the directory, no more
    with pytest.raises((errors.Closed, errors.Unavailable)):
        waiting.wait(10)
    master.go_on()
    wait_for(lambda: not names.list("decode"), 20, "the end of the record that was left behind")
    names.close()


EXITS = """
import sys
import moontide
engine = moontide.Engine(config=moontide.load_config({"directory": sys.argv[1], "directory_ttl": "2s"}, environ={}))
print(engine.publish("decode").record.epoch, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_a_process_that_just_ends_leaves_well(server: DirectoryServer, hangs: bool) -> None:
    names = Names(server.url, timeout=5)
    process = subprocess.Popen(
        [sys.executable, "-c", EXITS, server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    epoch = int(process.stdout.readline())
    assert names.lookup("decode").epoch == epoch
    if hangs:
        server.stop()
    process.stdin.close()
    assert process.wait(20) == 0
    assert process.stderr.read() == b""
    for pipe in (process.stdout, process.stderr):
        pipe.close()
    if hangs:
        server.go_on()
        wait_for(lambda: not names.list("decode"), 30, "the end of the record that was left behind")
    else:
        assert names.list("decode") == []
    names.close()


def test_renewal_costs_next_to_nothing(master: DirectoryServer) -> None:
    with engine(master, directory_ttl="1s") as one:
        publication = one.publish("decode")
        began = time.process_time()
        threading.Event().wait(3)
        assert time.process_time() - began < 0.15
        assert publication.state == "live"


def test_a_forked_child_has_no_directory(master: DirectoryServer) -> None:
    with engine(master) as one:
        publication = one.publish("decode")
        names = one._directory()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                names.lookup("decode")
            except errors.Closed:
                names.close()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert names.lookup("decode") == publication.record
