"""The hot cache of a host: two hosts (network namespaces), objects on the one, readers on the other."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from support import two_hosts
from support.pool_process import Server, StoreProcess
from support.two_hosts import TwoHosts
from support.waiting import wait_for

_WHY_NOT = two_hosts.missing()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT)]

SIZE = 1 << 20


class Hosts:
    """Host b has the objects, host a the readers and a cache. `crossed` counts what came over the cable to a."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._hosts = stack.enter_context(TwoHosts([900]))
        open_door = ("--insecure-listen", "true")
        self.master = self._server("b", "master", "--listen", "10.77.0.2:7700", *open_door)
        address = ("--master", self.master.address, *open_door)
        self.owner = self._server("b", "node", *address, "--listen", "10.77.0.2:0", "--lend", "64MiB")
        # it lends too little for an object
        lend = ("--lend", "256KiB", "--hot-cache", "16MiB")
        self.keeper = self._server("a", "node", *address, "--listen", "10.77.0.1:0", *lend)

    def _server(self, host: str, *arguments: str) -> Server:
        server = Server(*arguments, within=self._hosts.within(host))
        self._stack.callback(server.close)
        return server

    def client(self, host: str) -> StoreProcess:
        number = "ab".index(host) + 1
        config = {"listen": f"10.77.0.{number}:0", "insecure_listen": "true"}
        within = self._hosts.within(host)
        return self._stack.enter_context(StoreProcess(self.master.address, config=config, within=within))

    def crossed(self) -> int:
        within = self._hosts.within("a")
        command = [*within, "ip", "-s", "link", "show", "cable0"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        found = re.search(r"RX:[^\n]*\n\s*(\d+)", shown.stdout)
        assert found is not None, shown.stdout
        return int(found[1])


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with ExitStack() as stack:
        yield Hosts(stack)


def _read(client: StoreProcess, key: str, version: int) -> None:
    assert client.ask("get_loop", key=key, versions=9, size=SIZE, count=1) == {str(version): 1}


def _hot_gets(client: StoreProcess) -> int:
    count: int = client.ask("counters")["hot_gets"]
    return count


def _read_until_hot(client: StoreProcess, key: str, version: int) -> None:
    before = _hot_gets(client)

    def hot() -> bool:
        _read(client, key, version)
        return _hot_gets(client) > before

    wait_for(hot, what="a read from the hot cache")


def test_what_is_read_again_crosses_the_network_no_more(hosts: Hosts) -> None:
    writer, reader = hosts.client("b"), hosts.client("a")
    assert writer.ask("put", key="a", version=1, size=SIZE) == "ok"
    _read_until_hot(reader, "a", 1)
    other = hosts.client("a")  # another process of that host
    _read_until_hot(other, "a", 1)
    before, gets = hosts.crossed(), _hot_gets(other)
    for _ in range(20):
        _read(other, "a", 1)
    assert _hot_gets(other) == gets + 20
    assert hosts.crossed() - before < SIZE // 4


def test_what_was_removed_or_put_again_is_seen_at_once(hosts: Hosts) -> None:
    writer, reader = hosts.client("b"), hosts.client("a")
    for version in range(4):
        assert writer.ask("put", key="a", version=version, size=SIZE) == "ok"
        _read_until_hot(reader, "a", version)
        assert writer.ask("remove", key="a") == "ok"
        assert reader.ask("get_loop", key="a", versions=9, size=SIZE, count=3) == {"NOT_FOUND": 3}


def test_a_node_that_stops_or_dies_costs_nothing_but_its_cache(hosts: Hosts) -> None:
    writer, reader = hosts.client("b"), hosts.client("a")
    assert writer.ask("put", key="a", version=1, size=SIZE) == "ok"
    _read_until_hot(reader, "a", 1)
    hosts.keeper.stop()
    gets = _hot_gets(reader)
    for _ in range(5):
        _read(reader, "a", 1)
    assert _hot_gets(reader) == gets + 5  # nobody of the node is asked
    hosts.keeper.go_on()
    hosts.keeper.kill()
    _read(reader, "a", 1)
    hosts.keeper.restart()
    _read_until_hot(reader, "a", 1)


def test_a_view_of_what_is_hot_is_in_place_and_outlives_it(hosts: Hosts) -> None:
    writer, reader = hosts.client("b"), hosts.client("a")
    assert writer.ask("put", key="a", version=1, size=SIZE) == "ok"
    assert reader.ask("look", key="a") == "a copy"
    _read_until_hot(reader, "a", 1)
    other = hosts.client("a")
    _read_until_hot(other, "a", 1)
    before = hosts.crossed()
    assert [client.ask("look", key="a") for client in (reader, other)] == ["in place"] * 2
    assert hosts.crossed() - before < SIZE // 4
    assert writer.ask("remove", key="a") == "ok"
    assert "NotFound" in reader.ask("look", key="a")["error"]
    # the key's next object takes the place of the entry, and others come and go
    for version in range(2, 6):
        assert writer.ask("put", key="a", version=version, size=SIZE) == "ok"
        _read_until_hot(reader, "a", version)
        assert writer.ask("remove", key="a") == "ok"
    for number in range(24):
        assert writer.ask("put", key=f"k{number}", version=1, size=SIZE) == "ok"
        _read_until_hot(reader, f"k{number}", 1)
    assert [client.ask("looked_at", key="a", version=1) for client in (reader, other)] == ["same"] * 2
    other.kill()
    assert reader.ask("looked_at", key="a", version=1) == "same"
