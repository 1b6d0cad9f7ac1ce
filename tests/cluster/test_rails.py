"""Engines on two hosts (network namespaces) with several cables between them, each with a rate of its own."""

from __future__ import annotations

import pytest

from support import two_hosts
from support.peer_process import Peer
from support.two_hosts import TwoHosts
from support.waiting import wait_for

_WHY_NOT = two_hosts.missing()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)]

MIB = 1 << 20
SIZE = 32 * MIB


def _pair(hosts: TwoHosts) -> tuple[Peer, Peer]:
    owner, reader = hosts.engine("b", size=SIZE), hosts.engine("a", size=SIZE)
    reader.ask("open", address=owner.address)
    return owner, reader


def _share(before: dict[str, int], after: dict[str, int], path: str) -> float:
    moved = {name: after.get(name, 0) - before.get(name, 0) for name in ("bytes_tcp", "bytes_tcp.1")}
    return moved[f"bytes_{path}"] / sum(moved.values())


def _copy(owner: Peer, reader: Peer, op: str, seed: int) -> dict[str, float]:
    """Copies, checks the bytes, and says how long it took."""
    source, target = (owner, reader) if op == "read" else (reader, owner)
    target.ask("fill", region="heap", seed=seed + 1)
    digest = source.ask("fill", region="heap", seed=seed)
    reader.ask("start", op=op, length=SIZE)
    answer: dict[str, float] = reader.ask("finish")
    assert "error" not in answer, answer
    assert target.ask("digest", region="heap") == digest
    return answer


@pytest.mark.parametrize("op", ["read", "write"])
def test_equal_devices_carry_equal_shares(op: str) -> None:
    with TwoHosts([800, 800]) as hosts:
        owner, reader = _pair(hosts)
        _copy(owner, reader, op, 1)
        before = reader.ask("stats")
        _copy(owner, reader, op, 2)
        share = _share(before, reader.ask("stats"), "tcp.1")
        assert 0.4 < share < 0.6


@pytest.mark.parametrize("rails", ["cable0:0,cable1:0", "auto:0"])
def test_devices_are_found_by_name_and_by_the_topology(rails: str) -> None:
    with TwoHosts([800, 800]) as hosts:
        owner, reader = (hosts.engine(host, size=SIZE, rails=rails) for host in "ba")
        reader.ask("open", address=owner.address)
        before = reader.ask("stats")
        _copy(owner, reader, "read", 1)
        assert 0.2 < _share(before, reader.ask("stats"), "tcp.1") < 0.8


def test_unequal_devices_share_in_proportion_to_what_they_deliver() -> None:
    with TwoHosts([900, 300]) as hosts:
        owner, reader = _pair(hosts)
        _copy(owner, reader, "read", 1)
        before = reader.ask("stats")
        _copy(owner, reader, "read", 2)
        share = _share(before, reader.ask("stats"), "tcp.1")
        assert 0.12 < share < 0.4  # a quarter is theirs


@pytest.mark.parametrize("op", ["read", "write"])
@pytest.mark.parametrize("cable", [0, 1], ids=["with the control channel", "without it"])
def test_a_cable_pulled_in_mid_transfer_costs_no_byte_and_is_used_again(op: str, cable: int) -> None:
    with TwoHosts([400, 400]) as hosts:
        owner, reader = _pair(hosts)
        _copy(owner, reader, op, 1)
        source, target = (owner, reader) if op == "read" else (reader, owner)
        digest = source.ask("fill", region="heap", seed=7)
        target.ask("fill", region="heap", seed=8)
        reader.ask("start", op=op, length=SIZE)
        wait_for(lambda: reader.ask("progress")["moved"] > SIZE // 8, 20, "some bytes")
        hosts.unplug(cable)
        assert not reader.ask("progress")["done"]
        answer = reader.ask("finish")
        assert "error" not in answer, answer
        assert target.ask("digest", region="heap") == digest
        assert reader.ask("stats")["paths_failed"] >= 1
        hosts.plug(cable)
        path = "bytes_tcp" if cable == 0 else "bytes_tcp.1"
        carried = reader.ask("stats").get(path, 0)

        def used_again() -> bool:
            _copy(owner, reader, op, 3)
            return bool(reader.ask("stats").get(path, 0) > carried)

        wait_for(used_again, 20, "the cable in use again")


def test_a_small_urgent_read_overtakes_a_bulk_copy() -> None:
    with TwoHosts([200]) as hosts:
        owner, reader = _pair(hosts)
        owner.ask("fill", region="heap", seed=1)
        reader.ask("start", op="read", length=SIZE)
        wait_for(lambda: reader.ask("progress")["moved"] > 0, 20, "some bytes")
        assert isinstance(reader.ask("urgent_read", length=4096), str)
        assert not reader.ask("progress")["done"]
        assert "error" not in reader.ask("finish")
