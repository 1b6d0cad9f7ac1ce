"""TLS among real processes: bytes over control and data connections, whom it keeps out, new files without a restart."""

from __future__ import annotations

import select
import shutil
import socket
import threading
from pathlib import Path

import pytest

import moontide
from moontide import errors
from support.certificates import Authority
from support.peer_process import SIZE, Peer, pattern
from support.pool_process import Server, free_port
from support.waiting import wait_for

pytestmark = pytest.mark.cluster


def secret_file(folder: Path) -> dict[str, str]:
    path = folder / "secret"
    path.write_bytes(b"the cluster's own secret")
    path.chmod(0o600)
    return {"secret_file": str(path)}


def config(**flags: str) -> moontide.Config:
    return moontide.load_config({"progress_timeout": "2s", "local_reads": "off", **flags}, environ={})


class Wire:
    """Passes connections on to an address and keeps what went over them."""

    def __init__(self, address: str) -> None:
        self.target = address.rsplit(":", 1)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.seen = bytearray()
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            far = socket.create_connection((self.target[0], int(self.target[1])))
            threading.Thread(target=self._pass, args=(near, far), daemon=True).start()

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        with near, far:
            while True:
                for one in select.select([near, far], [], [])[0]:
                    try:
                        part = one.recv(1 << 18)
                        (far if one is near else near).sendall(part)
                    except OSError:
                        return
                    if not part:
                        return
                    self.seen += part

    def close(self) -> None:
        self.listener.close()


@pytest.mark.parametrize("encrypted", [True, False])
def test_what_goes_over_the_wire(tmp_path: Path, encrypted: bool) -> None:
    """With TLS and without: only without can bytes and names of regions be read off the wire."""
    flags = secret_file(tmp_path)
    if encrypted:
        flags |= Authority(tmp_path).issue("everybody")
    with (
        Peer(local_reads="off", config=flags) as process,
        moontide.Engine(config=config(**flags)) as engine,
    ):
        process.ask("fill", region="heap", seed=5)
        wire = Wire(process.address)
        remote = engine.open(wire.address, timeout=10).region("heap")
        memory = engine.allocate(SIZE, name="ours")
        engine.read([(memory, remote, 0, SIZE)]).wait(60)
        assert memory.buffer == pattern(SIZE, 5)
        memory.buffer[:] = pattern(SIZE, 6)
        engine.write([(memory, remote, 0, SIZE)]).wait(60)
        assert memory.buffer[:100] == pattern(SIZE, 6)[:100]
        assert wire.connections >= 2
        assert len(wire.seen) > 2 * SIZE
        readable = (
            pattern(SIZE, 5)[4096:4160] in wire.seen,
            pattern(SIZE, 6)[4096:4160] in wire.seen,
            b"heap" in wire.seen,
        )
        assert readable == (not encrypted,) * 3
        assert Path(flags["secret_file"]).read_bytes() not in wire.seen
        wire.close()


def test_peers_of_one_host_read_each_other_without_tls_between(tmp_path: Path) -> None:
    flags = secret_file(tmp_path) | Authority(tmp_path).issue("everybody")
    with (
        Peer(config=flags) as process,
        moontide.Engine(config=config(**flags, local_reads="auto")) as engine,
    ):
        link = engine.open(process.address, timeout=10)
        assert link.same_host
        memory = engine.allocate(4096, name="ours")
        transfer = engine.read([(memory, link.region("arena"), 0, 4096)])
        transfer.wait(10)
        assert transfer.path == "shm"


def test_a_pool_over_tls(tmp_path: Path) -> None:
    flags = secret_file(tmp_path) | Authority(tmp_path).issue("everybody")
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    master = Server("master", "--listen", f"127.0.0.1:{free_port()}", *arguments)
    node = Server("node", "--master", master.address, "--lend", "8MiB", *arguments)
    try:
        with moontide.Store(master.address, config=config(**flags)) as store:
            value = pattern(1 << 20, 7)
            store.put("key", value)
            assert store.get("key") == value
        plain = {"secret_file": flags["secret_file"]}
        with (
            moontide.Store(master.address, config=config(**plain)) as stranger,
            pytest.raises(errors.Unavailable, match="TLS is required here"),
        ):
            stranger.get("key")
    finally:
        node.close()
        master.close()


def test_strangers_to_the_authority_are_refused(tmp_path: Path) -> None:
    secret = secret_file(tmp_path)
    ours = Authority(tmp_path / "ours").issue("one")
    theirs = Authority(tmp_path / "theirs").issue("two")
    with Peer(config=secret | ours) as process:
        with moontide.Engine(config=config(**secret, **theirs)) as stranger:
            with pytest.raises(errors.Denied, match="certificate verify failed"):
                stranger.open(process.address)
            assert stranger.stats()["authentication_refused"] == 1
        # trusts the process, but has no certificate that the process trusts
        with (
            moontide.Engine(config=config(**secret, **{**theirs, "tls_ca": ours["tls_ca"]})) as stranger,
            pytest.raises(errors.Denied, match="TLS"),
        ):
            stranger.open(process.address)
        with moontide.Engine(config=config(**secret)) as plain, pytest.raises(errors.Denied, match="TLS is required"):
            plain.open(process.address)
        assert wait_for(lambda: process.ask("stats")["authentication_refused"] == 3, 10)
        assert process.ask("stats")["links_opened"] == 0
    with (
        Peer(config=secret) as plain_process,
        moontide.Engine(config=config(**secret, **ours)) as engine,
        pytest.raises(errors.MoontideError, match="it may not speak TLS"),
    ):
        engine.open(plain_process.address)


def test_new_files_are_used_without_a_restart(tmp_path: Path) -> None:
    secret = secret_file(tmp_path)
    old = Authority(tmp_path / "old").issue("one")
    new = Authority(tmp_path / "new").issue("one")
    live = {option: str(tmp_path / Path(path).name) for option, path in old.items()}

    def install(files: dict[str, str]) -> None:
        for option in ("tls_ca", "tls_key", "tls_cert"):
            staged = tmp_path / "staged"
            shutil.copy(files[option], staged)
            staged.rename(live[option])

    install(old)
    with (
        Peer(local_reads="off", config=secret | live) as process,
        moontide.Engine(config=config(**secret, **old)) as early,
    ):
        remote = early.open(process.address, timeout=10).region("heap")
        memory = early.allocate(4096, name="ours")
        early.read([(memory, remote, 0, 4096)]).wait(10)
        install(new)

        def opens(files: dict[str, str]) -> bool:
            with moontide.Engine(config=config(**secret, **files)) as engine:
                try:
                    return engine.open(process.address, timeout=10).open
                except errors.MoontideError:
                    return False

        assert wait_for(lambda: opens(new), 20, "a link by the new certificate")
        assert not opens(old)
        assert process.ask("stats")["tls_reloads"] >= 1
        # what was connected before goes on
        early.read([(memory, remote, 0, 4096)]).wait(10)


def test_options_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    secret = secret_file(tmp_path)
    files = Authority(tmp_path).issue("one")
    for missing in files:
        some = {option: path for option, path in files.items() if option != missing}
        with pytest.raises(errors.Invalid, match=f"not set: {missing}"):
            moontide.Engine(config=config(**secret, **some))
    with pytest.raises(errors.Invalid, match="TLS needs a secret_file as well"):
        moontide.Engine(config=config(**files))
    for option in files:
        with pytest.raises(errors.Invalid, match=f"{option} = '/nowhere'"):
            moontide.Engine(config=config(**secret, **{**files, option: "/nowhere"}))
    Path(files["tls_key"]).chmod(0o644)
    with pytest.raises(errors.Denied, match="tls_key.*lets other users in"):
        moontide.Engine(config=config(**secret, **files))
