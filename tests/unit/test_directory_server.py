"""The master's directory as a server: bounds, strangers, and the table against a small model."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from moontide._http import HttpListener
from moontide.directory import Record, connect
from moontide.directory.http import HttpDirectory
from moontide.directory.server import SegmentService
from moontide.directory.table import SegmentTable, _size
from moontide.errors import Denied, Invalid, NoSpace, NotFound, Overloaded, Stale, Unavailable
from support.waiting import wait_for_async

A, B = "a" * 32, "b" * 32


def offer(name: str, instance: str = A, epoch: int = 0, address: str = "127.0.0.1:1") -> Record:
    return Record(name=name, address=address, instance=instance, epoch=epoch)


class Clock:
    """Seconds that the test moves; the wall clock can be set back."""

    def __init__(self) -> None:
        self.now = 100.0
        self.wall = 1_000_000_000

    def table(self, **bounds: int) -> SegmentTable:
        return SegmentTable(lambda: self.now, lambda: self.wall, **bounds)


# --- the table ---


def test_epochs_grow_though_the_wall_clock_goes_back() -> None:
    clock = Clock()
    table = clock.table()
    first = table.publish(offer("x"), 10)
    clock.wall -= 500_000_000
    second = table.publish(offer("x", B), 10)
    assert (first.epoch, second.epoch) == (1_000_000_000, 1_000_000_001)


def test_the_number_and_the_bytes_of_records_are_bounded() -> None:
    clock = Clock()
    table = clock.table(count_max=3)
    for name in ("a", "b", "c"):
        table.publish(offer(name), 10)
    with pytest.raises(NoSpace, match="3 segments"):
        table.publish(offer("d"), 10)
    table.publish(offer("a"), 10)
    table.withdraw("b", A)
    table.publish(offer("d"), 10)
    clock.now += 11
    table.publish(offer("e"), 10)
    assert len(table) == 1
    small = clock.table(bytes_max=1000)
    small.publish(offer("a"), 10)
    small.publish(offer("b"), 10)
    with pytest.raises(NoSpace, match="bytes"):
        small.publish(offer("c"), 10)
    with pytest.raises(NoSpace, match="bytes"):
        small.publish(offer("a", address="h" * 200 + ":1"), 10)
    small.publish(offer("a", B), 10)


def test_publishing_and_withdrawing_over_and_over_leaves_nothing() -> None:
    clock = Clock()
    table = clock.table()
    for turn in range(5000):
        table.publish(offer("x"), 3600 - turn % 7)
        table.withdraw("x", A)
    assert len(table._ends) < 100
    assert (len(table), table.nbytes) == (0, 0)


names = st.sampled_from(["a", "a/b", "ab", "b", "b-1"])
steps = st.lists(
    st.tuples(
        st.sampled_from(["claim", "renew", "withdraw", "wait"]), names, st.sampled_from([A, B]), st.integers(1, 9)
    ),
    max_size=60,
)


@given(steps)
def test_the_table_does_what_its_rules_say(script: list[tuple[str, str, str, int]]) -> None:
    clock = Clock()
    table = clock.table()
    model: dict[str, tuple[Record, float]] = {}
    had: dict[tuple[str, str], Record] = {}  # what each instance was last told
    newest: dict[str, int] = {}
    for step, name, instance, number in script:
        model = {key: value for key, value in model.items() if value[1] > clock.now}
        current = model[name][0] if name in model else None
        if step == "wait":
            clock.now += number / 2
        elif step == "withdraw":
            own = current is not None and current.instance == instance
            assert table.withdraw(name, instance) == own or name not in model
            if own:
                del model[name]
        elif step == "claim":
            stored = table.publish(offer(name, instance), number)
            if current is not None and current.instance == instance:
                assert stored == current
            else:
                assert stored.epoch > (current.epoch if current else 0)
                clock.wall += 1
            newest[name] = max(newest.get(name, 0), stored.epoch)
            model[name], had[name, instance] = (stored, clock.now + number), stored
        elif (name, instance) in had:
            mine = had[name, instance]
            if current is not None and current.instance != instance and current.epoch >= mine.epoch:
                with pytest.raises(Stale):
                    table.publish(mine, number)
            else:
                assert table.publish(mine, number).epoch >= mine.epoch
                model[name] = (table.lookup(name), clock.now + number)
        model = {key: value for key, value in model.items() if value[1] > clock.now}
        assert table.list("", "", 100) == [model[key][0] for key in sorted(model)]
        assert [record.name for record in table.list("a", "a", 100)] == sorted({"a/b", "ab"} & model.keys())
        assert len(table) == len(model)


# --- the service and its listener ---


@contextlib.asynccontextmanager
async def served(service: SegmentService, **options: Any) -> AsyncIterator[str]:
    app = web.Application(client_max_size=4096)
    app.add_routes(service.routes())
    listener = HttpListener(app, **options)
    try:
        yield await listener.start("127.0.0.1:0")
    finally:
        await listener.close()


async def test_requests_beyond_the_rate_are_told_to_come_later() -> None:
    clock = Clock()
    service = SegmentService(rate=10, burst=5, clock=lambda: clock.now)
    async with served(service) as address:
        directory = HttpDirectory(address, timeout=5)
        for _ in range(5):
            await directory.list()
        with pytest.raises(Overloaded, match="10 requests per second"):
            await directory.list()
        clock.now += 0.2
        await directory.list()
        await directory.list()
        with pytest.raises(Overloaded):
            await directory.list()
        await directory.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/v1/segments/x", b"", 400),
        ("PUT", "/v1/segments/x", b"{", 400),
        ("PUT", "/v1/segments/x", b"[" * 4000, 400),
        ("PUT", "/v1/segments/x", b"{}", 400),
        ("PUT", "/v1/segments/x", b'{"address":"127.0.0.1:1","instance":"x","ttl":9}', 400),
        ("PUT", "/v1/segments/x", b'{"address":"127.0.0.1:1","instance":"%s","ttl":1e999}' % A.encode(), 400),
        ("PUT", "/v1/segments/x", b'{"address":"127.0.0.1:1","instance":"%s","ttl":"9"}' % A.encode(), 400),
        ("PUT", "/v1/segments/a%20b", b'{"address":"127.0.0.1:1","instance":"%s","ttl":9}' % A.encode(), 400),
        ("PUT", "/v1/segments/x", b" " * 5000, 413),
        ("GET", "/v1/segments/%2e%2e/%2e%2e/x", None, 400),
        ("GET", "/v1/segments/x", None, 404),
        ("GET", "/v1/segments?limit=0", None, 400),
        ("GET", "/v1/segments?limit=-1", None, 400),
        ("GET", "/v1/segments?limit=9999999999", None, 400),
        ("GET", "/v1/segments?prefix=%00", None, 400),
        ("DELETE", "/v1/segments/x", None, 200),
        ("POST", "/v1/segments/x", None, 405),
        ("GET", "/other", None, 404),
    ],
)
async def test_odd_requests_are_answered_and_change_nothing(
    method: str, path: str, body: bytes | None, status: int
) -> None:
    service = SegmentService()
    async with served(service) as address, aiohttp.ClientSession() as session:
        url = aiohttp.client.URL(f"http://{address}{path}", encoded=True)
        async with session.request(method, url, data=body) as answer:
            assert answer.status == status, await answer.text()
            if status == 400:
                assert msgspec.json.decode(await answer.read())["error"]["code"] == "INVALID"
        assert len(service.table) == 0


async def test_the_dead_are_counted_out() -> None:
    clock = Clock()
    service = SegmentService(clock.table())
    async with served(service) as address, aiohttp.ClientSession() as session:
        directory = HttpDirectory(address, timeout=5)
        for number in range(100):
            await directory.publish(offer(f"dead-{number}"), 5)
        alive = await directory.publish(offer("alive"), 50)
        with pytest.raises(NotFound):
            await directory.lookup("nobody")
        with pytest.raises(Stale):
            await directory.publish(offer("alive", B, epoch=1), 50)
        assert service.counts() | {"bytes": 0} == {
            "segments": 101,
            "bytes": 0,
            "expired": 0,
            "requests": 103,
            "refused": 1,
        }
        clock.now += 6
        assert await directory.list() == [alive]
        async with session.get(f"http://{address}/v1/directory") as answer:
            counts = await answer.json()
        assert (counts["segments"], counts["expired"], counts["requests"]) == (1, 100, 105)
        assert 0 < counts["bytes"] < 1000
        await directory.close()


def test_the_table_may_be_asked_by_other_threads() -> None:
    clock = Clock()
    table = clock.table()
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            assert len(table) <= 10
            assert len(table.list("", "", 100)) <= 10

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        watching = [threads.submit(watch) for _ in range(2)]
        for turn in range(3000):
            table.publish(offer(f"x{turn % 10}"), 1 + turn % 3)
            if turn % 4 == 0:
                table.withdraw(f"x{turn % 7}", A)
            clock.now += 0.1
        ended.set()
        for each in watching:
            each.result(20)
    assert table.nbytes == sum(_size(record) for record in table.list("", "", 100))


async def test_a_full_table_is_no_space() -> None:
    service = SegmentService(Clock().table(count_max=1))
    async with served(service) as address:
        directory = HttpDirectory(address, timeout=5)
        await directory.publish(offer("a"), 10)
        with pytest.raises(NoSpace):
            await directory.publish(offer("b"), 10)
        with pytest.raises(NotFound):
            await directory.lookup("b")
        await directory.close()


async def test_who_takes_all_places_cannot_keep_them() -> None:
    async with served(SegmentService(), connections_max=8) as address:
        host, port = address.split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(8)]
        idle[0][1].write(b"GET /v1/segments HTTP/1.1\r\nHost: x\r\n")  # and no end of the headers
        directory = HttpDirectory(address, timeout=5)
        assert await directory.list() == []
        assert await asyncio.wait_for(idle[0][0].read(), 10) == b""
        more = [await asyncio.open_connection(host, int(port)) for _ in range(30)]
        for reader, _ in [*idle[1:], *more[:-8]]:
            assert await asyncio.wait_for(reader.read(), 10) == b""
        assert await directory.list() == []
        await directory.close()
        for _, writer in [*idle, *more]:
            writer.close()


async def test_a_connection_without_a_whole_request_is_dropped() -> None:
    async with served(SegmentService(), patience=1.0) as address:
        host, port = address.split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        idle[0][1].write(b"GET /v1/segments HTTP/1.1\r\nHost: x\r\n")  # and no end of the headers
        idle[1][1].write(b"PUT /v1/segments/x HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")  # nor of the body
        for reader, writer in idle:
            await asyncio.wait_for(reader.read(), 20)
            writer.close()


async def test_a_place_that_is_being_answered_is_not_taken() -> None:
    going_on = asyncio.Event()

    async def wait(request: web.Request) -> web.Response:
        await going_on.wait()
        return web.Response(text="done")

    app = web.Application()
    app.add_routes([web.get("/wait", wait)])
    listener = HttpListener(app, connections_max=2)
    address = await listener.start("127.0.0.1:0")
    async with aiohttp.ClientSession() as session:
        waiting = [asyncio.create_task(_text(session, f"http://{address}/wait")) for _ in range(2)]
        await wait_for_async(lambda: list(listener._since.values()) == [float("inf")] * 2)
        with pytest.raises(aiohttp.ClientError):
            await _text(session, f"http://{address}/wait")
        going_on.set()
        assert await asyncio.gather(*waiting) == ["done", "done"]
        assert await _text(session, f"http://{address}/wait") == "done"
    await listener.close()


async def _text(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as answer:
        return await answer.text()


async def test_connections_that_come_and_go_are_forgotten() -> None:
    app = web.Application()
    app.add_routes(SegmentService().routes())
    listener = HttpListener(app, connections_max=4)
    address = await listener.start("127.0.0.1:0")
    for _ in range(40):
        directory = HttpDirectory(address, timeout=5)
        await directory.list()
        await directory.close()
    await wait_for_async(lambda: not listener._since, 20, "the sweep")
    await listener.close()


async def test_every_form_of_a_loopback_address_is_listened_at() -> None:
    for listen in ("127.0.0.1:0", "127.1.2.3:0", "localhost:0", *(["[::1]:0"] if _has_ipv6() else [])):
        app = web.Application()
        app.add_routes(SegmentService().routes())
        listener = HttpListener(app)
        address = await listener.start(listen)
        async with connect(f"http://{address}") as directory:
            assert directory.local
            record = await directory.publish(offer("x", address=address), 10)
            assert await directory.lookup("x") == record
        await listener.close()


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


EVERYWHERE = """
import asyncio
from aiohttp import web
from moontide._http import HttpListener
print(asyncio.run(HttpListener(web.Application(), anywhere=True).start("0.0.0.0:0")))
"""


def test_the_waiver_opens_other_addresses() -> None:
    command = ["unshare", "--map-root-user", "--net", sys.executable, "-c", EVERYWHERE]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("0.0.0.0:")


async def test_the_listener_says_what_is_wrong_with_its_address() -> None:
    with pytest.raises(Denied, match="loopback.*http_reach"):
        await HttpListener(web.Application()).start("0.0.0.0:0")
    with pytest.raises(Invalid, match="http_listen"):
        await HttpListener(web.Application()).start("inproc:x")
    async with served(SegmentService()) as address:
        with pytest.raises(Unavailable, match=address):
            await HttpListener(web.Application()).start(address)
