"""Traces of requests in the public form: one JSON object a line, with `timestamp` (ms), `input_length` and
`output_length` (tokens) and `hash_ids`, one per block of 512 tokens of the prompt. Equal ids mean an equal block with
its whole prefix.

The generator makes such traces by family and seed: the same arguments give the same trace on every machine.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from moontide.errors import Internal, Invalid

__all__ = ["BLOCK_TOKENS", "FAMILIES", "Request", "generate", "read_trace", "write_trace"]

BLOCK_TOKENS = 512
_INPUT_TOKENS_MAX = 125_000


class Request(msgspec.Struct, frozen=True):
    """One line of a trace."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_trace(path: str) -> list[Request]:
    """The requests in the order of their times. Invalid names the line that does not fit."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise Invalid(f"trace {path}: {error.strerror or error}") from error
    decoder = msgspec.json.Decoder(Request)
    requests = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            request = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise Invalid(f"trace {path}, line {number}: {error}") from error
        if request.timestamp < 0 or not all(0 <= block < 1 << 64 for block in request.hash_ids):
            raise Invalid(f"trace {path}, line {number}: timestamp and hash_ids are numbers from 0 to 2^64")
        requests.append(request)
    if not any(request.hash_ids for request in requests):
        raise Invalid(f"trace {path}: it has no blocks")
    return sorted(requests, key=lambda request: request.timestamp)


def write_trace(path: str, requests: Iterable[Request]) -> None:
    """One JSON object a line."""
    encoder = msgspec.json.Encoder()
    try:
        Path(path).write_bytes(b"".join(encoder.encode(request) + b"\n" for request in requests))
    except OSError as error:
        raise Invalid(f"trace {path}: {error.strerror or error}") from error


class _Prompt:
    """A growing prompt: its length, and the ids of its full blocks. A copy of it is a branch."""

    def __init__(self, ids: Iterator[int], tokens: int = 0, blocks: list[int] | None = None) -> None:
        self._ids = ids
        self.tokens = tokens
        self._blocks = blocks or []

    def branch(self) -> _Prompt:
        return _Prompt(self._ids, self.tokens, list(self._blocks))

    def grow(self, tokens: int) -> None:
        """More text, that no other prompt has."""
        self.tokens += tokens
        while len(self._blocks) < self.tokens // BLOCK_TOKENS:
            self._blocks.append(next(self._ids))

    def request(self, time: float, output: int) -> Request:
        """The last block is rarely full: it is another one in each request."""
        blocks = list(self._blocks)
        if self.tokens % BLOCK_TOKENS:
            blocks.append(next(self._ids))
        return Request(round(time * 1000), self.tokens, output, blocks)


class _Source:
    """Seeded choices, and ids for blocks."""

    def __init__(self, seed: int, family: str) -> None:
        self.rng = random.Random(f"{family} {seed}")
        self.ids = itertools.count()

    def tokens(self, median: float, spread: float, low: int, high: int) -> int:
        return round(min(max(self.rng.lognormvariate(math.log(median), spread), low), high))

    def seconds(self, median: float, spread: float, low: float, high: float) -> float:
        return min(max(self.rng.lognormvariate(math.log(median), spread), low), high)

    def think_time(self) -> float:
        """Reading the answer and typing the next question."""
        return self.seconds(120, 0.55, 15, 1500)

    def prompt(self, tokens: int = 0) -> _Prompt:
        prompt = _Prompt(self.ids)
        prompt.grow(tokens)
        return prompt

    def arrivals(self, count: int, rate: float) -> Iterator[float]:
        """Poisson, with a rate that swings by a third every ten minutes."""
        time = 0.0
        for _ in range(count):
            time += self.rng.expovariate(rate * (1 + math.sin(time / 95) / 3))
            yield time

    def conversation(self, prompt: _Prompt, time: float, first: int, chances: Sequence[float]) -> Iterator[Request]:
        """`chances`: that turn 1, 2, ... is followed by another one; the last value holds for all later ones."""
        prompt.grow(first)
        for turn in itertools.count():
            output = self.tokens(320, 0.8, 5, 4000)
            yield prompt.request(time, output)
            if self.rng.random() >= chances[min(turn, len(chances) - 1)]:
                return
            time += output / 40 + self.think_time()
            prompt.grow(output + self.tokens(260, 1.2, 5, 20_000))
            if prompt.tokens > _INPUT_TOKENS_MAX:
                return


def _chat(source: _Source, count: int) -> Iterator[Request]:
    """Conversations of several turns; a few prompts of their applications before them."""
    rng = source.rng
    applications = [source.prompt(tokens) for tokens in (600, 1100, 2300)]
    for time in source.arrivals(count, rate=1.0):
        which = rng.random()
        prompt = (
            applications[0 if which < 0.35 else 1 if which < 0.5 else 2].branch() if which < 0.6 else source.prompt()
        )
        first = source.tokens(2800, 1.3, 20, 100_000)
        yield from source.conversation(prompt, time, first, (0.35, 0.45, 0.55, 0.62, 0.7))


def _system(source: _Source, count: int) -> Iterator[Request]:
    """Many applications, each with a long system prompt, mostly asked once; applications come and go."""
    rng = source.rng
    applications = [source.prompt(source.tokens(4000, 0.9, 600, 30_000)) for _ in range(60)]
    for number, time in enumerate(source.arrivals(count, rate=1.5)):
        if number % 40 == 39:
            applications[rng.randrange(len(applications))] = source.prompt(source.tokens(4000, 0.9, 600, 30_000))
        which = min(int(rng.paretovariate(0.7)) - 1, len(applications) - 1)
        first = source.tokens(900, 1.0, 20, 20_000)
        yield from source.conversation(applications[which].branch(), time, first, (0.15, 0.3, 0.4))


def _agent(source: _Source, prompt: _Prompt, time: float, depth: int) -> Iterator[Request]:
    """A loop of model and tool; now and then it hands parts of the work to agents that go on from its context."""
    rng = source.rng
    for _ in range(rng.randint(3, 24 if depth == 0 else 10)):
        output = source.tokens(180, 0.8, 10, 3000)
        yield prompt.request(time, output)
        time += output / 40 + (source.think_time() if rng.random() < 0.06 else source.seconds(6, 1.1, 0.3, 120))
        prompt.grow(output + source.tokens(700, 1.1, 20, 16_000))
        if depth < 2 and rng.random() < 0.12:
            last = time
            for _ in range(rng.randint(2, 4)):
                branch = prompt.branch()
                branch.grow(source.tokens(300, 0.8, 30, 3000))
                for request in _agent(source, branch, time + rng.random(), depth + 1):
                    last = max(last, request.timestamp / 1000)
                    yield request
            time = last + source.seconds(6, 1.1, 0.3, 120)
            prompt.grow(source.tokens(1500, 0.8, 100, 8000))
        if prompt.tokens > _INPUT_TOKENS_MAX:
            return


def _agents(source: _Source, count: int) -> Iterator[Request]:
    """Agents of a few kinds, each with its tools' descriptions, and tasks that branch."""
    kinds = [source.prompt(source.tokens(5000, 0.5, 1500, 15_000)) for _ in range(6)]
    for time in source.arrivals(count, rate=0.06):
        prompt = source.rng.choice(kinds).branch()
        prompt.grow(source.tokens(2500, 1.0, 100, 40_000))
        yield from _agent(source, prompt, time, 0)


def _documents(source: _Source, count: int) -> Iterator[Request]:
    """Long documents, most of them asked about once, between conversations."""
    rng = source.rng
    for time in source.arrivals(count, rate=0.8):
        if rng.random() < 0.45:
            yield from source.conversation(
                source.prompt(), time, source.tokens(1200, 1.1, 20, 20_000), (0.4, 0.55, 0.65)
            )
            continue
        document, asked = source.prompt(source.tokens(22_000, 0.8, 5000, 110_000)), time
        for _ in range(1 if rng.random() < 0.8 else rng.randint(2, 6)):
            prompt = document.branch()
            prompt.grow(source.tokens(120, 0.8, 10, 2000))
            yield prompt.request(asked, source.tokens(400, 0.8, 5, 4000))
            asked += source.think_time()


# Name → how it is made, and the requests that one story of it makes on average.
FAMILIES: dict[str, tuple[Callable[[_Source, int], Iterator[Request]], float]] = {
    "chat": (_chat, 1.9),
    "system": (_system, 1.2),
    "agents": (_agents, 30.0),
    "documents": (_documents, 1.6),
}


def generate(family: str, seed: int, requests: int) -> list[Request]:
    """A trace of exactly `requests` requests. It starts empty, as a service does."""
    make, per_story = FAMILIES[family]
    source = _Source(seed, family)
    made = sorted(make(source, math.ceil(1.5 * requests / per_story) + 20), key=lambda request: request.timestamp)
    if len(made) < requests:
        raise Internal(f"family {family}, seed {seed}: {len(made)} requests of {requests}")
    return made[:requests]
