"""A real vLLM hands its cache over to itself and reuses it: bytes, order, text, and what goes wrong."""

from __future__ import annotations

import ctypes
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from vllm_engine import BLOCK, Answer, VllmEngine, prompt_of, until

PROMPT = prompt_of(300)
HOLD = {"do_remote_decode": True}


@pytest.fixture(scope="module")
def shared() -> Iterator[VllmEngine]:
    engine = VllmEngine({"hold_ttl": 3.0, "claim_timeout": 0.5})
    yield engine
    engine.worker.shutdown()


@pytest.fixture
def engine(shared: VllmEngine) -> Iterator[VllmEngine]:
    """Empty, and empty again afterwards: a test that leaves blocks lent fails here."""
    shared.scheduler.recompute_kv_load_failures = True
    # Tests come faster than the one warning a second that is logged.
    shared.worker._worker.half._log._last.clear()
    yield shared
    shared.settle()
    assert shared.blocks_free() == shared.scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1
    shared.forget()
    assert shared.llm.reset_prefix_cache(reset_connector=True)
    shared.counts.clear()


def block_bytes(engine: VllmEngine, block: int) -> list[bytes]:
    """A block in all layers, read from where vLLM keeps it."""
    side = engine.worker._worker
    bases = side._memory.bases
    found = []
    for layer in side._layout.layers:
        start = bases[layer.region] + layer.offset + block * layer.block_stride
        found += [ctypes.string_at(start + at, length) for at, length in layer.pieces]
    return found


def table_of(engine: VllmEngine, name: str) -> tuple[str, list[int]]:
    """(vLLM's own id of the request, its blocks)."""
    own = next(key for key in engine.scheduler.requests if key == name or key.startswith(f"{name}-"))
    return own, list(engine.scheduler.kv_cache_manager.get_block_ids(own)[0])


def reference(engine: VllmEngine, prompt: Any = PROMPT, tokens: int = 8) -> Answer:
    """What the engine answers when it computes everything."""
    answer = engine.run(prompt, tokens=tokens)
    engine.settle()
    engine.forget()
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    engine.counts.clear()
    return answer


def prefill(engine: VllmEngine, prompt: Any = PROMPT) -> tuple[str, dict[str, Any]]:
    """(request that holds its blocks, params for the decode side); nothing of it can be found locally any more."""
    name = engine.add(prompt, tokens=1, params=HOLD)
    answer = engine.finish(name)[0]
    assert answer.params is not None
    _, blocks = table_of(engine, name)
    engine.scheduler.kv_cache_manager.evict_blocks(set(blocks))
    if engine.connector._scheduler.index is not None:
        engine.connector._scheduler.index.clear()
    engine.step()
    return name, json.loads(json.dumps(answer.params))


@pytest.mark.parametrize("words", [10, 60, 300, 900])
def test_the_decode_side_gets_every_block_in_its_place(engine: VllmEngine, words: int) -> None:
    prompt = prompt_of(words, seed=words)
    wanted = reference(engine, prompt)
    source, params = prefill(engine, prompt)
    _, theirs = table_of(engine, source)
    assert params["num_tokens"] == len(wanted.prompt) and params["num_blocks"] == -(-len(wanted.prompt) // BLOCK)
    name = engine.add(prompt, tokens=8, params=params)
    own = ""

    def arrived() -> bool:
        nonlocal own
        engine.step()
        own = own or table_of(engine, name)[0]
        return own in engine.scheduler.finished_recving_kv_req_ids

    until(arrived)
    _, mine = table_of(engine, name)
    assert not set(mine) & set(theirs) and len(mine) == len(theirs) == params["num_blocks"]
    for position, (here, there) in enumerate(zip(mine, theirs, strict=True)):
        assert block_bytes(engine, here) == block_bytes(engine, there), f"position {position}"
    contents = [tuple(block_bytes(engine, block)) for block in mine]
    assert len(set(contents)) == len(contents), "blocks differ, so an exchange would have been seen"
    answer = engine.finish(name)[0]
    assert answer.tokens == wanted.tokens
    assert engine.count("loads|peer|ok") == 1 and engine.count("blocks|load|peer") == len(mine)
    engine.settle()
    assert engine.count("holds|released") == 1


def test_a_local_prefix_is_kept_and_the_rest_arrives_at_its_positions(engine: VllmEngine) -> None:
    wanted = reference(engine)
    _, params = prefill(engine)
    engine.run(wanted.prompt[: 2 * BLOCK + 1], tokens=1)
    answer = engine.run(PROMPT, params=params)
    assert answer.tokens == wanted.tokens
    assert engine.count("blocks|load|peer") == params["num_blocks"] - 2


def test_a_full_local_hit_gives_the_blocks_back_without_reading(engine: VllmEngine) -> None:
    prompt = list(range(10, 10 + 4 * BLOCK))
    name = engine.add(prompt, tokens=1, params=HOLD)
    params = engine.finish(name)[0].params
    engine.step()
    # One token more than the hold has: everything held is here already.
    engine.run([*prompt, 7], params=params)
    engine.settle()
    assert engine.count("blocks|load|peer") == 0
    assert engine.count("holds|released") == 1 and engine.count("releases|ok") == 1


def test_several_at_once(engine: VllmEngine) -> None:
    prompts = [prompt_of(80 + 30 * index, seed=index) for index in range(5)]
    wanted = [reference(engine, prompt) for prompt in prompts]
    held = [prefill(engine, prompt)[1] for prompt in prompts]
    names = [engine.add(prompt, params=params) for prompt, params in zip(prompts, held, strict=True)]
    assert [answer.tokens for answer in engine.finish(*names)] == [answer.tokens for answer in wanted]
    assert engine.count("loads|peer|ok") == 5


BAD_PARAMS: list[Any] = [
    {"do_remote_prefill": True},
    {"do_remote_prefill": True, "do_remote_decode": True},
    {"do_remote_prefill": "yes"},
    {"do_remote_prefill": True, "moontide": 99},
    {"do_remote_prefill": True, "moontide": 1},
    {"do_remote_prefill": True, "moontide": 1, "hold": "0" * 32, "addresses": ["nonsense"], "num_tokens": 5},
    {"do_remote_prefill": True, "moontide": 1, "hold": "0" * 32, "addresses": ["127.0.0.1:9"], "num_tokens": 2**63},
    {"do_remote_decode": [1, 2]},
    {"do_remote_decode": {"a": None}, "x" * 1000: "y"},
    {"remote_block_ids": [[1]], "remote_engine_id": "x", "remote_host": "h", "remote_port": 1},
]


@pytest.mark.parametrize("params", BAD_PARAMS)
def test_malformed_params_change_nothing(engine: VllmEngine, params: Any) -> None:
    wanted = reference(engine, "the harbour", tokens=4)
    for value in (params, {**params, "num_tokens": -1}):
        answer = engine.run("the harbour", tokens=4, params=value)
        assert (answer.tokens, answer.reason, answer.params) == (wanted.tokens, "length", None)


def good(params: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**params, **changes}


def test_more_tokens_than_the_prompt_has_are_not_believed(engine: VllmEngine) -> None:
    wanted = reference(engine)
    _, params = prefill(engine)
    more = good(params, num_tokens=len(wanted.prompt) + 1, num_blocks=-(-(len(wanted.prompt) + 1) // BLOCK))
    assert engine.run(PROMPT, params=more).tokens == wanted.tokens
    assert engine.count("bypassed|params_tokens") == 1


def test_params_of_another_prompt_do_not_give_its_text(engine: VllmEngine) -> None:
    wanted = reference(engine)
    words = list(wanted.prompt)
    words[5] += 1
    _, params = prefill(engine, words)
    assert engine.run(PROMPT, params=params).tokens == wanted.tokens
    assert engine.count("loads|peer|INCOMPATIBLE") == 1


def test_an_unknown_hold_is_recomputed(engine: VllmEngine) -> None:
    wanted = reference(engine)
    _, params = prefill(engine)
    answer = engine.run(PROMPT, params=good(params, hold="f" * 32))
    assert answer.tokens == wanted.tokens and answer.reason == "length"
    assert engine.count("loads|peer|NOT_FOUND") == 1


def test_a_hold_that_expired_is_recomputed_and_its_blocks_are_free(engine: VllmEngine) -> None:
    wanted = reference(engine)
    _, params = prefill(engine)
    engine.settle()
    assert engine.count("holds|expired") == 1
    assert engine.run(PROMPT, params=params).tokens == wanted.tokens
    assert engine.count("loads|peer|ok") == 0 and engine.count("loads|peer") == 1


CLAIM_AND_STAY = """
import sys, moontide
engine = moontide.Engine()
peer = engine.open(sys.argv[1])
peer.claim(bytes.fromhex(sys.argv[2]), timeout=5)
print("claimed", flush=True)
sys.stdin.read()
"""


def test_a_decode_side_that_dies_frees_the_blocks_at_once(engine: VllmEngine) -> None:
    _, params = prefill(engine)
    command = [sys.executable, "-c", CLAIM_AND_STAY, params["addresses"][0], params["hold"]]
    decode = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert decode.stdout is not None and decode.stdout.readline() == "claimed\n"
        # Longer than the hold lives without somebody who renews it.
        began = time.monotonic()
        until(lambda: engine.step() or time.monotonic() - began > 4.0)
        assert engine.worker._worker.half.held == 1
        decode.kill()
        killed = time.monotonic()
        engine.settle()
        assert time.monotonic() - killed < 2.0
    finally:
        decode.kill()
        decode.communicate(timeout=10)
    assert engine.count("holds|peer_lost") == 1


def test_a_prefill_engine_that_is_gone_is_recomputed(engine: VllmEngine) -> None:
    wanted = reference(engine)
    _, params = prefill(engine)
    answer = engine.run(PROMPT, params=good(params, addresses=["127.0.0.1:1"]))
    assert answer.tokens == wanted.tokens
    assert engine.count("loads|peer|UNAVAILABLE") == 1


def test_a_hold_serves_once(engine: VllmEngine) -> None:
    wanted = reference(engine)
    _, params = prefill(engine)
    assert engine.run(PROMPT, params=params).tokens == wanted.tokens
    engine.settle()
    engine.forget()
    assert engine.run(PROMPT, params=params).tokens == wanted.tokens
    assert engine.count("loads|peer|ok") == 1 and engine.count("loads|peer") == 2


def test_the_policy_fail_gives_an_error_and_the_engine_goes_on(engine: VllmEngine) -> None:
    wanted = reference(engine)
    _, params = prefill(engine)
    engine.scheduler.recompute_kv_load_failures = False
    answer = engine.run(PROMPT, params=good(params, hold="f" * 32))
    assert answer.reason == "error" and answer.tokens == []
    assert engine.run(PROMPT).tokens == wanted.tokens


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_tokens": 64}, "block size: 32 here, 64 there"),
        ({"physical": "other"}, "physical layout: CPU_ATTN/LBHNC"),
        ({"kv_heads": 8}, "kv heads: 2 here, 8 there"),
    ],
)
def test_another_layout_is_refused_with_both_values(
    engine: VllmEngine, change: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = reference(engine)
    holder = engine.worker._worker.half._holder
    original = holder._layout
    try:
        layout = msgspec.structs.replace(engine.worker._worker._layout, **change)
        holder._layout = msgspec.msgpack.encode(layout)
        _, params = prefill(engine)
        with caplog.at_level("WARNING", logger="moontide.kv"):
            assert engine.run(PROMPT, params=params).tokens == wanted.tokens
    finally:
        holder._layout = original
    assert words in caplog.text
    assert engine.count("loads|peer|INCOMPATIBLE") == 1
    engine.settle()
    assert engine.count("holds|released") == 1, "a refused hand-over frees the other side at once"


def test_what_was_computed_is_loaded_from_the_embedded_cache(engine: VllmEngine) -> None:
    wanted = reference(engine, tokens=16)
    assert engine.run(PROMPT, tokens=16).tokens == wanted.tokens
    engine.forget()
    answer = engine.run(PROMPT, tokens=16)
    full = len(wanted.prompt) // BLOCK
    assert (answer.tokens, answer.cached) == (wanted.tokens, full * BLOCK)
    assert engine.count("blocks|load|pool") == full
    assert engine.count("saves|ok") + engine.count("saves|present") == full, "each block was saved once"


def test_a_salt_shares_nothing(engine: VllmEngine) -> None:
    wanted = reference(engine)
    engine.run(PROMPT)
    engine.forget()
    salted = {"prompt_token_ids": wanted.prompt, "cache_salt": "pepper"}
    from vllm import SamplingParams

    output = engine.llm.generate([salted], SamplingParams(max_tokens=4, temperature=0, ignore_eos=True), use_tqdm=False)
    assert list(output[0].outputs[0].token_ids) == wanted.tokens[:4] and output[0].num_cached_tokens == 0


def test_a_failed_load_from_the_pool_is_computed_and_not_tried_again(engine: VllmEngine) -> None:
    wanted = reference(engine)
    engine.run(PROMPT)
    engine.forget()
    door = engine.worker._worker.half._door
    store, asked = door._store, []

    class Forgetful:
        def get_parts(self, keys: Any, parts: Any) -> Any:
            asked.append(len(keys))
            return store.get_parts([bytes(reversed(key)) for key in keys], parts)

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

    door._store = Forgetful()
    try:
        assert engine.run(PROMPT).tokens == wanted.tokens
    finally:
        door._store = store
    assert len(asked) == 1 and engine.count("loads|pool|NOT_FOUND") == 1


def spy_on_reports(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Every id that the connector reports, in order."""
    seen: dict[str, list[str]] = {"sent": [], "received": []}
    update = engine.scheduler._update_from_kv_xfer_finished

    def watched(output: Any) -> None:
        seen["sent"] += list(output.finished_sending or ())
        seen["received"] += list(output.finished_recving or ())
        update(output)

    monkeypatch.setattr(engine.scheduler, "_update_from_kv_xfer_finished", watched)
    return seen


@pytest.mark.parametrize("seed", range(6))
def test_aborts_at_any_step_report_each_request_once(
    engine: VllmEngine, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = random.Random(seed)
    seen = spy_on_reports(engine, monkeypatch)
    prompts = [prompt_of(40 * index, seed=index) for index in range(1, 5)]
    holds: list[dict[str, Any]] = []
    live: list[str] = []
    for _ in range(40):
        prompt = dice.choice(prompts)
        what = dice.randrange(4)
        if what == 0:
            live.append(engine.add(prompt, tokens=1, params=HOLD))
        elif what == 1 and holds:
            params = dict(holds.pop(dice.randrange(len(holds))))
            if dice.random() < 0.3:
                params["hold"] = "e" * 32
            live.append(engine.add(prompt, tokens=4, params=params))
        elif what == 2 and live:
            engine.abort(live.pop(dice.randrange(len(live))))
        else:
            live.append(engine.add(prompt, tokens=3))
        for _ in range(dice.randrange(3)):
            engine.step()
        if dice.random() < 0.3:
            engine.llm.reset_prefix_cache()
        holds += [answer.params for answer in engine.answers.values() if answer.params and answer.params not in holds]
    engine.settle()
    engine.answers.clear()
    for reports in seen.values():
        assert len(reports) == len(set(reports))
    assert engine.run(PROMPT, tokens=2).reason == "length"


def test_preempted_requests_give_the_same_text(engine: VllmEngine) -> None:
    prompts = [prompt_of(250, seed=20 + index) for index in range(4)]
    wanted = [reference(engine, prompt, tokens=60).tokens for prompt in prompts]
    pool = engine.scheduler.kv_cache_manager.block_pool
    hostages = pool.get_new_blocks(pool.get_num_free_blocks() - 42)
    preempted = []
    preempt = engine.scheduler._preempt_request
    engine.scheduler._preempt_request = lambda *a, **k: (preempted.append(a[0].request_id), preempt(*a, **k))[1]
    try:
        names = [engine.add(prompt, tokens=60) for prompt in prompts]
        assert [answer.tokens for answer in engine.finish(*names)] == wanted
    finally:
        del engine.scheduler._preempt_request
        pool.free_blocks(reversed(hostages))
    assert preempted, "there was room for all: the test did not test"


def test_the_series_are_there(engine: VllmEngine) -> None:
    reference(engine)
    _, params = prefill(engine)
    engine.run(PROMPT, params=params)
    engine.settle()
    series = {(metric.name, *sorted(metric.labels.items())) for metric in engine.llm.get_metrics()}
    names = {name for name, *_ in series}
    assert {"vllm:moontide_loads", "vllm:moontide_bytes", "vllm:moontide_holds", "vllm:moontide_load_seconds"} <= names
    loads = [labels for name, *labels in series if name == "vllm:moontide_loads"]
    assert any(("source", "peer") in labels and ("result", "ok") in labels for labels in loads)
    paths = {dict(labels)["path"] for name, *labels in series if name == "vllm:moontide_bytes"}
    assert paths & {"self", "shm", "cma", "tcp"}


def test_a_handshake_of_another_connector_is_refused(
    engine: VllmEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.connector._scheduler, "half", None)
    engine.connector.set_xfer_handshake_metadata({0: object()})
    assert engine.connector._scheduler.half is None and "stays off" in caplog.text
    assert engine.run("a lamp", tokens=2, params=HOLD).reason == "length"


def test_the_plugin_registers_under_its_class_name_any_number_of_times() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from moontide.plugins.vllm import register
    from moontide.plugins.vllm.connector import MoontideConnector

    register()
    register()
    assert KVConnectorFactory.get_connector_class_by_name("MoontideConnector") is MoontideConnector


def test_the_module_path_works_too() -> None:
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    from moontide.plugins.vllm.connector import MoontideConnector

    config = KVTransferConfig(
        kv_connector="MoontideConnector",
        kv_role="kv_both",
        kv_connector_module_path="moontide.plugins.vllm.connector",
    )
    assert KVConnectorFactory.get_connector_class(config) is MoontideConnector
