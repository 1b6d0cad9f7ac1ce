"""What a master and a node can be told: how many objects there may be, and to poll."""

from __future__ import annotations

import pytest

import moontide
from support.pool_process import Server
from support.waiting import wait_for

pytestmark = pytest.mark.cluster
LOOPBACK = "127.0.0.1:0"


def test_a_master_keeps_no_more_objects_than_it_is_told() -> None:
    master = Server("master", "--listen", LOOPBACK, "--max-objects", "1000", "--lease", "100ms")
    try:
        with moontide.Store(master.address, lend=16 << 20) as store:
            for first in range(0, 3000, 500):
                wait_for(lambda first=first: _all_there(store, first), 20)
            assert store.stats()["objects"] <= 1000
            assert store.stats()["evicted"] >= 2000
    finally:
        master.close()


def _all_there(store: moontide.Store, first: int) -> bool:
    """Puts what a full pool refused until room is made."""
    errors = store.put_many([(f"key {number}", b"value") for number in range(first, first + 500)])
    return not any(error is not None and not isinstance(error, moontide.errors.AlreadyExists) for error in errors)


def test_servers_that_poll_share_a_core_answer_and_end_by_signal() -> None:
    master = Server("master", "--listen", LOOPBACK, "--server-spin-us", "10000")
    node = Server(
        "node", "--master", master.address, "--lend", "1MiB", "--listen", LOOPBACK, "--server-spin-us", "10000"
    )
    try:
        with moontide.Store(master.address) as store:
            store.put("key", b"value")
            assert store.get("key") == b"value"
        assert node.terminate() == 0
        assert master.terminate() == 0
    finally:
        node.close()
        master.close()
