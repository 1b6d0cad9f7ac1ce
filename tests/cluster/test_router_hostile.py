"""The router between clients and servers that send what no well-behaved one would."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from multidict import CIMultiDict

from fakes.openai_server import PARAMS, FakeServer, servers
from moontide.errors import Invalid
from moontide.router.backends import Backend
from moontide.router.flow import Limits
from moontide.router.rewrite import parse, strip
from tests.cluster.test_router import BODY, pair, routing


def respond(status: int = 200, body: bytes = b"{}", headers: Any = None) -> Any:
    async def behave(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers=headers)

    return behave


@asynccontextmanager
async def raw_server(data: bytes) -> AsyncIterator[str]:
    """(its URL.) It says ``data`` to whoever sends a request, and closes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


async def test_cookies_of_one_client_are_not_sent_for_another() -> None:
    d = FakeServer("D")
    d.behave = respond(headers=CIMultiDict([("Set-Cookie", "session=of-a"), ("Set-Cookie", "second=2")]))
    # Cookies are kept for names, never for addresses.
    async with servers(d), routing([], [f"http://localhost:{d.port}"]) as client:
        async with client.session.post(client.url + "/v1/completions", json=BODY) as first:
            assert first.headers.getall("Set-Cookie") == ["session=of-a", "second=2"]
        await client.post(headers={"Cookie": "own=b"})
        await client.post()
    assert [headers.get("Cookie") for headers in d.headers] == [None, "own=b", None]


async def test_fields_pass_with_all_their_values() -> None:
    p, d = pair()
    d.behave = respond(headers=CIMultiDict([("X-Many", "1"), ("X-Many", "2"), ("X-Moontide-Reason", "forged")]))
    async with routing([p], [d]) as client:
        sent = CIMultiDict(
            [
                ("X-Forwarded-For", "a"),
                ("X-Forwarded-For", "b"),
                ("content-type", "text/plain"),
                ("Connection", "keep-alive, X-This-Leg"),
                ("X-This-Leg", "1"),
            ]
        )
        async with client.session.post(client.url + "/v1/completions", data=json.dumps(BODY), headers=sent) as response:
            assert response.headers.getall("X-Many") == ["1", "2"]
            assert "x-moontide-reason" not in response.headers, "only the router says which way a request took"
    for fake in (p, d):
        got = CIMultiDict(fake.headers[0])
        assert got.getall("X-Forwarded-For") == ["a", "b"] and "X-This-Leg" not in got
        assert got.getall("Content-Type") == ["application/json"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_passed_on_and_not_followed(status: int) -> None:
    elsewhere, p, d = FakeServer("E", params=PARAMS), *pair()
    async with servers(elsewhere), routing([p], [d]) as client:
        to = {"Location": elsewhere.url + "/v1/completions"}
        p.behave = d.behave = respond(status, headers=to)
        async with client.session.post(client.url + "/v1/completions", json=BODY, allow_redirects=False) as response:
            assert response.status == status and response.headers["Location"] == to["Location"]
            assert response.headers["x-moontide-reason"] == "prefill_refused"
    assert elsewhere.bodies == [] and len(p.bodies) == len(d.bodies) == 1


async def test_a_redirect_of_the_list_of_models_is_passed_on() -> None:
    data = b"HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    async with (
        raw_server(data) as url,
        routing([], [url]) as client,
        client.session.get(client.url + "/v1/models", allow_redirects=False) as response,
    ):
        assert (response.status, response.headers["Location"]) == (307, "http://127.0.0.1:1/")


@pytest.mark.parametrize("depth", [201, 950, 985, 990, 100_000])
async def test_deep_nesting_of_a_client_is_refused(depth: int) -> None:
    p, d = pair()
    async with routing([p], [d], Limits()) as client:
        for body in (b'{"prompt": "x", "a": ' + nested(depth) + b"}", nested(depth)):
            status, content, _ = await client.post(body)
            assert status == 400 and "nested" in content["error"]["message"]
    assert p.bodies == d.bodies == []


@pytest.mark.parametrize("depth", [250, 950, 985, 100_000])
async def test_deep_nesting_of_a_prefill_server_leads_to_decode_alone(depth: int) -> None:
    p, d = pair()
    p.behave = respond(body=b'{"kv_transfer_params": {"a": ' + nested(depth) + b"}}")
    async with routing([p], [d]) as client:
        status, content, headers = await client.post()
    assert (status, content["choices"][0]["text"]) == (200, "D")
    assert headers["x-moontide-reason"] == "no_hand_over" and d.bodies == [BODY]


def test_the_depth_is_that_of_nesting_not_of_brackets() -> None:
    assert len(parse(b"[" + b",".join([nested(199)] * 3) + b"]")) == 3
    assert len(parse(b'{"a":"' + b"[" * 500 + b'"}')["a"]) == 500
    with pytest.raises(ValueError, match="nested"):
        parse(b'{"a":' + nested(200) + b"}")


def test_params_in_extra_arguments_are_stripped() -> None:
    body: dict[str, Any] = {"prompt": "x", "vllm_xargs": {"kv_transfer_params": ["evil"], "kept": 1}}
    assert strip(body) and body == {"prompt": "x", "vllm_xargs": {"kept": 1}}
    assert not strip(body) and not strip({"vllm_xargs": ["kv_transfer_params"]})


PACKED = json.dumps(BODY).encode()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"nonsense"),
        ("gzip", gzip.compress(PACKED) + b"xx"),
        ("gzip", zlib.compress(PACKED)),
        ("deflate", b"nonsense"),
        ("deflate", gzip.compress(PACKED)),
    ],
    ids=["nonsense", "more-at-the-end", "zlib-as-gzip", "nonsense-as-deflate", "gzip-as-deflate"],
)
async def test_a_body_that_belies_its_encoding(encoding: str, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    p, d = pair()
    async with routing([p], [d]) as client:
        headers = {"Content-Encoding": encoding}
        status, content, _ = await client.post(body, headers=headers)
        assert status == 400 and "encoding" in content["error"]["message"]
        good = (gzip if encoding == "gzip" else zlib).compress(PACKED)
        assert (await client.post(good, headers=headers))[0] == 200
    assert len(p.bodies) == len(d.bodies) == 1
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("packed", [False, True])
async def test_a_long_prefill_answer_is_not_read_to_its_end(packed: bool) -> None:
    p, d = pair()
    ended = asyncio.Event()
    pieces = 0

    async def endless(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal pieces
        response = web.StreamResponse(headers={"Content-Encoding": "gzip"} if packed else {})
        await response.prepare(request)
        packer = zlib.compressobj(wbits=31)
        try:
            while True:
                piece = b" " * 65536
                if packed:
                    piece = packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH)
                await response.write(piece)
                pieces += 1
                await asyncio.sleep(0)
        finally:
            ended.set()

    p.behave = endless
    limits = Limits(prefill_timeout=60, answer_bytes=1 << 20)
    async with routing([p], [d], limits) as client:
        for count in (1, 2):
            status, content, headers = await client.post()
            assert (status, content["choices"][0]["text"]) == (200, "D")
            assert headers["x-moontide-reason"] == "prefill_too_long"
            assert len(p.bodies) == count, "the client's own options may be why: nobody else's requests suffer"
            await asyncio.wait_for(ended.wait(), 10)
    assert d.bodies == [BODY, BODY]


async def test_a_long_list_of_models_is_not_passed_on() -> None:
    d = FakeServer("D")
    data = b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b" " * 2000
    async with raw_server(data) as url, servers(d), routing([], [url, d.url], Limits(answer_bytes=1000)) as client:
        status, text = await client.get("/v1/models")
        assert status == 200 and '"D"' in text


@pytest.mark.parametrize("field", [b"X-Odd: a\x01b", b"X-Odd: \xff", b"Content-Type: a\x7fb"])
async def test_what_cannot_be_written_again_is_left_out(field: bytes) -> None:
    data = b"HTTP/1.1 200 OK\r\nX-Good: 1\r\n" + field + b"\r\nContent-Length: 2\r\n\r\n{}"
    async with raw_server(data) as url, routing([], [url]) as client:
        status, content, headers = await client.post()
        assert (status, content, headers["X-Good"]) == (200, {}, "1") and "X-Odd" not in headers


async def test_a_switch_of_protocols_is_no_answer() -> None:
    data = b"HTTP/1.1 101 Other\r\nUpgrade: other\r\nConnection: upgrade\r\n\r\n"
    async with raw_server(data) as url, routing([], [url]) as client:
        status, content, _ = await client.post()
        assert status == 502 and content["error"]["type"] == "decode_unavailable"
        assert (await client.get("/v1/models"))[0] == 503


async def test_credentials_of_clients_are_neither_logged_nor_shown(caplog: pytest.LogCaptureFixture) -> None:
    async with raw_server(b"nonsense\r\n\r\n") as url, routing([url], [url]) as client:
        with caplog.at_level(logging.DEBUG, "moontide"):
            status, content, _ = await client.post(headers={"Authorization": "Bearer secret-of-a"})
    assert status == 502 and "broke off" in content["error"]["message"]
    assert "prefill_unreachable" in caplog.text or "probation" in caplog.text
    assert "secret-of-a" not in caplog.text + json.dumps(content)


async def test_the_list_of_models_is_asked_for_in_the_clients_name() -> None:
    seen: list[str | None] = []

    async def models(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"data": []})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with routing([], [f"http://127.0.0.1:{runner.addresses[0][1]}"]) as client:
            for key in ("Bearer a", None):
                headers = {} if key is None else {"Authorization": key}
                async with client.session.get(client.url + "/v1/models", headers=headers) as response:
                    assert response.status == 200
    finally:
        await runner.cleanup()
    assert seen == ["Bearer a", None]


@pytest.mark.parametrize(
    "url",
    ["http://user:secret@h:1", "http://u:secret@h:x", "http://user@h", "http://h:99999", "http://h:x", "http://["],
)
def test_urls_that_would_fail_later_are_refused_at_once(url: str) -> None:
    with pytest.raises(Invalid) as raised:
        Backend(url)
    assert "secret" not in str(raised.value)
