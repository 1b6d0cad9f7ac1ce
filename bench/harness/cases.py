"""What is measured: batches of the shapes that KV cache has, in two directions, on warm and on cold buffers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

KIB = 1024
MIB = 1024 * KIB

# Each of the four memories of a turn. The windows of a case that goes beyond the caches lie one after the other in it.
POOL_BYTES = 256 * MIB
MEDIA = ("shm", "cma", "tcp")
WAITS = ("poll", "sleep")
OPS = ("read", "write")


@dataclass(frozen=True)
class Case:
    """One batch: `count` entries of `size` bytes, moved `iterations` times per turn, at `windows` places in turn."""

    name: str
    op: str
    size: int
    count: int
    order: str  # "straight": entries side by side on both sides; "shuffled": the remote ones lie in another order
    windows: int
    iterations: int
    kind: str = "transfer"

    @property
    def nbytes(self) -> int:
        return self.size * self.count

    @property
    def small(self) -> bool:
        """Small messages have a row for each wait; in bulk the better wait of each contestant counts."""
        return self.size < 64 * KIB

    @property
    def single(self) -> bool:
        return self.count == 1

    def plan(self) -> dict[str, Any]:
        return asdict(self)


def transfer_cases(quick: bool) -> list[Case]:
    few, many = (20, 500) if quick else (60, 2000)
    bulk = 7 if quick else 12
    beyond = min(32, POOL_BYTES // (4 * MIB))
    out = []
    for op in OPS:
        out += [
            Case(f"{op} one 4 KiB", op, 4 * KIB, 1, "straight", 1, many),
            Case(f"{op} 4 KiB x 1024", op, 4 * KIB, 1024, "straight", 1, few),
            Case(f"{op} 4 KiB x 1024, beyond caches", op, 4 * KIB, 1024, "straight", beyond, max(few, beyond)),
            Case(f"{op} 4 KiB x 1024, scattered", op, 4 * KIB, 1024, "shuffled", 1, few),
            Case(f"{op} 1 MiB x 64", op, MIB, 64, "straight", 1, bulk),
            Case(f"{op} 1 MiB x 64, beyond caches", op, MIB, 64, "straight", POOL_BYTES // (64 * MIB), bulk),
        ]
    return out


def submission_case(quick: bool) -> Case:
    return Case("batch of 32", "read", 4 * KIB, 32, "shuffled", 1, 300 if quick else 1000, kind="submission")
