"""Two network namespaces as two hosts, with several rate-limited cables between them. Needs root, ip and tc."""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType

from support.peer_process import Peer


def missing() -> str:
    """Why such hosts cannot be made here; empty when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (Debian: iproute2)"
    name = f"mt-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


class TwoHosts:
    """Hosts "a" and "b"; cable i has 10.77.i.1 at a and 10.77.i.2 at b and lets `mbit[i]` through each way."""

    def __init__(self, mbit: list[int]) -> None:
        self._names = {host: f"mt-{host}-{os.getpid()}" for host in "ab"}
        self.mbit = mbit
        self._peers: list[Peer] = []

    def __enter__(self) -> TwoHosts:
        for host in self._names.values():
            _run("ip", "netns", "add", host)
            _run("ip", "-n", host, "link", "set", "lo", "up")
        a, b = self._names.values()
        for i, rate in enumerate(self.mbit):
            _run("ip", "-n", a, "link", "add", f"cable{i}", "type", "veth", "peer", "name", f"cable{i}", "netns", b)
            for number, host in enumerate((a, b), start=1):
                _run("ip", "-n", host, "address", "add", f"10.77.{i}.{number}/24", "dev", f"cable{i}")
                _run("ip", "-n", host, "link", "set", f"cable{i}", "up")
                limit = ["tbf", "rate", f"{rate}mbit", "burst", "128kb", "latency", "30ms"]
                _run("tc", "-n", host, "qdisc", "add", "dev", f"cable{i}", "root", *limit)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for peer in self._peers:
            peer.close()
        for host in self._names.values():
            subprocess.run(["ip", "netns", "del", host], check=False, capture_output=True)

    def engine(self, host: str, *, size: int, rails: str | None = None) -> Peer:
        """A process on `host` whose engine has a rail on each cable, or those that `rails` says."""
        number = "ab".index(host) + 1
        if rails is None:
            rails = ",".join(f"10.77.{i}.{number}:0" for i in range(len(self.mbit)))
        config = {"rails": rails if len(self.mbit) > 1 else "", "insecure_listen": "true"}
        peer = Peer(listen=f"10.77.0.{number}:0", size=size, config=config, within=self.within(host))
        self._peers.append(peer)
        return peer

    def within(self, host: str) -> tuple[str, ...]:
        """What a command begins with to run there."""
        return ("ip", "netns", "exec", self._names[host])

    def unplug(self, cable: int) -> None:
        """Nothing passes any more; the sockets on both sides are told nothing."""
        _run("ip", "-n", self._names["a"], "link", "set", f"cable{cable}", "down")

    def plug(self, cable: int) -> None:
        _run("ip", "-n", self._names["a"], "link", "set", f"cable{cable}", "up")
