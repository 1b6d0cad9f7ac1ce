"""What is measured of a pool: single calls, batches, many calls at once, and the bytes of objects."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from harness.cases import KIB, MIB

OPS = ("exists", "get", "put")
SMALL = 64  # bytes of an object where the question is what it costs to know of it
BATCH = 128
DEPTH = 64  # single calls under way at once
KEYS = 20_000  # objects in the pool while single calls and batches are timed
FEW, MANY = 100_000, 1_000_000  # objects in the pool in the rows about growth
DATA_SIZES = (64 * KIB, MIB, 16 * MIB)
POOL_BYTES = 1024 * MIB  # lent
BUFFER_BYTES = 128 * MIB  # of the client, for what is put and for what is got
VIEW_SIZES = (64 * KIB, 64 * MIB)
_SIZE_NAMES = {64 * KIB: "64 KiB", MIB: "1 MiB", 16 * MIB: "16 MiB", 64 * MIB: "64 MiB"}


@dataclass(frozen=True)
class StoreCase:
    """`kind`: "single" calls one after the other, "batch": calls of `count` keys, "pipelined": single calls, `count`
    under way at once, "data": calls of `count` objects of `size` bytes from and into registered memory, "view":
    looks at one object of `size` bytes where it lies.

    A contestant that is slow stops after `seconds`, but not before it did a few.
    """

    name: str
    kind: str
    op: str
    size: int
    count: int
    iterations: int
    seconds: float

    @property
    def nbytes(self) -> int:
        """Of one call."""
        return self.size * self.count

    def plan(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Stage:
    """So many objects in the pool, and what is measured then."""

    keys: int
    cases: tuple[StoreCase, ...]

    def plan(self) -> dict[str, Any]:
        return {"keys": self.keys, "cases": [case.plan() for case in self.cases]}


def metadata_cases(quick: bool) -> list[StoreCase]:
    singles, batches, pipelined = (300, 60, 2_000) if quick else (3_000, 400, 20_000)
    seconds = 0.5 if quick else 2.0
    out = []
    for op in OPS:
        name = op if op == "exists" else f"{op} of 64 bytes"
        out += [
            StoreCase(name, "single", op, SMALL, 1, singles, seconds),
            StoreCase(f"{name}, batch of {BATCH}", "batch", op, SMALL, BATCH, batches, seconds),
            StoreCase(f"{name}, {DEPTH} at once", "pipelined", op, SMALL, DEPTH, pipelined, seconds),
        ]
    return out


def growth_cases(quick: bool) -> list[StoreCase]:
    """Those whose cost per key is compared at different numbers of objects."""
    cases = [case for case in metadata_cases(quick) if case.kind != "single" and case.op != "put"]
    return [replace(case, iterations=4 * case.iterations, seconds=4 * case.seconds) for case in cases]


def data_cases(quick: bool) -> list[StoreCase]:
    out = []
    for op in ("put", "get"):
        for size in DATA_SIZES:
            for count in (1, 8 if size == DATA_SIZES[-1] else 32):
                iterations = max(4, min(200, 512 * MIB // (size * count)))
                shape = f"{op} {_SIZE_NAMES[size]}" + (f" x {count}" if count > 1 else "")
                seconds = 0.2 if quick else 1.0
                out.append(StoreCase(shape, "data", op, size, count, iterations // (4 if quick else 1), seconds))
    return out


def view_stages(quick: bool) -> list[Stage]:
    iterations = 300 if quick else 3_000
    cases = [StoreCase(f"view of {_SIZE_NAMES[s]}", "view", "view", s, 1, iterations, 1.0) for s in VIEW_SIZES]
    return [Stage(0, tuple(cases))]


def metadata_stages(quick: bool) -> list[Stage]:
    return [Stage(KEYS // (10 if quick else 1), tuple(metadata_cases(quick)))]


def data_stages(quick: bool) -> list[Stage]:
    return [Stage(0, tuple(data_cases(quick)))]


def growth_stages(quick: bool, most: int | None = None) -> list[Stage]:
    """From few objects to many; `most` is for those who have the memory."""
    few, many = (FEW // 10, FEW) if quick else (FEW, MANY)
    counts = [few, *(step for step in (many, 10 * many) if step <= (most or many))]
    return [Stage(count, tuple(growth_cases(quick))) for count in counts]
