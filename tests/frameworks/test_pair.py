"""Two real vLLM servers and the router: the same text, whatever happens to the prefill server."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from demo.client import healthy, metrics, request, total
from demo.processes import Fleet, Server, free_port, wait_until
from demo.prompts import make
from demo.servers import VLLM_PYTHON, router_command, vllm_command, vllm_environment

pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(600)]

UP_SECONDS = 300
CONNECTOR = {
    "kv_connector": "MoontideConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"pool": False},
}


@dataclass
class Reply:
    status: int
    text: str
    way: str
    """what the router says of itself"""
    body: dict[str, Any]


@dataclass
class Pair:
    fleet: Fleet
    prefill: Server
    prefill_port: int
    decode_port: int
    router_port: int

    def ask(self, port: int, prompt: str, *, tokens: int = 16, path: str = "/v1/completions", **fields: Any) -> Reply:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, **fields}
        status, payload, headers = request(port, "POST", path, body, timeout=120)
        content = json.loads(payload)
        text = content["choices"][0]["text"] if status == 200 else ""
        return Reply(status, text, headers.get("x-moontide-path", ""), content)

    def grown(self, before: Any, name: str, **labels: str) -> float:
        return total(metrics(self.decode_port), name, **labels) - total(before, name, **labels)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    if not VLLM_PYTHON.exists():
        pytest.fail(f"{VLLM_PYTHON} does not exist; make vllm-env makes it")
    with Fleet(tmp_path_factory.mktemp("logs")) as fleet:
        ports = [free_port() for _ in range(3)]
        started = [
            fleet.start(name, vllm_command(port, CONNECTOR), vllm_environment({"MOONTIDE_LOCAL_READS": "off"}))
            for name, port in zip(("prefill", "decode"), ports, strict=False)
        ]
        for server, port in zip(started, ports, strict=False):
            server.wait_healthy(lambda port=port: healthy(port), UP_SECONDS)
        router = fleet.start("router", router_command(ports[2], ports[0], ports[1]), vllm_environment())
        router.wait_healthy(lambda: healthy(ports[2]), 30)
        yield Pair(fleet, started[0], *ports)


def test_the_text_is_that_of_one_server(pair: Pair) -> None:
    prompts = [make("p", count, 0, 9999, seed=count).text for count in (1, 4, 12, 45)]
    wanted = [pair.ask(pair.decode_port, prompt).text for prompt in prompts]
    before = metrics(pair.decode_port)
    # The salt keeps the decode server from finding what it computed just now.
    found = [pair.ask(pair.router_port, prompt, cache_salt="x") for prompt in prompts]
    assert [reply.text for reply in found] == wanted
    assert {reply.way for reply in found} == {"prefill+decode"}
    assert pair.grown(before, "vllm:moontide_loads_total", source="peer", result="ok") == len(prompts)
    # The demo's servers read each other's memory; these go as if they were on two hosts.
    assert pair.grown(before, "vllm:moontide_bytes_total", operation="load", source="peer", path="tcp") > 0
    assert pair.grown(before, "vllm:external_prefix_cache_hits_total") > 0
    with ThreadPoolExecutor(len(prompts)) as pool:
        again = list(pool.map(lambda prompt: pair.ask(pair.router_port, prompt, cache_salt="y"), prompts))
    assert [reply.text for reply in again] == wanted


def test_the_prefill_server_frees_what_was_taken(pair: Pair) -> None:
    before = metrics(pair.prefill_port)
    pair.ask(pair.router_port, make("p", 9, 0, 9999, seed=5).text)

    def released() -> bool:
        # A hold's end is counted in the server's next step.
        pair.ask(pair.prefill_port, "a", tokens=1)
        after = metrics(pair.prefill_port)
        name = "vllm:moontide_holds_total"
        return total(after, name, end="released") - total(before, name, end="released") >= 1

    assert any(released() for _ in range(50))


def test_client_params_do_not_hurt_either_server(pair: Pair) -> None:
    for params in (
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "moontide": 1, "hold": 7},
        {"do_remote_decode": "x", "do_remote_prefill": []},
        {"do_remote_prefill": True, "moontide": 2, "addresses": ["h:1"] * 5000},
    ):
        for port in (pair.prefill_port, pair.decode_port, pair.router_port):
            assert pair.ask(port, "a lamp", tokens=2, kv_transfer_params=params).status == 200


def test_a_chat_goes_through(pair: Pair) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": make("p", 20, 0, 9999, seed=8).text}],
        "max_completion_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
    }
    answers = []
    for port in (pair.decode_port, pair.router_port):
        status, payload, *_ = request(
            port, "POST", "/v1/chat/completions", {**body, "cache_salt": str(port)}, timeout=60
        )
        assert status == 200, payload
        answers.append(json.loads(payload)["choices"][0]["message"]["content"])
    assert answers[0] == answers[1] != ""


def test_clients_that_leave_at_any_moment_leave_nothing_behind(pair: Pair) -> None:
    dice = random.Random(7)
    prompts = [make("p", 20 + 10 * index, 0, 9999, seed=200 + index).text for index in range(24)]
    wanted = pair.ask(pair.decode_port, prompts[0], tokens=8).text

    def leave(prompt: str) -> None:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 64, "stream": True, "ignore_eos": True}
        with contextlib.suppress(OSError):
            request(pair.router_port, "POST", "/v1/completions", body, timeout=dice.uniform(0.01, 1.0))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(leave, prompts))

    def empty() -> bool:
        used = [total(metrics(port), "vllm:kv_cache_usage_perc") for port in (pair.prefill_port, pair.decode_port)]
        return used == [0.0, 0.0]

    # A hold that nobody came for expires.
    wait_until(empty, 60, "blocks are still lent")
    assert pair.ask(pair.router_port, prompts[0], tokens=8, cache_salt="left").text == wanted


def test_a_killed_prefill_server_costs_nobody_the_answer(pair: Pair) -> None:
    """Last: the prefill server does not come back."""
    prompts = [make("p", 130, 0, 9999, seed=100 + index).text for index in range(6)]
    wanted = [pair.ask(pair.decode_port, prompt, tokens=8).text for prompt in prompts]
    late = pair.ask(pair.prefill_port, prompts[0], tokens=1, kv_transfer_params={"do_remote_decode": True})
    computed = total(metrics(pair.prefill_port), "vllm:prompt_tokens_total")
    with ThreadPoolExecutor(len(prompts)) as pool:
        futures = [pool.submit(pair.ask, pair.router_port, prompt, tokens=8, cache_salt="z") for prompt in prompts]
        while total(metrics(pair.prefill_port), "vllm:prompt_tokens_total") == computed:
            assert not all(future.done() for future in futures)
        pair.prefill.kill()
        replies = [future.result(timeout=60) for future in futures]
    assert [reply.text for reply in replies] == wanted
    # What the dead server held is asked for: computed instead.
    params = late.body["kv_transfer_params"]
    before = metrics(pair.decode_port)
    reply = pair.ask(pair.decode_port, prompts[0], tokens=8, cache_salt="late", kv_transfer_params=params)
    assert reply.text == wanted[0]
    assert pair.grown(before, "vllm:moontide_loads_total", source="peer") == 1
    assert pair.grown(before, "vllm:moontide_loads_total", source="peer", result="ok") == 0
    alone = pair.ask(pair.router_port, "the pilot finds an anchor", tokens=4)
    assert (alone.status, alone.way) == (200, "decode")
