"""The pool outlives the engine: what one process computed, the next one loads. What is not there costs a miss."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from demo.processes import Fleet, free_port
from demo.prompts import make
from demo.servers import VLLM_PYTHON, base_environment, master_command, node_command, vllm_environment

pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(600)]

ONCE = Path(__file__).parent / "inside" / "once.py"
PROMPT = make("p", 30, 0, 9999, seed=3).text
BLOCK = 32


def listening(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


class Pool:
    """A master and a node in processes of their own."""

    def __init__(self, fleet: Fleet) -> None:
        self.port, node_port = free_port(), free_port()
        self.master = fleet.start("master", master_command(self.port), base_environment())
        self.master.wait_healthy(lambda: listening(self.port), 30)
        self.node = fleet.start("node", node_command(node_port, self.port), base_environment())
        self.node.wait_healthy(lambda: listening(node_port), 30)

    def live_once(self, extra: dict[str, Any] | None = None, options: dict[str, Any] | None = None) -> dict[str, Any]:
        """Runs an engine that finds the master by the environment; returns what `once.py` says."""
        command = [str(VLLM_PYTHON), str(ONCE), PROMPT, json.dumps(extra or {}), json.dumps(options or {})]
        environment = vllm_environment({"MOONTIDE_MASTER": f"127.0.0.1:{self.port}", "VLLM_LOGGING_LEVEL": "ERROR"})
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert lines, done.stdout[-3000:] + done.stderr[-3000:]
        result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
        return result


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    if not VLLM_PYTHON.exists():
        pytest.fail(f"{VLLM_PYTHON} does not exist; make vllm-env makes it")
    with Fleet(tmp_path) as fleet:
        yield Pool(fleet)


def test_a_restarted_engine_loads_what_the_one_before_computed(pool: Pool) -> None:
    first = pool.live_once()
    full = first["prompt"] // BLOCK
    assert first["cached"] == 0 and first["counts"]["saves|ok"] == full
    second = pool.live_once()
    assert second["tokens"] == first["tokens"]
    assert second["cached"] == full * BLOCK and second["counts"]["blocks|load|pool"] == full
    # Other numbers in the cache are other keys: never somebody else's bytes.
    other = pool.live_once(options={"dtype": "bfloat16"})
    assert other["cached"] == 0 and other["counts"]["lookups|miss"] == 1


def test_a_pool_that_is_away_costs_a_miss(pool: Pool) -> None:
    first = pool.live_once()
    began = time.monotonic()
    # Stopped, not dead: nobody refuses anything, answers just do not come.
    os.kill(pool.node.pid, signal.SIGSTOP)
    stopped_node = pool.live_once()
    assert stopped_node["tokens"] == first["tokens"]
    os.kill(pool.node.pid, signal.SIGCONT)
    pool.node.kill()
    without_node = pool.live_once()
    assert without_node["tokens"] == first["tokens"]
    pool.master.kill()
    without_master = pool.live_once()
    assert without_master["tokens"] == first["tokens"] and without_master["cached"] == 0
    assert time.monotonic() - began < 180
