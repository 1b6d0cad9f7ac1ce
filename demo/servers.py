"""Command lines and environments of the servers that the demo starts. All bind to loopback."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from demo.prompts import BLOCK_TOKENS, CHUNK_TOKENS

ROOT = Path(__file__).resolve().parents[1]
VLLM_PYTHON = ROOT / "build" / "vllm-env" / "bin" / "python"
MODEL = ROOT / "build" / "tiny-llama"
KV_CACHE_BYTES = 64 << 20
LEND = "256MiB"


def base_environment() -> dict[str, str]:
    """This process's variables without what would configure Moontide or vLLM behind the demo's back."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MOONTIDE_", "VLLM_"))}


def vllm_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """For any Python process that imports vLLM here: no network, loopback only, few threads, no statistics sent."""
    return {
        **base_environment(),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_LOOPBACK_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
        **(extra or {}),
    }


def vllm_command(port: int, connector: Mapping[str, object] | None = None) -> list[str]:
    """A server for the tiny model; with `connector`, one that moves its cache through it."""
    command = [str(VLLM_PYTHON), "-m", "vllm.entrypoints.cli.main", "serve", str(MODEL)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "tiny"]
    command += ["--enforce-eager", "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "8"]
    command += ["--max-num-batched-tokens", str(CHUNK_TOKENS), "--block-size", str(BLOCK_TOKENS)]
    command += ["--kv-cache-memory-bytes", str(KV_CACHE_BYTES)]
    if connector is not None:
        command += ["--kv-transfer-config", json.dumps(connector)]
    return command


def connector_config() -> dict[str, object]:
    return {"kv_connector": "MoontideConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}


def moontide_command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "moontide.cli", *arguments]


def master_command(port: int) -> list[str]:
    return moontide_command("master", "--listen", f"127.0.0.1:{port}")


def node_command(port: int, master_port: int) -> list[str]:
    master, listen = f"127.0.0.1:{master_port}", f"127.0.0.1:{port}"
    return moontide_command("node", "--master", master, "--lend", LEND, "--listen", listen)


def router_command(port: int, prefill: int, decode: int) -> list[str]:
    listen, one, two = f"127.0.0.1:{port}", f"http://127.0.0.1:{prefill}", f"http://127.0.0.1:{decode}"
    return moontide_command("router", "--listen", listen, "--prefill", one, "--decode", two)
