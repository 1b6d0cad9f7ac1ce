"""What is measured: batches of the shapes that KV cache has, in two directions, on warm and on cold buffers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# Each of the four memories of a turn. The windows of a case that goes beyond the caches lie one after the other in it.
POOL_BYTES = 256 * MIB
MEDIA = ("shm", "cma", "tcp")
LEAVE_MEDIA = ("shm", "cma")  # where one process can write another one's memory
WAITS = ("poll", "sleep")
OPS = ("read", "write")


@dataclass(frozen=True)
class Case:
    """One batch: `count` entries of `size` bytes, moved `iterations` times per turn, at `windows` places in turn.

    A contestant that is slow stops after `seconds`, but not before it did a few.
    """

    name: str
    op: str
    size: int
    count: int
    order: str  # "straight": entries side by side on both sides; "shuffled": the remote ones lie in another order
    windows: int
    iterations: int
    seconds: float
    kind: str = "transfer"
    threads: int = 1  # of the initiator, all at once, each with a batch and a window of its own
    like: str = ""  # the case whose bare loops bound this one as well, by their rate
    plain: str = ""  # the case of the peers to compare with, where this one is only the project's

    @property
    def nbytes(self) -> int:
        """Of one batch."""
        return self.size * self.count

    @property
    def total(self) -> int:
        """Bytes of one iteration."""
        return self.nbytes * self.threads

    @property
    def small(self) -> bool:
        """Small messages have a row for each wait; in bulk the better wait of each contestant counts."""
        return self.size < 64 * KIB

    @property
    def single(self) -> bool:
        return self.count == 1

    def plan(self) -> dict[str, Any]:
        return asdict(self)


def _case(quick: bool, op: str, shape: str, size: int, count: int, windows: int = 1, **more: Any) -> Case:
    iterations = 500 if count == 1 else max(4, min(15, 320 * MIB // (size * count)))
    times, seconds = (1, 0.2) if quick else (3, 0.4)
    order = more.pop("order", "straight")
    return Case(f"{op} {shape}", op, size, count, order, windows, iterations * times, seconds, **more)


def transfer_cases(quick: bool) -> list[Case]:
    """What one thread does."""
    out = []
    for op in OPS:
        cold_blocks, cold = f"{op} 4 KiB x 1024, beyond caches", f"{op} 1 MiB x 64, beyond caches"
        out += [
            _case(quick, op, "one 4 KiB", 4 * KIB, 1),
            _case(quick, op, "4 KiB x 1024", 4 * KIB, 1024),
            _case(quick, op, "4 KiB x 1024, beyond caches", 4 * KIB, 1024, 32),
            _case(quick, op, "4 KiB x 1024, scattered", 4 * KIB, 1024, order="shuffled"),
            _case(quick, op, "64 KiB x 128", 64 * KIB, 128),
            _case(quick, op, "64 KiB x 128, beyond caches", 64 * KIB, 128, 16, like=cold_blocks),
            _case(quick, op, "1 MiB x 64", MIB, 64),
            _case(quick, op, "1 MiB x 64, beyond caches", MIB, 64, POOL_BYTES // (64 * MIB)),
            # One batch is all of the memory: beyond the caches by itself.
            _case(quick, op, "64 MiB x 4", 64 * MIB, 4, like=cold),
        ]
    return out


def threaded_cases(quick: bool) -> list[Case]:
    """What two threads of the initiator do at once. They share its core, so one loop's rate is the limit of both."""
    out = []
    for op in OPS:
        for shape, size, count in (("one 4 KiB", 4 * KIB, 1), ("4 KiB x 1024", 4 * KIB, 1024), ("1 MiB x 64", MIB, 64)):
            name = f"{shape}, 2 threads"
            out.append(_case(quick, op, name, size, count, 2, threads=2, like=f"{op} {shape}"))
    return out


def leave_cases(quick: bool) -> list[Case]:
    """Writes into memory whose owner lets peers of its host write it themselves (`direct_write`)."""
    writes = [case for case in transfer_cases(quick) if case.op == "write"]
    return [replace(c, name=f"{c.name}, by leave", like=c.like or c.name, plain=c.name) for c in writes]


def submission_case(quick: bool) -> Case:
    return Case("batch of 32", "read", 4 * KIB, 32, "shuffled", 1, 300 if quick else 1000, 1.0, kind="submission")
