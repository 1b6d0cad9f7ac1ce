"""Asks a server for completions and for its metrics, with the standard library only."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from demo.prompts import Prompt

TOKENS_OUT = 32
_LINE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Answer:
    """What came back for one prompt. `error` is empty for an answer with text."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    prompt_tokens: int = 0
    seconds: float = 0.0
    error: str = ""
    route: str = ""
    """what Moontide's router says about it: the way it took, and why"""

    def same_as(self, other: Answer) -> bool:
        return not self.error and not other.error and self.tokens == other.tokens and self.text == other.text


@dataclass(frozen=True)
class Sample:
    """One line of a metrics page."""

    name: str
    labels: dict[str, str]
    value: float


def request(
    port: int, method: str, path: str, body: object = None, timeout: float = 120
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """(status, body, headers). Raises OSError when the server cannot be reached, breaks off or stays silent."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        payload = None if body is None else json.dumps(body)
        connection.request(method, path, payload, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    except http.client.HTTPException as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error
    finally:
        connection.close()


def healthy(port: int) -> bool:
    return request(port, "GET", "/health", timeout=5)[0] == 200


def complete(port: int, prompt: Prompt, timeout: float = 120) -> Answer:
    """Greedy, a fixed number of tokens, and their ids. Failures come back as an Answer with `error`."""
    body = {
        "model": "tiny",
        "prompt": prompt.text,
        "max_tokens": TOKENS_OUT,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    start = time.monotonic()
    try:
        status, payload, headers = request(port, "POST", "/v1/completions", body, timeout)
    except OSError as error:
        return Answer(error=f"{type(error).__name__}: {error}", seconds=time.monotonic() - start)
    seconds = time.monotonic() - start
    route = " ".join(headers.get(name, "") for name in ("x-moontide-path", "x-moontide-reason")).strip()
    try:
        reply = json.loads(payload)
        if status != 200:
            refusal = f"HTTP {status}: {payload[:300].decode(errors='replace')}"
            return Answer(error=refusal, seconds=seconds, route=route)
        choice = reply["choices"][0]
        return Answer(
            text=choice["text"],
            tokens=tuple(choice["token_ids"]),
            prompt_tokens=reply["usage"]["prompt_tokens"],
            seconds=seconds,
            route=route,
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return Answer(error=f"HTTP {status}, not a completion ({error!r}): {payload[:300]!r}", seconds=seconds)


def complete_at_once(port: int, prompts: Sequence[Prompt], timeout: float = 120) -> list[Answer]:
    """All in flight at the same time; answers in the prompts' order."""
    with ThreadPoolExecutor(max_workers=len(prompts)) as pool:
        return list(pool.map(lambda prompt: complete(port, prompt, timeout), prompts))


def metrics(port: int) -> list[Sample]:
    """Counters and gauges of a vLLM server or of the router."""
    status, payload, _ = request(port, "GET", "/metrics", timeout=20)
    if status != 200:
        raise ConnectionError(f"/metrics answered {status}")
    samples = []
    for line in payload.decode().splitlines():
        match = _LINE.match(line)
        if match is None or match["name"].endswith(("_created", "_bucket")):
            continue
        labels = dict(_LABEL.findall(match["labels"] or ""))
        samples.append(Sample(match["name"], labels, float(match["value"])))
    return samples


def total(samples: Sequence[Sample], name: str, **labels: str) -> float:
    """Sum over all lines of that name that carry these labels; 0 when there is none."""
    return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())
