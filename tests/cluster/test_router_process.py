"""`moontide router` as a process: it comes up, serves, says what is wrong, and ends when told."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest

from fakes.openai_server import PARAMS, FakeServer, servers

pytestmark = pytest.mark.cluster


@contextmanager
def router(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """(process, address it says it listens on)."""
    command = [sys.executable, "-m", "moontide.cli", "router", "--listen", "127.0.0.1:0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        match = re.search(r"router on (\S+),", line)
        assert match is not None, line
        yield process, match[1]
    finally:
        process.kill()
        process.wait(10)
        process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_serves_until_it_is_told_to_end(number: signal.Signals) -> None:
    p, d = FakeServer("P", params=PARAMS), FakeServer("D")
    async with servers(p, d), aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        with router("--prefill", p.url, "--decode", f"{d.url},{d.url}") as (process, address):
            async with session.get(f"http://{address}/health") as answer:
                assert answer.status == 200
            async with session.post(f"http://{address}/v1/completions", json={"prompt": "x"}) as answer:
                assert answer.headers["x-moontide-path"] == "prefill+decode"
            process.send_signal(number)
            assert await asyncio.to_thread(process.wait, 10) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--decode"),
        (["--decode", "nonsense"], "not the URL of a server"),
        (["--decode", "http://127.0.0.1:1", "--listen", "0.0.0.0:80"], "loopback"),
        (["--decode", "http://127.0.0.1:1", "--listen", "x"], "listen"),
        (["--decode", "http://127.0.0.1:1", "--prefill-timeout", "soon"], "--prefill-timeout"),
        (["--decode", "http://127.0.0.1:1", "--max-body", "much"], "--max-body"),
    ],
)
def test_bad_arguments_are_explained(arguments: list[str], words: str) -> None:
    command = [sys.executable, "-m", "moontide.cli", "router", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and words in done.stderr and "Traceback" not in done.stderr
