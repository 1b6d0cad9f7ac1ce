"""The router before fake servers: what each leg is sent, and every way in which a leg fails."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from fakes.openai_server import PARAMS, FakeServer, servers, stream
from moontide.errors import Denied, Invalid, Unavailable
from moontide.router.app import Router, serve
from moontide.router.backends import Backend, Group
from moontide.router.flow import Limits
from moontide.router.rewrite import decode_alone, prefill_body

QUICK = Limits(connect_timeout=0.5, prefill_timeout=1.0, silence_timeout=2.0, body_bytes=4096)
BODY = {"model": "m", "prompt": "hello", "max_tokens": 5}


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str, router: Router) -> None:
        self.session = session
        self.url = url
        self.router = router

    async def post(
        self, body: Any = None, path: str = "/v1/completions", **options: Any
    ) -> tuple[int, Any, dict[str, str]]:
        data = body if isinstance(body, (bytes, str)) else json.dumps(BODY if body is None else body)
        async with self.session.post(self.url + path, data=data, **options) as answer:
            text = await answer.text()
            try:
                content: Any = json.loads(text)
            except ValueError:
                content = text
            return answer.status, content, dict(answer.headers)

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url + path) as answer:
            return answer.status, await answer.text()


@asynccontextmanager
async def routing(
    prefill: list[FakeServer | str], decode: list[FakeServer | str], limits: Limits = QUICK
) -> AsyncIterator[Client]:
    fakes = [item for item in (*prefill, *decode) if isinstance(item, FakeServer)]
    async with servers(*fakes):
        urls = [[item if isinstance(item, str) else item.url for item in group] for group in (prefill, decode)]
        router = Router(*urls, limits)
        runner = web.AppRunner(router.app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
                yield Client(session, f"http://127.0.0.1:{runner.addresses[0][1]}", router)
        finally:
            await runner.cleanup()


def pair() -> tuple[FakeServer, FakeServer]:
    return FakeServer("P", params=PARAMS), FakeServer("D")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "m", "prompt": "x", "max_tokens": 9, "min_tokens": 3, "user": "u"}),
        ("/v1/completions", {"model": "m", "prompt": [1, 2, 3]}),
        ("/v1/completions", {"model": "m", "prompt": ["x"], "n": 1}),
        (
            "/v1/chat/completions",
            {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 4},
        ),
    ],
)
async def test_a_request_goes_through_both(path: str, body: dict[str, Any]) -> None:
    p, d = pair()
    async with routing([p], [d]) as client:
        status, content, headers = await client.post(
            body, path, headers={"Authorization": "Bearer k", "X-Request-Id": "7"}
        )
    assert (status, content["choices"][0]["text"]) == (200, "D")
    assert headers["x-moontide-path"] == "prefill+decode" and "x-moontide-reason" not in headers
    first, second = p.bodies[0], d.bodies[0]
    assert first["max_tokens"] == 1 and first["stream"] is False and first.get("max_completion_tokens", 1) == 1
    assert "min_tokens" not in first and "stream_options" not in first
    assert first["kv_transfer_params"] == {"do_remote_decode": True, "do_remote_prefill": False}
    assert second == {**body, "kv_transfer_params": PARAMS}
    for fake in (p, d):
        assert fake.headers[0]["Authorization"] == "Bearer k" and fake.headers[0]["X-Request-Id"] == "7"


async def test_a_stream_comes_through_in_pieces() -> None:
    p, d = pair()
    go = asyncio.Event()

    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: one\n\n")
        await go.wait()
        await response.write(b"data: two\n\n")
        return response

    d.behave = slow
    async with routing([p], [d]) as client:
        body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
        async with client.session.post(client.url + "/v1/completions", json=body) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            assert await answer.content.readline() == b"data: one\n"
            go.set()
            assert (await answer.read()).endswith(b"data: two\n\n")
    assert "stream_options" not in p.bodies[0] and d.bodies[0]["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompt": ["a", "b"]}, "several_prompts"),
        ({"prompt": [[1], [2]]}, "several_prompts"),
        ({"n": 2}, "several_answers"),
        ({"best_of": 2}, "several_answers"),
        ({"use_beam_search": True}, "beam_search"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"echo": True}, "prompt_logprobs"),
        ({"prompt": None}, "body"),
        ({"prompt": 7}, "body"),
    ],
)
async def test_what_cannot_be_split_goes_to_decode_alone(change: dict[str, Any], reason: str) -> None:
    p, d = pair()
    async with routing([p], [d]) as client:
        status, _, headers = await client.post({**BODY, **change})
    assert status == 200 and headers["x-moontide-path"] == "decode" and headers["x-moontide-reason"] == reason
    assert p.bodies == [] and d.bodies == [{**BODY, **change}]


async def test_params_of_clients_are_stripped() -> None:
    p, d = pair()
    async with routing([p], [d]) as client:
        await client.post({**BODY, "kv_transfer_params": {"do_remote_prefill": True, "hold": "evil"}})
        await client.post({**BODY, "n": 2, "kv_transfer_params": {"do_remote_prefill": True}})
        page = (await client.get("/metrics"))[1]
    assert d.bodies[0]["kv_transfer_params"] == PARAMS and "kv_transfer_params" not in d.bodies[1]
    assert "moontide_router_stripped_params_total 2.0" in page


async def crash(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """The connection breaks without an answer."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def crash_in_the_middle(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b"{")
    assert request.transport is not None
    request.transport.close()
    return response


async def hang(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.Event().wait()
    return web.Response()


def answer(status: int, body: Any) -> Any:
    async def behave(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return behave


@pytest.mark.parametrize(
    ("behave", "reason", "trusted"),
    [
        (crash, "prefill_unreachable", False),
        (crash_in_the_middle, "prefill_unreachable", False),
        (hang, "prefill_timeout", False),
        (answer(500, {"error": "dead"}), "prefill_error", False),
        (answer(503, {"error": "loading"}), "prefill_error", False),
        (answer(400, {"error": "bad"}), "prefill_refused", True),
        (answer(200, {"choices": []}), "no_hand_over", True),
        (answer(200, ["?"]), "no_hand_over", True),
        (answer(200, {"kv_transfer_params": "x"}), "no_hand_over", True),
    ],
)
async def test_a_failing_prefill_server_costs_only_itself(behave: Any, reason: str, trusted: bool) -> None:
    p, d = pair()
    p.behave = behave
    async with routing([p], [d]) as client:
        began = time.monotonic()
        status, content, headers = await client.post()
        assert (status, content["choices"][0]["text"], headers["x-moontide-reason"]) == (200, "D", reason)
        assert time.monotonic() - began < 3
        assert d.bodies == [BODY]
        _, _, headers = await client.post()
        assert len(p.bodies) == (2 if trusted else 1)
        assert headers["x-moontide-reason"] == (reason if trusted else "prefill_on_probation")


async def test_a_prefill_server_that_is_gone_and_returns(unused_tcp_port: int) -> None:
    p, d = pair()
    now = [0.0]
    async with routing([f"http://127.0.0.1:{unused_tcp_port}"], [d]) as client:
        client.router.prefill.backends[0]._clock = lambda: now[0]
        assert (await client.post())[2]["x-moontide-reason"] == "prefill_unreachable"
        assert (await client.post())[2]["x-moontide-reason"] == "prefill_on_probation"
        await p.start(unused_tcp_port)
        now[0] = 1.5
        assert (await client.post())[2]["x-moontide-path"] == "prefill+decode"
        await p.stop()


async def test_without_prefill_servers() -> None:
    _, d = pair()
    async with routing([], [d]) as client:
        status, _, headers = await client.post()
        assert (status, headers["x-moontide-reason"]) == (200, "no_prefill")


async def test_no_decode_server_answers(unused_tcp_port: int) -> None:
    p, _ = pair()
    async with routing([p], [f"http://127.0.0.1:{unused_tcp_port}"]) as client:
        began = time.monotonic()
        status, content, _ = await client.post()
        assert status == 503 and "cannot reach" in content["error"]["message"]
        assert time.monotonic() - began < 3
        status, text = await client.get("/health")
        assert status == 503 and "probation" in text


async def test_another_decode_server_takes_over_one_that_is_gone(unused_tcp_port: int) -> None:
    p, d = pair()
    async with routing([p], [f"http://127.0.0.1:{unused_tcp_port}", d]) as client:
        for _ in range(4):
            status, content, _ = await client.post()
            assert (status, content["choices"][0]["text"]) == (200, "D")
        assert (await client.get("/health"))[0] == 200


@pytest.mark.parametrize("behave", [crash, hang])
async def test_a_decode_server_that_breaks_off_gives_a_clear_error(behave: Any) -> None:
    p, d = pair()
    d.behave = behave
    limits = Limits(connect_timeout=0.5, prefill_timeout=1.0, silence_timeout=0.5)
    async with routing([p], [d], limits) as client:
        status, content, _ = await client.post()
    assert status == 502 and content["error"]["type"] == "decode_unavailable"
    assert len(d.bodies) == 1, "what was taken in is not sent twice"


async def test_a_stream_that_breaks_off_does_not_look_complete() -> None:
    p, d = pair()

    async def broken(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        return await stream(request, ["a"], then=request.transport.close)

    d.behave = broken
    async with routing([p], [d]) as client:
        with pytest.raises(aiohttp.ClientError):
            await client.post({**BODY, "stream": True})
        assert "moontide_router_broken_answers_total 1.0" in (await client.get("/metrics"))[1]


async def test_a_failed_hand_over_is_tried_once_without() -> None:
    p, d = pair()

    async def behave(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if "kv_transfer_params" in body:
            return web.json_response({"error": "load failed"}, status=500)
        return web.json_response({"choices": [{"text": "computed"}]})

    d.behave = behave
    async with routing([p], [d]) as client:
        status, content, headers = await client.post()
    assert (status, content["choices"][0]["text"]) == (200, "computed")
    assert headers["x-moontide-reason"] == "hand_over_failed" and len(d.bodies) == 2


async def test_errors_of_the_decode_server_come_through() -> None:
    p, d = pair()
    d.behave = answer(404, {"error": {"message": "no such model"}})
    async with routing([p], [d]) as client:
        status, content, _ = await client.post()
    assert (status, content) == (404, {"error": {"message": "no such model"}})


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_client_that_leaves_cancels_the_leg_under_way(leg: str) -> None:
    p, d = pair()
    busy = p if leg == "prefill" else d
    busy.behave = hang
    async with routing([p], [d], Limits()) as client:
        task = asyncio.create_task(client.post())
        await asyncio.wait_for(busy.started.wait(), 5)
        task.cancel()
        await asyncio.wait_for(busy.cancelled.wait(), 5)
        assert (len(d.bodies) == 0) == (leg == "prefill")


@pytest.mark.parametrize(
    ("body", "status"), [("{", 400), ("[]", 400), ("7", 400), (b"\xff", 400), ("x" * 5000, 413), ("", 400)]
)
async def test_bad_bodies_get_a_json_error(body: Any, status: int) -> None:
    p, d = pair()
    async with routing([p], [d]) as client:
        found, content, _ = await client.post(body)
        assert found == status and content["error"]["message"]
        found, content, _ = await client.post(path="/v1/nonsense")
        assert found == 404 and content["error"]["message"]
    assert d.bodies == []


async def test_models_health_and_metrics() -> None:
    p, d = pair()
    async with routing([p], [d]) as client:
        assert "D" in (await client.get("/v1/models"))[1]
        assert (await client.get("/health"))[0] == 200
        await client.post()
        page = (await client.get("/metrics"))[1]
        assert 'moontide_router_requests_total{path="prefill+decode",reason="",status="200"} 1.0' in page
        assert f'moontide_router_outstanding{{role="decode",server="{d.url}"}} 0.0' in page
        await d.stop()
        assert '"P"' in (await client.get("/v1/models"))[1]


async def test_the_least_busy_server_is_taken() -> None:
    first, second = FakeServer("P1", params=PARAMS), FakeServer("P2", params=PARAMS)
    d = FakeServer("D")
    first.behave = hang
    async with routing([first, second], [d], Limits(prefill_timeout=5)) as client:
        tasks = []
        while not first.started.is_set():
            tasks.append(asyncio.create_task(client.post()))
            await asyncio.wait([tasks[-1]], timeout=0.2)
        count = len(second.bodies)
        for _ in range(4):
            assert (await client.post())[2]["x-moontide-path"] == "prefill+decode"
        assert len(second.bodies) == count + 4
        for task in tasks:
            task.cancel()


def test_probation_grows_and_lets_one_request_through() -> None:
    now = [0.0]
    backend = Backend("http://h:1", clock=lambda: now[0])
    pauses = []
    for _ in range(7):
        backend.failed()
        pauses.append(backend.returns_in)
        assert not backend.available
        now[0] += pauses[-1]
        assert backend.available
        with backend.use():
            assert not backend.available, "one request tries it, the others keep away"
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    backend.succeeded()
    assert backend.available and backend.returns_in == 0
    group = Group([backend, Backend("http://h:2")])
    assert {group.pick() for _ in range(4)} == set(group.backends)


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "http://h?x=1"])
def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(Invalid):
        Backend(url)


def test_the_bodies_given_are_not_changed() -> None:
    body = {"messages": [], "max_completion_tokens": 7, "stream": True, "stream_options": {}}
    before = json.dumps(body)
    assert prefill_body(body)["max_completion_tokens"] == 1
    assert decode_alone(body) == "" and json.dumps(body) == before


async def test_bad_listen_addresses(unused_tcp_port: int) -> None:
    router = Router([], ["http://127.0.0.1:1"])
    stop = asyncio.Event()
    for address, error in (("0.0.0.0:80", Denied), ("10.0.0.1:1", Denied), ("nonsense", Invalid)):
        with pytest.raises(error):
            await serve(router, address, stop=stop)
    taken = await asyncio.start_server(lambda r, w: None, "127.0.0.1", unused_tcp_port)
    async with taken:
        with pytest.raises(Unavailable, match="cannot listen"):
            await serve(router, f"127.0.0.1:{unused_tcp_port}", stop=stop)
    with pytest.raises(Invalid):
        Router(["http://127.0.0.1:1"], [])
