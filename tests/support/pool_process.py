"""A pool of real processes: `moontide master`, `moontide node`, and clients told what to do over a pipe."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
from typing import Any

import msgspec

from support.stopping import stop_process


class Server:
    """One `moontide ...` process; `line` is what it printed when it was ready."""

    def __init__(self, *arguments: str, within: tuple[str, ...] = ()) -> None:
        self.arguments = arguments
        self.within = within
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [*self.within, sys.executable, "-m", "moontide.cli", *self.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().decode()
        assert " at " in self.line, f"moontide {' '.join(self.arguments)} did not start: {self.line!r}"

    @property
    def address(self) -> str:
        found = re.search(r" at (\S+:\d+)", self.line)
        assert found is not None, self.line
        return found[1]

    def stop(self) -> None:
        """SIGSTOP: alive, and does nothing."""
        stop_process(self.process.pid)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def restart(self) -> None:
        self.kill()
        self._close_pipe()
        self.start()

    def terminate(self) -> int:
        """SIGTERM; the exit status."""
        self.process.terminate()
        return self.process.wait(10)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


class Pool:
    """A master and some nodes. The master keeps its address over restarts."""

    def __init__(self, nodes: int = 1, lend: str = "32MiB") -> None:
        self.lend = lend
        self.master = Server("master", "--listen", f"127.0.0.1:{free_port()}")
        self.address = self.master.address
        self.nodes = [self.add_node() for _ in range(nodes)]

    def add_node(self) -> Server:
        return Server("node", "--master", self.address, "--lend", self.lend)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        for server in [*self.nodes, self.master]:
            server.close()


class StoreProcess:
    """A client in a process of its own, to be stopped and killed: `ask` sends a command and returns the answer."""

    def __init__(self, master: str, *, config: dict[str, str] | None = None, within: tuple[str, ...] = ()) -> None:
        settings = msgspec.json.encode(config or {}).decode()
        self.process = subprocess.Popen(
            [*within, sys.executable, "-m", "support.pool_process", master, settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=os.path.dirname(os.path.dirname(__file__)),
        )
        assert self.receive() == "ready"

    def send(self, command: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode({"command": command, **arguments}) + b"\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError("the client process has ended")
        return msgspec.json.decode(line)

    def ask(self, command: str, **arguments: Any) -> Any:
        self.send(command, **arguments)
        return self.receive()

    def stop(self) -> None:
        stop_process(self.process.pid)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> StoreProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def content(key: str, version: int, size: int) -> bytes:
    """Bytes that say which put of which key they are from."""
    return hashlib.shake_128(f"{key}/{version}".encode()).digest(size)


class _Commands:
    def __init__(self, master: str, config: dict[str, str]) -> None:
        import moontide

        self.store = moontide.Store(master, config=moontide.load_config(config, environ={}))
        self.views: dict[str, moontide.View] = {}

    def put(self, key: str, version: int, size: int) -> str:
        self.store.put(key, content(key, version, size))
        return "ok"

    def put_many(self, prefix: str, count: int, version: int, size: int) -> list[str]:
        items = [(f"{prefix}{index}", content(f"{prefix}{index}", version, size)) for index in range(count)]
        return [error.code if error else "ok" for error in self.store.put_many(items)]

    def upsert_loop(self, key: str, first: int, count: int, size: int) -> int:
        """Versions one after the other; how many."""
        for version in range(first, first + count):
            self.store.upsert(key, content(key, version, size))
        return count

    def count_up(self, key: str, count: int) -> int:
        """Adds to a number that others add to as well, so many times; how often somebody else was faster."""
        from moontide.errors import NotFound, Stale

        beaten = 0
        for _ in range(count):
            while True:
                try:
                    version = self.store.stat(key).version
                    number = int(self.store.get(key))
                    self.store.upsert(key, b"%d" % (number + 1), version=version)
                    break
                except (NotFound, Stale):  # a miss: it is being replaced
                    beaten += 1
        return beaten

    def remove(self, key: str) -> str:
        self.store.remove(key)
        return "ok"

    def counters(self) -> dict[str, int]:
        return self.store.counters()

    def look(self, key: str) -> str:
        self.views[key] = self.store.view(key)
        return "in place" if self.views[key].in_place else "a copy"

    def looked_at(self, key: str, version: int) -> str:
        data = self.views[key].data
        return "same" if data == content(key, version, len(data)) else "something else"

    def get_loop(self, key: str, versions: int, size: int, count: int) -> dict[str, int]:
        """Reads again and again; how often it was each version, a miss, or something that nobody put."""
        from moontide.errors import MoontideError

        expected = {content(key, version, size): str(version) for version in range(versions)}
        seen: dict[str, int] = {}
        for _ in range(count):
            try:
                what = expected.get(self.store.get(key), "wrong")
            except MoontideError as error:
                what = error.code
            seen[what] = seen.get(what, 0) + 1
        return seen


def main() -> None:
    commands = _Commands(sys.argv[1], msgspec.json.decode(sys.argv[2]))
    sys.stdout.buffer.write(b'"ready"\n')
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
