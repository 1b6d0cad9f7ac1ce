"""Child processes: started in groups of their own, waited for until healthy, ended whatever happens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class DemoError(Exception):
    """Something the demo promises did not hold; the message is for the person watching."""


def free_port() -> int:
    """A port of the loopback interface that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Callable[[], bool], seconds: float, what: str, interval: float = 0.1) -> float:
    """Polls until the condition holds; returns how long it took. Raises DemoError at the deadline."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise DemoError(f"{what}: not within {seconds:g} s")
        time.sleep(interval)
    return time.monotonic() - start


def _die_with_parent() -> None:
    """In the child: if the demo itself is killed, the kernel ends this process too."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Server:
    """One child process with its log file. Not thread-safe; `Fleet` owns it."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                list(command),
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def running(self) -> bool:
        return self._process.poll() is None

    def wait_healthy(self, healthy: Callable[[], bool], seconds: float) -> float:
        """Returns how long it took; raises DemoError with the log's tail when the process ends or takes too long."""

        def ready() -> bool:
            if not self.running():
                raise DemoError(f"{self.name} exited with {self._process.returncode}")
            with contextlib.suppress(OSError):
                return healthy()
            return False

        try:
            return wait_until(ready, seconds, f"{self.name} is not up", interval=0.2)
        except DemoError as error:
            raise DemoError(f"{error}; the end of {self.log}:\n{self.tail()}") from None

    def _signal_group(self, number: int) -> None:
        # The group's id is the leader's pid. It stays reserved while any member lives, so no other group is hit.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to the whole group at once: the crash that the demo stages."""
        self._signal_group(signal.SIGKILL)
        self._process.wait(10)

    def stop(self, seconds: float = 20) -> None:
        """SIGTERM, a while to obey, then SIGKILL for whatever is left of the group."""
        if self.running():
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self._signal_group(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)

    def tail(self, lines: int = 30) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return "(no log)"


class Fleet:
    """All children of one run. Leaving it ends every one of them, the latest first."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        self._servers: list[Server] = []

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> Server:
        server = Server(name, command, env, self.logs / f"{name}.log")
        self._servers.append(server)
        return server

    def __iter__(self) -> Iterator[Server]:
        return iter(self._servers)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in reversed(self._servers):
            server.stop()


def end_on_signals() -> None:
    """SIGTERM and SIGHUP unwind the stack like Ctrl-C does, so that Fleet.__exit__ runs."""

    def unwind(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, unwind)
