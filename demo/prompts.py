"""The prompts: shorter than a block, longer than a block, longer than a scheduler chunk, shared prefixes, a crowd."""

from __future__ import annotations

from dataclasses import dataclass

from demo.tiny_model import sentences

BLOCK_TOKENS = 32
CHUNK_TOKENS = 256


@dataclass(frozen=True)
class Prompt:
    """`low` < tokens < `high` is what makes it the case its name says; the run checks it."""

    name: str
    text: str
    low: int
    high: int
    seed: int
    prefix: str = ""
    count: int = 1

    def other(self) -> Prompt:
        """Another prompt for the same case, for when this one will not do."""
        return make(self.name, self.count, self.low, self.high, seed=self.seed + 1000, prefix=self.prefix)


def make(name: str, count: int, low: int, high: int, *, seed: int, prefix: str = "") -> Prompt:
    return Prompt(name, prefix + " ".join(sentences(seed, count)), low, high, seed, prefix, count)


def batches() -> list[list[Prompt]]:
    """In the order in which they are sent; a batch of several is sent at once."""
    shared = " ".join(sentences(40, 20)) + " "
    return [
        [make("short", 1, 0, BLOCK_TOKENS, seed=11)],
        [make("two blocks", 6, 2 * BLOCK_TOKENS, 8 * BLOCK_TOKENS, seed=12)],
        [make("chunked", 50, 2 * CHUNK_TOKENS, 2000, seed=13)],
        [make("shared A", 8, CHUNK_TOKENS, 2000, seed=14, prefix=shared)],
        [make("shared B", 8, CHUNK_TOKENS, 2000, seed=15, prefix=shared)],
        [make(f"at once {i + 1}", 5 + 9 * i, BLOCK_TOKENS, 2000, seed=20 + i) for i in range(4)],
    ]


def for_the_kill() -> list[Prompt]:
    """A crowd of long ones that nobody has seen before, so that the prefill server is busy for a second."""
    return [make(f"killed {i + 1}", 150, 4 * CHUNK_TOKENS, 2000, seed=60 + i) for i in range(8)]


def after_the_kill() -> list[Prompt]:
    """New ones that the decode server has to serve alone."""
    return [make("alone 1", 12, BLOCK_TOKENS, 2000, seed=71), make("alone 2", 40, CHUNK_TOKENS, 2000, seed=72)]
