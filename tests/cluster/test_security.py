"""The cluster secret among real processes: who gets in, what both sides are told, where one may listen."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import moontide
from moontide import errors
from support.namespace import ADDRESS, ADDRESS_6, alone
from support.peer_process import Peer
from support.pool_process import Server, free_port
from support.waiting import wait_for

pytestmark = pytest.mark.cluster


def secret_file(folder: Path, name: str = "secret", content: bytes = b"the cluster's own secret\n") -> str:
    path = folder / name
    path.write_bytes(content)
    path.chmod(0o600)
    return str(path)


def config(**flags: object) -> moontide.Config:
    return moontide.load_config({"progress_timeout": "500ms", **flags}, environ={})


@pytest.mark.parametrize("local_reads", ["auto", "off"])
@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_engines_with_the_secret_read_and_write(tmp_path: Path, local_reads: str, listen: str) -> None:
    secret = secret_file(tmp_path)
    with (
        Peer(local_reads=local_reads, listen=listen, config={"secret_file": secret}) as process,
        moontide.Engine(listen, config=config(secret_file=secret, local_reads=local_reads)) as engine,
    ):
        process.ask("fill", region="heap", seed=1)
        remote = engine.open(process.address).region("heap")
        memory = engine.allocate(1 << 20, name="ours")
        engine.read([(memory, remote, 0, 1 << 20)]).wait(20)
        memory.buffer[:] = bytes(memory.buffer[::-1])
        engine.write([(memory, remote, 0, 1 << 20)]).wait(20)
        stats = engine.stats()
        assert stats["authenticated"] >= 2  # the control channel, and a data stream or the local socket
        assert stats["authentication_refused"] == 0
        assert process.ask("stats")["authenticated"] >= 2


def test_another_secret_or_none_is_refused_at_both_sides(tmp_path: Path) -> None:
    ours, theirs = secret_file(tmp_path), secret_file(tmp_path, "other", b"somebody else's secret")
    with (
        Peer(config={"secret_file": theirs}) as process,
        Peer() as open_process,
        moontide.Engine(config=config(secret_file=ours)) as engine,
        moontide.Engine(config=config()) as open_engine,
    ):
        with pytest.raises(errors.Denied, match="the cluster secrets differ"):
            engine.open(process.address)
        assert engine.stats()["authentication_refused"] == 1
        refused, last = process.ask("refusals")
        assert refused == 1
        assert "the cluster secrets differ" in last
        with pytest.raises(errors.Denied, match="a cluster secret is required here"):
            open_engine.open(process.address)
        assert process.ask("stats")["authentication_refused"] == 2
        assert process.ask("stats")["links_opened"] == 0
        with pytest.raises(errors.Denied, match="no cluster secret is configured here"):
            engine.open(open_process.address)
        assert open_process.ask("stats")["connections_refused"] == 1
        assert open_process.ask("stats")["links_opened"] == 0


def test_a_pool_with_a_secret(tmp_path: Path) -> None:
    secret = secret_file(tmp_path)
    flags = ("--secret-file", secret)
    master = Server("master", "--listen", f"127.0.0.1:{free_port()}", *flags)
    node = Server("node", "--master", master.address, "--lend", "8MiB", *flags)
    try:
        with moontide.Store(master.address, config=config(secret_file=secret)) as store:
            store.put("key", b"value" * 10000)
            assert store.get("key") == b"value" * 10000
            with (
                moontide.Store(master.address, config=config()) as stranger,
                pytest.raises(errors.Unavailable, match="a cluster secret is required here"),
            ):
                stranger.get("key")
            other = secret_file(tmp_path, "other", b"somebody else's secret")
            with (
                moontide.Store(master.address, config=config(secret_file=other)) as stranger,
                pytest.raises(errors.Unavailable, match="the cluster secrets differ"),
            ):
                stranger.put("key", b"poison")
            with moontide.Engine(config=config(secret_file=secret)) as engine:
                with pytest.raises(errors.Denied, match="port of a moontide master"):
                    engine.open(master.address)
                engine.open(node.address)
            assert store.get("key") == b"value" * 10000
    finally:
        node.close()
        master.close()


def test_a_master_says_whom_it_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moontide.cli", "master", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--secret-file", secret_file(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().split()[3].rstrip(",")
        with moontide.Store(address, config=config()) as stranger, pytest.raises(errors.MoontideError):
            stranger.get("key")
        line = process.stderr.readline()
        assert "refused" in line
        assert "a cluster secret is required here" in line
    finally:
        process.terminate()
        process.communicate(timeout=10)


def test_secret_files_that_others_can_read_are_refused(tmp_path: Path) -> None:
    path = secret_file(tmp_path)
    for mode in (0o640, 0o604, 0o620, 0o602, 0o644):
        os.chmod(path, mode)
        with pytest.raises(errors.Denied, match=f"its mode {mode:04o} lets other users in"):
            moontide.Engine(config=config(secret_file=path))
    os.chmod(path, 0o400)
    moontide.Engine(config=config(secret_file=path)).close()
    with pytest.raises(errors.Invalid, match="No such file"):
        moontide.Engine(config=config(secret_file=str(tmp_path / "missing")))
    for content in (b"", b"fifteen bytes..\n", b"x" * 4097):
        with pytest.raises(errors.Invalid, match="allowed are 16 to 4096"):
            moontide.Engine(config=config(secret_file=secret_file(tmp_path, "length", content)))
    command = [sys.executable, "-m", "moontide.cli", "master", "--listen", "127.0.0.1:0", "--secret-file", path]
    os.chmod(path, 0o644)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "lets other users in" in done.stderr


def test_line_ends_behind_a_secret_do_not_matter(tmp_path: Path) -> None:
    unix, windows = secret_file(tmp_path), secret_file(tmp_path, "windows", b"the cluster's own secret\r\n")
    with (
        moontide.Engine(config=config(secret_file=unix)) as one,
        moontide.Engine(config=config(secret_file=windows)) as two,
    ):
        assert one.open(two.address).open


def test_off_loopback_needs_a_secret_or_a_waiver_by_name() -> None:
    for listen in ("0.0.0.0:0", "[::]:0", "10.77.0.1:0", "[fd77::1]:0"):
        with pytest.raises(errors.Denied, match="loopback.*secret_file.*insecure_listen"):
            moontide.Engine(config=config(listen=listen, advertise="127.0.0.1"))
    with moontide.Engine(config=config()) as engine:
        for address in ("192.0.2.1:7000", "[2001:db8::1]:7000"):
            with pytest.raises(errors.Denied, match="loopback"):
                engine.open(address)
    for flags in ({"insecure_listen": "true"}, {}):
        with pytest.raises(errors.Invalid, match="advertise"):
            moontide.Engine(config=config(listen="0.0.0.0:0", **flags))
    for told in ("0.0.0.0", "[::]:7000"):
        with pytest.raises(errors.Invalid, match="no address that peers could reach"):
            moontide.Engine(config=config(listen="0.0.0.0:0", advertise=told, insecure_listen="true"))
    command = [sys.executable, "-m", "moontide.cli", "master", "--listen", "0.0.0.0:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "insecure_listen" in done.stderr


def listen_everywhere(secret: str) -> None:
    """On a host of its own, with a secret and without."""
    flags: dict[str, object]
    for flags in ({"secret_file": secret}, {"insecure_listen": "true"}):
        for listen, advertise, told in (
            (f"{ADDRESS}:0", None, ADDRESS),
            (f"[{ADDRESS_6}]:0", None, f"[{ADDRESS_6}]"),
            ("0.0.0.0:0", ADDRESS, ADDRESS),
            ("[::]:0", f"[{ADDRESS_6}]", f"[{ADDRESS_6}]"),
            ("[::]:0", ADDRESS, ADDRESS),
            ("0.0.0.0:7801", f"{ADDRESS}:7801", ADDRESS),
        ):
            with (
                moontide.Engine(config=config(listen=listen, advertise=advertise, **flags)) as everywhere,
                moontide.Engine(config=config(listen=f"{ADDRESS}:0", local_reads="off", **flags)) as engine,
            ):
                host, _, port = everywhere.address.rpartition(":")
                assert host == told
                assert int(port) > 0
                there = everywhere.allocate(4096, name="there")
                there.buffer[:] = b"x" * 4096
                link = engine.open(everywhere.address)
                memory = engine.allocate(4096, name="here")
                engine.read([(memory, link.region("there"), 0, 4096)]).wait(10)
                assert memory.buffer == b"x" * 4096


def a_pool_off_loopback(secret: str) -> None:
    """On a host of its own: the master on all interfaces, a node that says where it is."""
    flags = ("--secret-file", secret)
    master = Server("master", "--listen", "0.0.0.0:0", *flags)
    address = f"{ADDRESS}:{master.address.rsplit(':', 1)[1]}"
    everywhere = ("--listen", "0.0.0.0:0", "--advertise", ADDRESS)
    node = Server("node", "--master", address, "--lend", "8MiB", *everywhere, *flags)
    try:
        assert node.address.startswith(f"{ADDRESS}:")
        with moontide.Store(address, config=config(secret_file=secret, local_reads="off")) as store:
            store.put("key", b"value" * 10000)
            assert store.get("key") == b"value" * 10000
    finally:
        node.close()
        master.close()


@pytest.mark.parametrize("function", [listen_everywhere, a_pool_off_loopback])
def test_off_loopback_on_a_host_of_its_own(tmp_path: Path, function: Callable[..., None]) -> None:
    alone(function, secret_file(tmp_path))


def test_names_are_resolved_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"here.test": "127.0.1.1", "there.test": "192.0.2.7", "six.test": "2001:db8::7"}

    def getaddrinfo(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if host not in answers:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(0, 0, 0, "", (answers[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    # a host that takes its own name for loopback tells nobody so
    with pytest.raises(errors.Invalid, match=r"listen = 'here.test:0': the name means 127.0.1.1 here"):
        moontide.Engine(config=config(listen="here.test:0"))
    with pytest.raises(errors.Invalid, match=r"advertise = 'here.test:0': the name means 127.0.1.1"):
        moontide.Engine(config=config(listen="0.0.0.0:0", advertise="here.test", insecure_listen="true"))
    with moontide.Engine(config=config(advertise="there.test")) as engine:
        assert engine.address.startswith("192.0.2.7:")
        with pytest.raises(errors.Unavailable, match="address = 'nowhere.test:7000'.*cannot be resolved"):
            engine.open("nowhere.test:7000")
        with pytest.raises(errors.Denied, match=r"192\.0\.2\.7:7000.*loopback"):
            engine.open("there.test:7000")
        with pytest.raises(errors.Denied, match=r"\[2001:db8::7\]:7000.*loopback"):
            engine.open("six.test:7000")
        with pytest.raises(errors.Unavailable, match="master = 'nowhere.test:1'.*cannot be resolved"):
            moontide.Store("nowhere.test:1", engine=engine)


def test_strangers_at_the_door_do_not_keep_others_out(tmp_path: Path) -> None:
    secret = secret_file(tmp_path)
    with (
        Peer(config={"secret_file": secret}) as process,
        moontide.Engine(config=config(secret_file=secret)) as engine,
    ):
        host, port = process.address.rsplit(":", 1)
        crowd = []
        for _ in range(1500):
            stranger = socket.create_connection((host, int(port)), timeout=10)
            crowd.append(stranger)
        link = wait_for(lambda: engine.open(process.address, timeout=10), 20, "a link beside them")
        memory = engine.allocate(4096, name="ours")
        engine.read([(memory, link.region("heap"), 0, 4096)]).wait(10)
        assert process.ask("stats")["authentication_refused"] > 0
        for stranger in crowd:
            stranger.close()
