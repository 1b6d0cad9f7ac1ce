"""Processes side by side: their ports, their start and their end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import moontide
from moontide import errors
from support.peer_process import Peer
from support.pool_process import Pool, Server, free_port
from support.waiting import wait_for

pytestmark = pytest.mark.cluster

CONFIG = moontide.load_config({}, environ={})


def test_many_processes_that_start_at_once_get_ports_of_their_own() -> None:
    peers: list[Peer] = []
    threads = [threading.Thread(target=lambda: peers.append(Peer(size=4096))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    try:
        assert len({peer.address for peer in peers}) == 12
        with moontide.Engine(config=CONFIG) as engine:
            links = [engine.open(peer.address, timeout=10) for peer in peers]
            assert len({link.instance_id for link in links}) == 12
            assert [link.address for link in links] == [peer.address for peer in peers]
    finally:
        for peer in peers:
            peer.close()


def test_whoever_has_nothing_to_do_uses_no_processor() -> None:
    with Pool() as pool, Peer() as peer, moontide.Store(pool.address, config=CONFIG) as store:
        store.put("key", b"value")
        store.engine.open(peer.address)
        pids = [pool.master.process.pid, pool.nodes[0].process.pid, peer.process.pid]

        def used() -> list[int]:
            return [sum(map(int, _stat(pid)[11:13])) for pid in pids]

        wait_for(lambda: store.stats()["objects"] == 1, 10, "the put is known")
        before = used()
        assert not threading.Event().wait(3)
        ticks = os.sysconf("SC_CLK_TCK") * 3
        for began, ended in zip(before, used(), strict=True):
            assert ended - began <= 0.05 * ticks


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def test_nodes_that_start_at_once_all_join() -> None:
    with Pool(nodes=0) as pool, ThreadPoolExecutor(6) as starters:
        pool.nodes += [start.result() for start in [starters.submit(pool.add_node) for _ in range(6)]]
        with moontide.Store(pool.address, config=CONFIG) as store:
            wait_for(lambda: store.stats()["nodes_ready"] == 6, 20, "all six")
            size = 4 << 20
            for number in range(12):
                store.put(str(number), bytes([number]) * size)
            for number in range(12):
                assert store.get(str(number)) == bytes([number]) * size


@pytest.mark.parametrize("command", ["master", "node"])
def test_a_port_in_use_ends_the_start_and_is_named(command: str) -> None:
    with moontide.Engine(config=CONFIG) as engine:
        arguments = {"master": [], "node": ["--master", f"127.0.0.1:{free_port()}", "--lend", "1MiB"]}[command]
        done = subprocess.run(
            [sys.executable, "-m", "moontide.cli", command, "--listen", engine.address, *arguments],
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert done.returncode != 0
    assert engine.address in done.stderr
    assert "in use" in done.stderr
    assert done.stdout == "", "it must not say that it listens"


def test_what_cannot_start_says_which_step_failed_and_why() -> None:
    with pytest.raises(errors.NoSpace, match=r"of \d+ bytes: .+"):
        moontide.Store(lend=1 << 62, config=CONFIG)
    done = subprocess.run(
        [sys.executable, "-m", "moontide.cli", "node", "--master", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode != 0
    assert "--lend" in done.stderr


def test_a_node_and_a_client_end_well_after_their_master() -> None:
    with Pool(nodes=1) as pool, moontide.Store(pool.address, config=CONFIG) as store:
        store.put("key", b"value")
        assert pool.master.terminate() == 0
        assert pool.nodes[0].terminate() == 0
        store.close()
        store.close()
        with pytest.raises(errors.Closed):
            store.get("key")


def test_a_signal_at_any_moment_ends_a_server_soon() -> None:
    chance = random.Random(1)
    address = f"127.0.0.1:{free_port()}"
    for turn in range(10):
        process = subprocess.Popen(
            [sys.executable, "-m", "moontide.cli", "master", "--listen", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        moment = threading.Event()
        moment.wait(chance.random() * 1.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) in (0, -signal.SIGTERM), f"turn {turn}"
        assert process.stdout is not None
        process.stdout.close()


def test_a_master_restarted_over_and_over_keeps_the_pool() -> None:
    with Pool(nodes=1) as pool, moontide.Store(pool.address, config=CONFIG) as store:
        wait_for(lambda: store.stats()["nodes_ready"] == 1, 10)
        store.put("kept", b"x" * 100_000)
        for _ in range(3):
            pool.master.restart()
            wait_for(lambda: _found(store, "kept"), 30, "the object back")
        assert store.get("kept") == b"x" * 100_000
        assert isinstance(pool.master, Server)


def _found(store: moontide.Store, key: str) -> bool:
    try:
        return store.exists(key)
    except errors.MoontideError:
        return False
