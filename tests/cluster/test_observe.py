"""Looking at real processes: what is stuck, what is slow, what they measured, by call, by signal and by HTTP."""

from __future__ import annotations

import json
import logging
import re
import signal
import subprocess
import sys
import urllib.request
from typing import IO, Any

import pytest

import moontide
from moontide.observe import StageDump, format_dump
from moontide.observe.top import fetch
from support.peer_process import SIZE, Peer
from support.pool_process import Pool, Server
from support.waiting import wait_for

pytestmark = pytest.mark.cluster


def engine_with(**options: str) -> moontide.Engine:
    return moontide.Engine(config=moontide.load_config(options, environ={}))


def where(engine: moontide.Engine, trace: str) -> StageDump | None:
    """The place where slices of a transfer have been for longest."""
    places = [place for each in engine.dump().transfers if each.trace == trace for place in each.where]
    return max(places, key=lambda place: place.age_seconds, default=None)


def read_until(stream: IO[bytes], needle: str) -> str:
    """What a process wrote up to the line with the needle; the test's own deadline ends the wait."""
    text = ""
    while needle not in text:
        line = stream.readline()
        assert line, f"the process ended without {needle!r}: {text}"
        text += line.decode()
    return text


@pytest.mark.parametrize("mode", ["auto", "off"], ids=["one host", "tcp"])
def test_a_stuck_transfer_is_shown_with_stage_and_age(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    path = "pull" if mode == "auto" else "tcp"
    with (
        caplog.at_level(logging.WARNING, "moontide"),
        Peer(local_reads=mode) as stopped,
        engine_with(local_reads=mode, slow="200ms") as engine,
    ):
        memory = engine.allocate(SIZE, name="ours")
        link = engine.open(stopped.address)
        engine.write([(memory, link.region("heap"), 0, 4096)]).wait(20)
        stopped.stop()
        transfer = engine.write([(memory, link.region("heap"), 0, SIZE)], timeout=1.5, trace="stuck-one")
        stuck = wait_for(lambda: (place := where(engine, "stuck-one")) and place.age_seconds > 0.3 and place)
        assert (stuck.stage, stuck.path, stuck.address) == ("wire", path, stopped.address)
        assert stuck.peer == link.instance_id
        dump = next(each for each in engine.dump().transfers if each.trace == "stuck-one")
        assert dump.bytes_total == SIZE
        assert dump.slices_left > 0
        assert dump.bytes_moved <= SIZE  # over tcp what was given to the kernel counts
        assert dump.age_seconds >= dump.idle_seconds > 0.2
        assert not dump.done
        assert engine.metrics().oldest_transfer_seconds > 0.3
        text = format_dump(engine.dump())
        assert re.search(rf"wire \d+\.\d+ s: .*path {path}, peer {stopped.address}", text), text
        # a warning while it goes on, and one when it failed
        wait_for(lambda: transfer.done)
        lines = wait_for(lambda: len(caplog.records) >= 2 and [record.getMessage() for record in caplog.records])
        assert lines[0].startswith("slow transfer: is under way for 0.")
        for word in ("trace=stuck-one", f"peer={stopped.address}", f"path={path}", "stage=wire", "last_progress="):
            assert word in lines[0]
        assert "code=TIMED_OUT" in lines[1]
        assert "trace=stuck-one" in lines[1]
        # its outcome is there, its memory is not ours yet
        hostage = wait_for(lambda: (place := where(engine, "stuck-one")) and place.stage == "fence" and place)
        assert hostage.address == stopped.address
        assert engine.dump().hostages == 1
        stopped.go_on()
        transfer.wait_quiet(20)
        assert where(engine, "stuck-one") is None


def test_the_signal_shows_what_a_blocked_process_waits_for() -> None:
    with (
        Peer(local_reads="off") as stopped,
        Peer(
            local_reads="off", config={"dump_on_signal": "on", "progress_timeout": "60s"}, stderr=subprocess.PIPE
        ) as waiting,
    ):
        waiting.ask("write", address=stopped.address, trace="warm-up")
        stopped.stop()
        waiting.send("write", address=stopped.address, trace="request-9")
        assert waiting.process.stderr is not None
        text = ""
        while "request-9" not in text or "wire" not in text:  # the signal may come before the transfer does
            waiting.process.send_signal(signal.SIGUSR1)
            text = read_until(waiting.process.stderr, "holds")
            if "1 transfers" in text:
                text += read_until(waiting.process.stderr, f"peer {stopped.address}")
        assert re.search(r"transfer \d+ trace request-9: age \d+\.\d+ s, last progress", text), text
        assert re.search(rf"wire \d+\.\d+ s: .*path tcp, peer {stopped.address}", text), text
        assert waiting.process.poll() is None


def test_both_sides_of_a_write_warn_under_one_name() -> None:
    with (
        Peer(config={"slow": "0.001ms"}, stderr=subprocess.PIPE) as owner,
        Peer(config={"slow": "0.001ms"}, stderr=subprocess.PIPE) as writer,
    ):
        writer.ask("write", address=owner.address, trace="handover-77")
        for process, kind in ((owner, "pull"), (writer, "transfer")):
            assert process.process.stderr is not None
            assert f"slow {kind}: " in read_until(process.process.stderr, "trace=handover-77")


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as answer:
        body: bytes = answer.read()
    return body


def http_of(server: Server) -> str:
    found = re.search(r"http://(\S+)", server.line)
    assert found is not None, server.line
    return found[1]


def test_servers_are_seen_by_http_and_their_numbers_add_up() -> None:
    with Pool(nodes=0) as pool:
        nodes = [
            Server("node", "--master", pool.address, "--lend", "16MiB", "--http-listen", "127.0.0.1:0")
            for _ in range(2)
        ]
        pool.nodes.extend(nodes)
        store = moontide.Store(pool.address, config=moontide.load_config({}, environ={}))
        try:
            wait_for(lambda: store.stats()["nodes_ready"] == 2, 10, "two nodes")
            for number in range(20):
                store.put(f"key {number}", bytes(256 << 10))
            addresses = [http_of(node) for node in nodes]
            pages = [fetch(address) for address in addresses]
            assert sum(page.total("moontide_node_pulls_total") for page in pages) == 20
            assert sum(page.total("moontide_node_pulled_bytes_total") for page in pages) == 20 * (256 << 10)
            moved = sum(page.total("moontide_moved_bytes_total", engine="node", op="read") for page in pages)
            assert moved == 20 * (256 << 10)
            assert sum(page.total("moontide_node_entries") for page in pages) == 20
            for page, address in zip(pages, addresses, strict=True):
                # what is lent, what is taken, and what of it can be read are three numbers
                assert page.total("moontide_node_capacity_bytes") == 16 << 20
                assert page.total("moontide_node_allocated_bytes") >= page.total("moontide_node_pulled_bytes_total")
                transfers = json.loads(get(f"http://{address}/debug/transfers"))
                assert transfers["node"]["transfers"] == []
                assert b"0 transfers" in get(f"http://{address}/debug/transfers?format=text")
        finally:
            store.close()
        for node in nodes:
            assert node.terminate() == 0


def test_a_master_shows_what_is_allocated_and_what_is_committed() -> None:
    with Pool(nodes=0) as pool:
        pool.master.arguments += ("--http-listen", "127.0.0.1:0")
        pool.master.restart()
        pool.nodes.append(pool.add_node())
        store = moontide.Store(pool.address, config=moontide.load_config({}, environ={}))
        try:
            wait_for(lambda: store.stats()["nodes_ready"] == 1, 10, "a node")
            store.put("key", bytes(1 << 20))
            page = fetch(http_of(pool.master))
            committed = page.total("moontide_pool_committed_bytes")
            assert 1 << 20 <= committed < 2 << 20
            assert page.total("moontide_pool_allocated_bytes") == committed + page.total(
                "moontide_pool_unfinished_bytes"
            ) + page.total("moontide_pool_retiring_bytes")
            assert page.total("moontide_pool_objects") == 1
        finally:
            store.close()
        pool.master.process.send_signal(signal.SIGUSR1)  # does not end it
        assert fetch(http_of(pool.master)).total("moontide_pool_nodes_ready") == 1
        assert pool.master.terminate() == 0


def top(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    command = [sys.executable, "-m", "moontide.cli", "top", "--once", "--json", "--interval", "100ms", *arguments]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_top_shows_rates_and_times() -> None:
    with Pool(nodes=0) as pool:
        node = Server("node", "--master", pool.address, "--lend", "16MiB", "--http-listen", "127.0.0.1:0")
        pool.nodes.append(node)
        store = moontide.Store(pool.address, config=moontide.load_config({}, environ={}))
        try:
            wait_for(lambda: store.stats()["nodes_ready"] == 1, 10, "a node")
            store.put("key", bytes(1 << 20))
        finally:
            store.close()
        status, looks = top(http_of(node), "127.0.0.1:1")
        assert status == 1
        assert [look["address"] for look in looks] == [http_of(node), "127.0.0.1:1"]
        assert looks[0]["error"] == ""
        assert looks[0]["pool"]["capacity_bytes"] == 16 << 20
        assert looks[0]["oldest_seconds"] == 0
        assert [path["path"] for path in looks[0]["paths"]]
        assert all(path["failures"] == 0 for path in looks[0]["paths"])
        assert looks[1]["error"].startswith("URLError")
        status, looks = top(http_of(node))
        assert status == 0
