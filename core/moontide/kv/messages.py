"""What the scheduler half tells the worker half in each step, and what it hears back."""

from __future__ import annotations

import msgspec

from moontide.kv.params import PullRequest

__all__ = [
    "ClaimJob",
    "HoldJob",
    "HoldPayload",
    "PeerLoad",
    "PoolLoad",
    "ReleaseJob",
    "SaveJob",
    "StepPlan",
    "WorkerReport",
]


class HoldJob(msgspec.Struct):
    """Hold these blocks of a finished request for a decoder."""

    request_id: str
    hold_id: bytes
    blocks: list[int]
    num_tokens: int
    digest: bytes
    """content of the tokens held, `Chain.digest`"""


class PeerLoad(msgspec.Struct):
    """Pull positions [first_position, …) of a held request into the local blocks."""

    request_id: str
    source: PullRequest
    blocks: list[int]
    first_position: int
    digest: bytes
    """what this side expects the hold to contain"""


class ClaimJob(msgspec.Struct):
    """Keep the prefill side's hold alive: its request waits for its turn here."""

    source: PullRequest


class ReleaseJob(msgspec.Struct):
    """Tell the prefill side that its blocks are not needed."""

    source: PullRequest


class PoolLoad(msgspec.Struct):
    request_id: str
    hashes: list[bytes]
    blocks: list[int]


class SaveJob(msgspec.Struct):
    request_id: str
    hashes: list[bytes]
    blocks: list[int]


class StepPlan(msgspec.Struct):
    """One step's work. ``written`` names the blocks that this step's forward pass or loads overwrite."""

    holds: list[HoldJob] = []
    peer_loads: list[PeerLoad] = []
    pool_loads: list[PoolLoad] = []
    claims: list[ClaimJob] = []
    releases: list[ReleaseJob] = []
    saves: list[SaveJob] = []
    written: list[int] = []


class HoldPayload(msgspec.Struct, frozen=True, kw_only=True):
    """What a hold contains: written by the prefill engine, read by the decode engine straight from it."""

    version: int
    layout: bytes
    blocks: tuple[int, ...]
    num_tokens: int
    digest: bytes


class WorkerReport(msgspec.Struct):
    """From the workers to the scheduler half. Ranks are merged by `merged_with`."""

    failed: dict[str, str] = {}
    """request → cause of its failed load"""
    saved: list[tuple[bytes, int]] = []
    """(block hash, TP rank), told only where the cache is embedded in the workers"""
    missing: list[bytes] = []
    """hashes that the pool turned out not to have"""

    def __bool__(self) -> bool:
        return bool(self.failed or self.saved or self.missing)

    def merged_with(self, other: WorkerReport) -> WorkerReport:
        return WorkerReport(
            failed={**self.failed, **other.failed},
            saved=self.saved + other.saved,
            missing=self.missing + other.missing,
        )
