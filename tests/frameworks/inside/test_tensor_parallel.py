"""Two workers per engine: each rank reads from the same rank, and the request is ready when both are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from vllm_engine import VllmEngine, prompt_of

PROMPT = prompt_of(200)


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmEngine]:
    yield VllmEngine({"hold_ttl": 20.0}, tensor_parallel_size=2, distributed_executor_backend="mp")


def test_both_ranks_hand_over(engine: VllmEngine) -> None:
    wanted = engine.run(PROMPT)
    engine.settle()
    engine.forget()
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    name = engine.add(PROMPT, tokens=1, params={"do_remote_decode": True})
    params = engine.finish(name)[0].params
    assert params is not None and len(set(params["addresses"])) == 2
    own = next(key for key in engine.scheduler.requests if key.startswith(name))
    blocks = engine.scheduler.kv_cache_manager.get_block_ids(own)[0]
    engine.scheduler.kv_cache_manager.evict_blocks(set(blocks))
    engine.connector._scheduler.index.clear()
    series = engine.llm.get_metrics
    answer = engine.run(PROMPT, params=params)
    assert answer.tokens == wanted.tokens
    engine.settle()
    loads = {
        (metric.labels["source"], metric.labels["result"]): metric.value
        for metric in series()
        if metric.name == "vllm:moontide_loads"
    }
    assert loads == {("peer", "ok"): 2}


def test_what_both_ranks_saved_is_loaded_again(engine: VllmEngine) -> None:
    prompt = prompt_of(150, seed=3)
    wanted = engine.run(prompt)
    engine.settle()
    engine.forget()
    answer = engine.run(prompt)
    assert answer.tokens == wanted.tokens and answer.cached == len(wanted.prompt) // 32 * 32


def test_another_number_of_ranks_is_refused_and_computed(engine: VllmEngine) -> None:
    prompt = prompt_of(120, seed=4)
    wanted = engine.run(prompt)
    engine.settle()
    engine.forget()
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    name = engine.add(prompt, tokens=1, params={"do_remote_decode": True})
    params = engine.finish(name)[0].params
    assert params is not None
    own = next(key for key in engine.scheduler.requests if key.startswith(name))
    blocks = engine.scheduler.kv_cache_manager.get_block_ids(own)[0]
    engine.scheduler.kv_cache_manager.evict_blocks(set(blocks))
    answer = engine.run(prompt, params={**params, "addresses": params["addresses"][:1]})
    assert answer.tokens == wanted.tokens
