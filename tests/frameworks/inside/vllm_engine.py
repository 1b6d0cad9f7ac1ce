"""A real vLLM in this process, with the connector's two halves within reach."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "build" / "tiny-llama"
BLOCK = 32
CHUNK = 256

# vLLM reads these when it is imported. One process: engine, scheduler and worker are all ours to look at.
VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOOPBACK_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The condition's value once it is true; the condition makes the progress (it steps an engine)."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "the condition did not become true"
    return value


class Answer:
    """A finished request, as the engine reported it."""

    def __init__(self, output: Any) -> None:
        completion = output.outputs[0]
        self.tokens: list[int] = list(completion.token_ids)
        self.reason: str = completion.finish_reason
        self.params: dict[str, Any] | None = output.kv_transfer_params
        self.cached: int = output.num_cached_tokens or 0
        self.prompt: list[int] = list(output.prompt_token_ids)


class VllmEngine:
    """One engine per process: vLLM keeps its connector in a global."""

    def __init__(self, extra: dict[str, Any] | None = None, **options: Any) -> None:
        os.environ.update(VARIABLES)
        from vllm import LLM
        from vllm.config import KVTransferConfig

        transfer = KVTransferConfig(
            kv_connector="MoontideConnector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config=extra or {},
        )
        defaults: dict[str, Any] = {
            "enforce_eager": True,
            "dtype": "float32",
            "max_model_len": 2048,
            "block_size": BLOCK,
            "max_num_seqs": 8,
            "max_num_batched_tokens": CHUNK,
            "kv_cache_memory_bytes": 64 << 20,
            "distributed_executor_backend": "uni",
            "disable_log_stats": False,
        }
        self.llm = LLM(model=str(MODEL), kv_transfer_config=transfer, **{**defaults, **options})
        self._engine = self.llm.llm_engine
        self._count = 0
        self.answers: dict[str, Answer] = {}
        self.counts: dict[str, int] = {}
        self._watch()

    @property
    def scheduler(self) -> Any:
        return self._engine.engine_core.engine_core.scheduler

    @property
    def connector(self) -> Any:
        """Of the scheduler's role."""
        return self.scheduler.connector

    @property
    def worker(self) -> Any:
        """The connector of the worker's role."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()

    def _watch(self) -> None:
        """Adds up what the halves count, on its way to vLLM's own metrics."""
        from moontide.kv.stats import Stats

        drain = Stats.drain

        def watched(stats: Stats) -> dict[str, Any]:
            data = drain(stats)
            for key, number in data.get("counts", {}).items():
                self.counts[key] = self.counts.get(key, 0) + number
            return data

        Stats.drain = watched  # type: ignore[method-assign]

    def count(self, prefix: str) -> int:
        """Sum of the counters whose key begins so."""
        return sum(number for key, number in self.counts.items() if key.startswith(prefix))

    def add(self, prompt: str | list[int], *, tokens: int = 8, params: Any = None, request_id: str = "") -> str:
        from vllm import SamplingParams

        self._count += 1
        name = request_id or f"request-{self._count}"
        sampling = SamplingParams(
            max_tokens=tokens,
            temperature=0,
            ignore_eos=True,
            extra_args=None if params is None else {"kv_transfer_params": params},
        )
        given: Any = {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt
        self._engine.add_request(name, given, sampling)
        return name

    def abort(self, name: str) -> None:
        """As an API server does it when a client leaves; the id it knows is the one without vLLM's suffix."""
        self._engine.abort_request([name])

    def step(self) -> None:
        """One step, also when only the connector has something to do."""
        for output in self._engine.step():
            if output.finished:
                self.answers[output.request_id] = Answer(output)

    def finish(self, *names: str) -> list[Answer]:
        def done() -> bool:
            self.step()
            return all(name in self.answers for name in names)

        until(done, 60)
        return [self.answers.pop(name) for name in names]

    def run(self, prompt: str | list[int], **options: Any) -> Answer:
        return self.finish(self.add(prompt, **options))[0]

    def settle(self) -> None:
        """Steps until the scheduler holds no request, not even a finished one whose blocks are lent."""

        def idle() -> bool:
            self.step()
            return not self.scheduler.requests

        until(idle)

    def forget(self) -> None:
        """The engine's own prefix cache becomes empty."""
        assert self.llm.reset_prefix_cache()

    def blocks_free(self) -> int:
        free: int = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return free


def prompt_of(words: int, seed: int = 0) -> str:
    """Text of about so many tokens."""
    sys.path.insert(0, str(ROOT))
    try:
        from demo.tiny_model import sentences
    finally:
        sys.path.remove(str(ROOT))
    return " ".join(sentences(seed, max(1, words // 10)))
