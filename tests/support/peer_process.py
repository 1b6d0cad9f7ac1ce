"""A peer in a process of its own, told what to do over a pipe: `Peer` here, `main` there."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import signal
import subprocess
import sys
import time
from typing import Any

import msgspec

from support.stopping import stop_process

SIZE = 8 << 20


class Peer:
    """Starts `python -m support.peer_process`; `ask` sends a command and returns the answer."""

    def __init__(
        self,
        *,
        local_reads: str = "auto",
        listen: str = "127.0.0.1:0",
        size: int = SIZE,
        directory: str = "direct",
        config: dict[str, str] | None = None,
        direct_write: bool = False,
        within: tuple[str, ...] = (),
        stderr: int | None = None,
    ) -> None:
        """`direct_write`: of its regions. `within`: a command that runs another one somewhere, as `ip netns exec`."""
        flags = {
            "local_reads": local_reads,
            "listen": listen,
            "directory": directory,
            "directory_ttl": "2s",
            "progress_timeout": "500ms",
            **(config or {}),
        }
        options = msgspec.json.encode({"flags": flags, "size": size, "direct_write": direct_write}).decode()
        self.process = subprocess.Popen(
            [*within, sys.executable, "-m", "support.peer_process", options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=os.path.dirname(os.path.dirname(__file__)),
        )
        self.address: str = self.answer()["address"]

    def answer(self) -> Any:
        """Of the oldest `send` that was not answered."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError("the peer process has ended")
        return msgspec.json.decode(line)

    def send(self, command: str, **arguments: Any) -> None:
        """Does not wait for the answer; `answer` does, or the peer is closed without asking again."""
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode({"command": command, **arguments}) + b"\n")
        self.process.stdin.flush()

    def ask(self, command: str, **arguments: Any) -> Any:
        self.send(command, **arguments)
        return self.answer()

    def stop(self) -> None:
        """SIGSTOP: alive, and does nothing."""
        stop_process(self.process.pid)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LostMemory:
    """Pages that can be made unreachable, as if they had been unmapped; their addresses stay taken."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._pages = mmap.mmap(-1, nbytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))

    def lose(self) -> None:
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(self.nbytes), 0) == 0


class _Commands:
    """What the process at the other end of the pipe does."""

    def __init__(self, options: dict[str, Any]) -> None:
        import moontide

        config = moontide.load_config(options["flags"], environ={})
        self.engine = moontide.Engine(config=config)
        self.heap = bytearray(options["size"])
        leave = options["direct_write"]
        self.heap_region = self.engine.register(self.heap, name="heap", writable=True, direct_write=leave)
        self.arena = self.engine.allocate(options["size"], name="arena", writable=True, direct_write=leave)
        self.peer: Any = None
        self.publication: Any = None

    def fill(self, region: str, seed: int) -> str:
        memory = self._memory(region)
        memory[:] = pattern(len(memory), seed)
        return self.digest(region)

    def digest(self, region: str) -> str:
        return hashlib.sha256(self._memory(region)).hexdigest()

    def _memory(self, region: str) -> memoryview:
        return memoryview(self.heap) if region == "heap" else self.arena.buffer

    def register_lost(self, name: str) -> None:
        """Registers memory and takes it away behind the engine's back."""
        memory = LostMemory(len(self.heap))
        self.lost = self.engine.register((memory.address, memory.nbytes), name=name, writable=True)
        memory.lose()

    def unregister_heap(self) -> None:
        self.heap_region.unregister(timeout=10)

    def hold(self, hold_id: str, ttl: float) -> None:
        self.engine.hold(hold_id.encode(), b"payload of " + hold_id.encode(), ttl=ttl)

    def drain_holds(self) -> list[tuple[str, str]]:
        return [(hold_id.decode(), how) for hold_id, how in self.engine.drain_holds()]

    def open(self, address: str) -> None:
        self.peer = self.engine.open(address, timeout=10)

    def publish(self, name: str) -> int:
        """The epoch of the claim."""
        self.publication = self.engine.publish(name)
        return self.publication.record.epoch

    def state(self) -> str:
        return self.publication.state

    def close_engine(self) -> None:
        self.engine.close()

    def write(self, address: str, trace: str) -> None:
        """Writes the arena into the heap of the engine there."""
        heap = self.engine.open(address, timeout=10).region("heap")
        self.engine.write([(self.arena, heap, 0, len(self.heap))], trace=trace).wait(30)

    def read_all(self, addresses: list[str]) -> list[str]:
        """Opens all of them at once and reads the heap of each; their digests."""
        opening = [self.engine.open_async(address, timeout=20) for address in addresses]
        target = self.engine.allocate(len(self.heap))
        digests = []
        for operation in opening:
            region = operation.wait(20).region("heap")
            self.engine.read([(target, region, 0, region.length)]).wait(20)
            digests.append(hashlib.sha256(target.buffer[: region.length]).hexdigest())
        return digests

    def claim(self, hold_id: str) -> str:
        return self.peer.claim(hold_id.encode(), timeout=5).decode()

    def release(self, hold_id: str) -> None:
        self.peer.release(hold_id.encode(), timeout=5)

    def start(self, op: str, length: int, urgent: bool = False, region: str = "heap") -> None:
        """Copies between the heap here and a region of the peer."""
        entries = [((self.heap_region, 0), self.peer.region(region), 0, length)]
        self.started = time.monotonic()
        self.transfer = getattr(self.engine, op)(entries, urgent=urgent)

    def urgent_read(self, length: int) -> str:
        """A second transfer beside the one that was started, into the arena."""
        entries = [((self.arena, 0), self.peer.region("heap"), 0, length)]
        self.engine.read(entries, urgent=True).wait(20)
        return hashlib.sha256(self.arena.buffer[:length]).hexdigest()

    def fork_a_sleeper(self) -> int:
        """A child that does nothing, with copies of all descriptors; its pid."""
        pid = os.fork()
        if pid == 0:
            signal.pause()
        return pid

    def progress(self) -> dict[str, Any]:
        return {"done": self.transfer.done, "moved": self.transfer.nbytes_moved}

    def finish(self) -> dict[str, Any]:
        self.transfer.wait(60)
        return {"seconds": time.monotonic() - self.started, "path": self.transfer.path}

    def stats(self) -> dict[str, int]:
        return self.engine.stats()

    def refusals(self) -> tuple[int, str]:
        return self.engine.refusals()


def pattern(size: int, seed: int) -> bytes:
    """Reproducible bytes."""
    return hashlib.shake_128(seed.to_bytes(8, "little")).digest(size)


def main() -> None:
    commands = _Commands(msgspec.json.decode(sys.argv[1]))
    sys.stdout.buffer.write(msgspec.json.encode({"address": commands.engine.address}) + b"\n")
    sys.stdout.buffer.flush()
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line)
        try:
            answer: Any = getattr(commands, request.pop("command"))(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
