"""What two looks at vLLM's own metrics pages say was moved in between. The series are the connector's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from demo.client import Sample, total

BLOCKS = "vllm:moontide_blocks_total"
BYTES = "vllm:moontide_bytes_total"
EXTERNAL_HITS = "vllm:external_prefix_cache_hits_total"
PROMPT_TOKENS = "vllm:prompt_tokens_total"


@dataclass(frozen=True)
class Moved:
    """Loads into one server: blocks, bytes, the ways they came ("prefill/shm"), and tokens vLLM counts as hits."""

    blocks: int
    bytes: int
    ways: tuple[str, ...]
    external_tokens: int

    @property
    def way(self) -> str:
        return "+".join(self.ways) or "-"


def moved_between(before: Sequence[Sample], after: Sequence[Sample]) -> Moved:
    def grown(name: str, **labels: str) -> int:
        return round(total(after, name, **labels) - total(before, name, **labels))

    ways = []
    for source, path in sorted({(s.labels["source"], s.labels["path"]) for s in after if s.name == BYTES}):
        if grown(BYTES, operation="load", source=source, path=path):
            ways.append(f"{source}/{path}")
    return Moved(
        blocks=grown(BLOCKS, operation="load"),
        bytes=grown(BYTES, operation="load"),
        ways=tuple(ways),
        external_tokens=grown(EXTERNAL_HITS),
    )
