"""Real servers of directories, each on a free loopback port with its files in a folder of the test."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

from support.pool_process import free_port
from support.stopping import stop_process
from support.waiting import wait_for


class DirectoryServer:
    """A process that keeps its port over restarts. `remembers`: whether records outlive one."""

    remembers = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def start(self) -> None:
        log = self.folder / f"{type(self).__name__}.log"
        with log.open("ab") as output:
            self.process = subprocess.Popen(self.command(), cwd=self.folder, stdout=output, stderr=output)
        wait_for(lambda: self.answers() or self.process.poll() is not None, 60, f"{self.url} up")
        assert self.process.poll() is None, log.read_text()[-2000:]

    def stop(self) -> None:
        """SIGSTOP: alive, and does nothing."""
        stop_process(self.process.pid)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def restart(self) -> None:
        self.kill()
        self.start()


class MasterServer(DirectoryServer):
    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def command(self) -> list[str]:
        arguments = ["master", "--listen", "127.0.0.1:0", "--http-listen", self.address]
        return [sys.executable, "-m", "moontide.cli", *arguments]


class EtcdServer(DirectoryServer):
    remembers = True

    def __init__(self, folder: Path) -> None:
        self.peer_port = free_port()
        super().__init__(folder)

    @property
    def url(self) -> str:
        return f"etcd://{self.address}"

    def command(self) -> list[str]:
        clients, peers = f"http://{self.address}", f"http://127.0.0.1:{self.peer_port}"
        options = {
            "data-dir": str(self.folder / "etcd"),
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
            "heartbeat-interval": "20",
            "election-timeout": "200",  # the least lease is 1.5 of it
            "log-level": "error",
        }
        return ["etcd", *(part for name, value in options.items() for part in (f"--{name}", value))]


class RedisServer(DirectoryServer):
    @property
    def url(self) -> str:
        return f"redis://{self.address}/3"

    def command(self) -> list[str]:
        options = {"port": str(self.port), "bind": "127.0.0.1", "save": "", "appendonly": "no"}
        return ["redis-server", *(part for name, value in options.items() for part in (f"--{name}", value))]


SERVERS: dict[str, type[DirectoryServer]] = {"http": MasterServer, "etcd": EtcdServer, "redis": RedisServer}
