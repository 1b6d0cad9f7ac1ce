"""Two processes move 64 MiB through moontide.Engine in both directions and compare every byte.

usage: python -m demo.bytes            (the other process is started from here)
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time

from moontide import Engine, Peer, Region, load_config
from moontide.engine import Entry

SIZE = 64 << 20
PARTS = 64
PATHS = ("auto", "cma", "off")


def pattern(seed: int) -> bytes:
    return random.Random(seed).randbytes(SIZE)


def digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def serve(local_reads: str) -> None:
    """The other process: lends a filled and an empty buffer, and says on its input's word what is in them."""
    with Engine(config=load_config({"local_reads": local_reads})) as engine:
        source = engine.allocate(SIZE, name="source")
        source.buffer[:] = pattern(1)
        target = engine.allocate(SIZE, name="target", writable=True)
        target.buffer[:] = bytes(SIZE)
        print(json.dumps({"address": engine.address, "source": digest(source.buffer)}), flush=True)
        sys.stdin.readline()
        print(json.dumps({"target": digest(target.buffer)}), flush=True)


def entries(region: Region, peer: Peer, name: str) -> list[Entry]:
    step = SIZE // PARTS
    remote = peer.region(name)
    return [((region, i * step), remote, i * step, step) for i in range(PARTS)]


def exchange(local_reads: str) -> list[str]:
    """One read and one write with a fresh pair of processes; returns the lines to print."""
    command = [sys.executable, "-m", "demo.bytes", "serve", local_reads]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            hello = json.loads(child.stdout.readline())
            lines = []
            with Engine(config=load_config({"local_reads": local_reads})) as engine:
                peer = engine.open(hello["address"])
                arrived = engine.allocate(SIZE, name="arrived")
                arrived.buffer[:] = bytes(SIZE)  # the kernel's first touch of each page is not the transfer's cost
                start = time.perf_counter()
                transfer = engine.read(entries(arrived.region, peer, "source"))
                transfer.wait()
                seconds = time.perf_counter() - start
                if digest(arrived.buffer) != hello["source"]:
                    raise SystemExit("the bytes read differ from the bytes lent")
                lines.append(f"read  64 MiB by {transfer.path:<5} {SIZE / seconds / 1e9:6.2f} GB/s, every byte equal")
                mine = engine.allocate(SIZE, name="mine")
                mine.buffer[:] = pattern(2)
                start = time.perf_counter()
                transfer = engine.write(entries(mine.region, peer, "target"))
                transfer.wait()
                seconds = time.perf_counter() - start
                child.stdin.write("done\n")
                child.stdin.flush()
                if json.loads(child.stdout.readline())["target"] != digest(mine.buffer):
                    raise SystemExit("the bytes written differ from the bytes that arrived")
                lines.append(f"write 64 MiB by {transfer.path:<5} {SIZE / seconds / 1e9:6.2f} GB/s, every byte equal")
            return lines
        finally:
            child.stdin.close()
            try:
                child.wait(10)
            except subprocess.TimeoutExpired:
                child.kill()


def main() -> None:
    for local_reads in PATHS:
        for line in exchange(local_reads):
            print("  " + line, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    else:
        main()
