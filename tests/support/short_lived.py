"""Peers that are made to be killed: forked from a process with everything imported, so that one costs milliseconds."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from typing import Any

import msgspec

SIZE = 1 << 20


class Nursery:
    """Starts `python -m support.short_lived`; `spawn` gives the pid and address of a new peer, in `kill` it dies."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.short_lived"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=os.path.dirname(os.path.dirname(__file__)),
        )

    def spawn(self, *, local_reads: str, reads: str = "") -> tuple[int, str]:
        """A peer with a writable region "theirs"; with `reads`, one that reads "ours" at that address all its life."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode({"local_reads": local_reads, "reads": reads}) + b"\n")
        self._process.stdin.flush()
        answer = msgspec.json.decode(self._process.stdout.readline())
        return answer["pid"], answer["address"]

    @staticmethod
    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _live(request: dict[str, Any]) -> None:
    import moontide

    settings = {"local_reads": request["local_reads"], "progress_timeout": "500ms"}
    engine = moontide.Engine(config=moontide.load_config(settings, environ={}))
    engine.register(bytearray(SIZE), name="theirs", writable=True)
    sys.stdout.buffer.write(msgspec.json.encode({"pid": os.getpid(), "address": engine.address}) + b"\n")
    sys.stdout.buffer.flush()
    if request["reads"]:
        memory = engine.register(bytearray(SIZE), name="mine")
        remote = engine.open(request["reads"], timeout=10).region("ours")
        while True:
            engine.read([(memory, remote, 0, SIZE)]).wait(10)
    signal.pause()


def main() -> None:
    importlib.import_module("moontide")  # once, here, for all of them
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    for line in sys.stdin.buffer:
        if os.fork() == 0:
            try:
                _live(msgspec.json.decode(line))
            finally:
                os._exit(1)


if __name__ == "__main__":
    main()
