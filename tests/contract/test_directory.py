"""One suite over every directory. The servers are real ones: `moontide master`, etcd, Redis."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from moontide.directory import Directory, Publication, Record, connect
from moontide.errors import Invalid, MoontideError, NotFound, Stale, TimedOut, Unavailable
from support.directory_servers import SERVERS, DirectoryServer
from support.waiting import wait_for_answer, wait_for_async

TIMEOUT = 5.0


def instance() -> str:
    return uuid.uuid4().hex


def offer(name: str, port: int = 7700) -> Record:
    """A claim of a new instance."""
    return Record(name=name, address=f"127.0.0.1:{port}", instance=instance())


async def found(directory: Directory, name: str) -> Record | None:
    try:
        return await directory.lookup(name)
    except NotFound:
        return None


async def until(directory: Directory, name: str, expected: Record | None, seconds: float) -> None:
    """Waits until the directory answers so; no answer is none."""

    async def as_expected() -> bool:
        try:
            return await found(directory, name) == expected
        except (Unavailable, TimedOut):
            return False

    await wait_for_answer(as_expected, seconds, f"{expected} under {name}")


@pytest.fixture(scope="module", params=list(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DirectoryServer]:
    """Shared by the tests that leave it as it is; they use names of their own."""
    made = SERVERS[request.param](tmp_path_factory.mktemp(request.param))
    yield made
    made.kill()


@pytest.fixture(params=list(SERVERS))
def victim(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DirectoryServer]:
    """One to be stopped and killed."""
    made = SERVERS[request.param](tmp_path)
    yield made
    made.kill()


@pytest.fixture
async def directory(server: DirectoryServer) -> AsyncIterator[Directory]:
    async with connect(server.url, timeout=TIMEOUT) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"t{instance()[:12]}/decode-1"


# --- direct and the others ---


async def test_an_address_is_its_own_name() -> None:
    async with connect("direct") as directory:
        for address in ("127.0.0.1:7700", "[::1]:7700", "node-3.example:1"):
            assert await directory.lookup(address) == Record(name=address, address=address)
            record = Record(name=address, address=address, instance=instance())
            assert await directory.publish(record, 10) == record
            await directory.withdraw(record)
        for wrong in ("decode-1", "127.0.0.1", "0.0.0.0:80", "[::]:80", "127.0.0.1:0", ":80", "a b:1", "::1:80"):
            with pytest.raises(Invalid, match="directory|connect"):
                await directory.lookup(wrong)
        with pytest.raises(Invalid, match="option directory"):
            await directory.publish(offer("decode-1"), 10)
        assert await directory.list() == []


@pytest.mark.parametrize("url", ["ftp://127.0.0.1:1", "http:", "zk://127.0.0.1:1", "", "etcd", "http://127.0.0.1"])
def test_an_unknown_directory_is_refused_with_what_there_is(url: str) -> None:
    with pytest.raises(Invalid, match=r"HOST:PORT"):
        connect(url)


# --- what every server keeps to ---


async def test_what_is_published_is_found_until_it_is_withdrawn(directory: Directory, name: str) -> None:
    claimed = offer(name)
    stored = await directory.publish(claimed, 30)
    assert stored == msgspec.structs.replace(claimed, epoch=stored.epoch)
    assert stored.epoch > 0
    assert await directory.lookup(name) == stored
    assert await directory.publish(stored, 30) == stored
    assert await directory.list(name) == [stored]
    await directory.withdraw(stored)
    with pytest.raises(NotFound, match=name):
        await directory.lookup(name)
    assert await directory.list(name) == []
    await directory.withdraw(stored)


async def test_the_later_of_two_claimants_has_the_name(directory: Directory, name: str) -> None:
    first = await directory.publish(offer(name, 1), 30)
    second = await directory.publish(offer(name, 2), 30)
    assert second.epoch > first.epoch
    assert await directory.lookup(name) == second
    with pytest.raises(Stale) as caught:
        await directory.publish(first, 30)
    for word in (first.instance, second.instance, first.address, second.address, str(second.epoch)):
        assert word in str(caught.value)
    await directory.withdraw(first)
    assert await directory.lookup(name) == second
    assert await directory.publish(second, 30) == second


async def test_a_claim_whose_answer_was_lost_can_be_repeated(directory: Directory, name: str) -> None:
    claimed = offer(name)
    stored = await directory.publish(claimed, 30)
    assert await directory.publish(claimed, 30) == stored


async def test_the_newest_claim_wins_whoever_comes_first_to_an_empty_directory(directory: Directory, name: str) -> None:
    older = await directory.publish(offer(name, 1), 30)
    newer = await directory.publish(offer(name, 2), 30)
    await directory.withdraw(newer)
    assert await directory.publish(older, 30) == older  # the directory has forgotten the newer one
    assert await directory.publish(newer, 30) == newer
    with pytest.raises(Stale):
        await directory.publish(older, 30)
    assert await directory.lookup(name) == newer


async def test_many_claims_at_the_same_time_leave_one_with_the_name(directory: Directory, name: str) -> None:
    results = await asyncio.gather(
        *(directory.publish(offer(name, port), 30) for port in range(1, 9)), return_exceptions=True
    )
    stored = [record for record in results if isinstance(record, Record)]
    assert stored, results
    assert len({record.epoch for record in stored}) == len(stored)
    winner = max(stored, key=lambda record: record.epoch)
    assert await directory.lookup(name) == winner
    for record in stored:
        if record is not winner:
            with pytest.raises(Stale):
                await directory.publish(record, 30)


async def test_many_questions_at_the_same_time_are_all_answered(directory: Directory, name: str) -> None:
    stored = await directory.publish(offer(name), 60)
    answers = await asyncio.gather(*(directory.lookup(name) for _ in range(100)))
    assert answers == [stored] * 100


async def test_what_is_not_renewed_is_gone_after_its_time(directory: Directory, name: str) -> None:
    alive = await directory.publish(offer(name), 60)
    dead = await asyncio.gather(*(directory.publish(offer(f"{name}-{index}"), 1) for index in range(20)))
    for record in dead:
        await until(directory, record.name, None, 10)
    assert await directory.list(name) == [alive]


async def test_renewal_keeps_a_name_beyond_its_time(directory: Directory, name: str) -> None:
    publication = Publication(directory, offer(name), 1)
    await publication.start()
    end = time.monotonic() + 4

    async def still_there() -> bool:
        assert await directory.lookup(name) == publication.record
        return time.monotonic() > end

    await wait_for_answer(still_there)
    assert publication.state == "live"
    await publication.withdraw()
    await publication.withdraw()
    assert publication.state == "withdrawn"
    assert await found(directory, name) is None


async def test_who_lost_the_name_is_told_and_stays_away(directory: Directory, name: str) -> None:
    loser = Publication(directory, offer(name, 1), 1)
    await loser.start()
    winner = await directory.publish(offer(name, 2), 30)
    await wait_for_async(lambda: loser.state == "superseded", 10)
    assert isinstance(loser.error, Stale)
    assert winner.instance in str(loser.error)
    await loser.withdraw()
    assert loser.state == "superseded"
    assert await directory.lookup(name) == winner


async def test_lists_go_by_name_in_pages(directory: Directory) -> None:
    top = f"t{instance()[:12]}"
    names = [f"{top}{rest}" for rest in ("", "+x", "-1", "/a", "/a.b", "/a/c", "/b", "1", "@", "_")]
    assert names == sorted(names)
    for each in reversed(names):
        await directory.publish(offer(each), 30)
    other = await directory.publish(offer("z" + top), 30)
    assert [record.name for record in await directory.list(top)] == names
    assert [record.name for record in await directory.list(f"{top}/a")] == [f"{top}/a", f"{top}/a.b", f"{top}/a/c"]
    pages, after = [], ""
    while page := await directory.list(top, start_after=after, limit=3):
        pages.append(len(page))
        after = page[-1].name
    assert pages == [3, 3, 3, 1]
    assert other in await directory.list("z")
    assert await directory.list(top, start_after="z") == []
    assert [record.name for record in await directory.list(top, start_after="A", limit=2)] == names[:2]


@pytest.mark.parametrize(
    "bad", ["", "a b", "a:1", "/a", "a//b", "a/", "../x", "a/../b", ".a", "ä", "a\n", "a?x", "a%2f", "*", "x" * 201]
)
async def test_names_that_no_segment_has(directory: Directory, bad: str) -> None:
    with pytest.raises(Invalid, match="segment name"):
        await directory.lookup(bad)
    with pytest.raises(Invalid, match="segment name"):
        await directory.publish(offer(bad), 10)


@pytest.mark.parametrize(
    ("changes", "ttl", "word"),
    [
        ({"address": "0.0.0.0:1"}, 10, "connect"),
        ({"address": "127.0.0.1:0"}, 10, "connect"),
        ({"address": "127.0.0.1"}, 10, "HOST:PORT"),
        ({"address": "h" * 400 + ":1"}, 10, "bytes"),
        ({"instance": "me"}, 10, "instance"),
        ({"epoch": -1}, 10, "epoch"),
        ({"epoch": 1 << 53}, 10, "epoch"),
        ({}, 0.5, "ttl"),
        ({}, 1e9, "ttl"),
        ({}, float("nan"), "ttl"),
    ],
)
async def test_records_that_are_refused(
    directory: Directory, name: str, changes: dict[str, object], ttl: float, word: str
) -> None:
    with pytest.raises(Invalid, match=word):
        await directory.publish(msgspec.structs.replace(offer(name), **changes), ttl)
    assert await found(directory, name) is None


async def test_every_allowed_character_is_kept(directory: Directory) -> None:
    odd = f"{instance()}/A_z.9-x@y+z/" + "n" * 120
    stored = await directory.publish(Record(name=odd, address="[fe80::1%eth0]:65535", instance=instance()), 30)
    assert await directory.lookup(odd) == stored
    assert await directory.list(odd) == [stored]


async def test_a_proxy_of_the_environment_is_passed_by(server: DirectoryServer, name: str) -> None:
    code = (
        "import asyncio, sys, uuid\n"
        "from moontide.directory import Record, connect\n"
        "async def main():\n"
        "    async with connect(sys.argv[1], timeout=5) as directory:\n"
        "        record = Record(name=sys.argv[2], address='127.0.0.1:1', instance=uuid.uuid4().hex)\n"
        "        assert await directory.publish(record, 9) == await directory.lookup(sys.argv[2])\n"
        "asyncio.run(main())\n"
    )
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy", "https_proxy"), "http://127.0.0.1:9")
    environment = {key: value for key, value in os.environ.items() if key.lower() != "no_proxy"} | proxies
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, server.url, name, env=environment)
    assert await process.wait() == 0


# --- servers that fail ---


async def test_a_server_that_is_down_is_named_and_used_again_when_it_is_back(
    victim: DirectoryServer, name: str
) -> None:
    async with connect(victim.url, timeout=TIMEOUT) as directory:
        stored = await directory.publish(offer(name), 60)
        victim.kill()
        for work in (
            directory.lookup(name),
            directory.publish(stored, 30),
            directory.list(),
            directory.withdraw(stored),
        ):
            with pytest.raises(Unavailable, match=victim.address):
                await work
        victim.start()
        await until(directory, name, stored if victim.remembers else None, 30)
        assert await directory.publish(stored, 30) == stored
        assert await directory.lookup(name) == stored


async def test_a_server_that_hangs_costs_the_timeout_and_no_more(victim: DirectoryServer, name: str) -> None:
    async with connect(victim.url, timeout=1) as directory:
        stored = await directory.publish(offer(name), 60)
        victim.stop()
        began = time.monotonic()
        with pytest.raises(TimedOut, match=victim.address):
            await directory.lookup(name)
        with pytest.raises(TimedOut):
            await directory.publish(stored, 60)
        assert time.monotonic() - began < 10
        victim.go_on()
        await until(directory, name, stored, 30)


async def test_a_restarted_server_gets_the_names_back_from_those_who_live(victim: DirectoryServer, name: str) -> None:
    async with connect(victim.url, timeout=TIMEOUT) as directory, connect(victim.url, timeout=TIMEOUT) as other:
        publication = Publication(directory, offer(name, 1), 2)
        await publication.start()
        dead = await other.publish(offer(name + "-dead"), 2)
        victim.kill()
        await wait_for_async(lambda: publication.state == "away", 20)
        assert isinstance(publication.error, (Unavailable, TimedOut))
        victim.start()
        await wait_for_async(lambda: publication.state == "live", 20)
        await until(other, name, publication.record, 10)
        await until(other, dead.name, None, 20)
        later = await other.publish(offer(name, 2), 30)
        assert later.epoch > publication.record.epoch
        await wait_for_async(lambda: publication.state == "superseded", 20)
        await publication.withdraw()


async def test_a_claim_at_a_server_that_forgot_is_still_the_newest(victim: DirectoryServer, name: str) -> None:
    async with connect(victim.url, timeout=TIMEOUT) as directory:
        older = await directory.publish(offer(name, 1), 60)
        victim.restart()
        await until(directory, name, older if victim.remembers else None, 30)
        newer = await directory.publish(offer(name, 2), 60)
        assert newer.epoch > older.epoch
        with pytest.raises(Stale):
            await directory.publish(older, 60)


@pytest.mark.parametrize("scheme", list(SERVERS))
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\xff" * 200,
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n}}}}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{"kvs":[{"value":"e30="}]}',
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 5\r\n\r\n<htm>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b" " * (9 << 20),
        b"$3\r\nfoo\r\n" * 50,
        b"-ERR no\r\n" * 50,
    ],
)
async def test_what_is_no_directory_is_told_so(scheme: str, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read(1)
            writer.write(answer)
            await writer.drain()
        writer.close()

    fake = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = fake.sockets[0].getsockname()[1]
    async with fake, connect(f"{scheme}://127.0.0.1:{port}", timeout=1) as directory:
        for work in (directory.lookup("a"), directory.publish(offer("a"), 10), directory.list("a")):
            with pytest.raises(MoontideError) as caught:
                await work
            assert isinstance(caught.value, (Unavailable, TimedOut)), caught.value


def test_a_missing_redis_package_is_said(name: str) -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from moontide.directory import connect\n"
        "from moontide.errors import Unsupported\n"
        "try: connect('redis://127.0.0.1:1')\n"
        "except Unsupported as error: assert 'moontide[redis]' in str(error), error\n"
        "else: raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
