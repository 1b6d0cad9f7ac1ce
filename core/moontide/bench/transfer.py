"""`moontide bench transfer`: batches of copies between this process and one that it starts, over each path in turn.

Both sides hold their bytes in an arena, so that every path is possible. A path is forced by the configuration option
`local_reads`; which one really carried the bytes is asked of the transfer. The bytes are compared each time.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import msgspec

from moontide.config import Config
from moontide.engine import Arena, Engine, Peer, Prepared
from moontide.errors import Internal, Unavailable

__all__ = ["PATHS", "Measurement", "Shape", "measure", "serve"]

# What the user asks for → the configuration that forces it.
PATHS = {"shm": "shm", "cma": "cma", "tcp": "off"}
_OPS = ("read", "write")
_START_S = 20.0
_REPEATS_MIN = 5


@dataclass(frozen=True)
class Shape:
    """A batch: `count` entries of `size` bytes, side by side."""

    size: int
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes of one batch."""
        return self.size * self.count


class Measurement(msgspec.Struct, frozen=True):
    """One line of the result. Times are of one batch, from posting it until it is complete, in microseconds."""

    path: str  # the one that was asked for
    carried_by: str  # as the transfer says; "pull" is the other side reading over the path
    op: str
    size: int
    count: int
    batches: int
    p50_us: float
    p99_us: float
    gb_per_s: float  # 10^9 bytes, from the median


def _pattern(nbytes: int, salt: int) -> bytes:
    """Bytes of which no two blocks of 256 are alike for long."""
    block = bytes((i * 7 + salt) & 255 for i in range(256))
    blocks = b"".join(number.to_bytes(8, "little") + block[8:] for number in range(min(nbytes // 256 + 1, 4096)))
    return (blocks * (nbytes // len(blocks) + 1))[:nbytes]


def _arena(engine: Engine, nbytes: int, salt: int) -> Arena:
    arena = engine.allocate(nbytes, name="bench", writable=True)
    arena.buffer.cast("B")[:] = _pattern(nbytes, salt)
    return arena


def serve(path: str, nbytes: int, spin_us: int) -> None:
    """The other process: lends memory, says where, and ends with its standard input."""
    with Engine("127.0.0.1:0", config=Config(local_reads=PATHS[path], spin_us=spin_us)) as engine:
        arena = _arena(engine, nbytes, salt=2)
        print(engine.address, flush=True)
        sys.stdin.read()
        engine.unregister(arena)


@contextmanager
def _other_process(path: str, nbytes: int, spin_us: int) -> Iterator[str]:
    """Its address. It dies with the block, and with this process (its standard input ends)."""
    command = [sys.executable, "-m", "moontide.bench.transfer", path, str(nbytes), str(spin_us)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise Unavailable("the other process of the bench did not start; it says why above")
        yield address
    finally:
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _time(prepared: Prepared, seconds: float) -> tuple[list[float], str]:
    """(microseconds per batch, sorted; the path of the last one)."""
    prepared.post().wait()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        transfer = prepared.post()
        transfer.wait()
        now = time.perf_counter()
        samples.append((now - start) * 1e6)
        if now >= end and len(samples) >= _REPEATS_MIN:
            return sorted(samples), transfer.path


def _measure_shape(
    engine: Engine, peer: Peer, arena: Arena, path: str, op: str, shape: Shape, seconds: float
) -> Measurement:
    remote = peer.region("bench")
    entries = [((arena, at), remote, at, shape.size) for at in range(0, shape.nbytes, shape.size)]
    memory = arena.buffer.cast("B")
    mine = _pattern(shape.nbytes, salt=1)
    memory[: shape.nbytes] = mine
    samples, carried_by = _time(engine.prepare(op, entries), seconds)
    there = engine.prepare("read", entries)
    if op == "write":
        memory[: shape.nbytes] = bytes(shape.nbytes)
        there.post().wait()
    if bytes(memory[: shape.nbytes]) != (mine if op == "write" else _pattern(remote.length, salt=2)[: shape.nbytes]):
        raise Internal(f"{op} of {shape.count} x {shape.size} bytes by {path}: the bytes are not what was sent")
    p50 = samples[len(samples) // 2]
    return Measurement(
        path=path,
        carried_by=carried_by,
        op=op,
        size=shape.size,
        count=shape.count,
        batches=len(samples),
        p50_us=round(p50, 2),
        p99_us=round(samples[min(len(samples) - 1, int(len(samples) * 0.99))], 2),
        gb_per_s=round(shape.nbytes / p50 / 1e3, 3),
    )


def measure(
    path: str, shapes: list[Shape], seconds: float, config: Config, report: Callable[[Measurement], None]
) -> None:
    """Measures each shape over one path, reads before writes (they change the other side's memory)."""
    nbytes = max(shape.nbytes for shape in shapes)
    forced = replace(config, local_reads=PATHS[path])
    with _other_process(path, nbytes, config.spin_us) as address, Engine("127.0.0.1:0", config=forced) as engine:
        peer = engine.open(address, timeout=_START_S)
        if peer.paths.get(path) != "ok":
            raise Unavailable(f"{path}: {peer.paths.get(path, 'no such path')}")
        arena = _arena(engine, nbytes, salt=1)
        for op in _OPS:
            for shape in shapes:
                report(_measure_shape(engine, peer, arena, path, op, shape, seconds))


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
