"""The servers joined by Moontide: where each one is, and how it is started."""

from __future__ import annotations

import socket
import time

from demo.client import Sample, healthy, metrics
from demo.processes import Fleet, Server, free_port, wait_until
from demo.report import Report
from demo.servers import (
    LEND,
    base_environment,
    connector_config,
    master_command,
    node_command,
    router_command,
    vllm_command,
    vllm_environment,
)
from moontide import Store

_VLLM_SECONDS = 300
_OWN_SECONDS = 30
# Saving goes on after the answer; it is over when the pool's inventory has not changed for so long.
_SETTLED_SECONDS = 1.5


def listening(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


class Cluster:
    """Master and node first: they outlive the vLLM servers. Ports stay the same over restarts."""

    def __init__(self, fleet: Fleet, report: Report) -> None:
        self._fleet = fleet
        self._report = report
        self.master_port, self.node_port, self.router_port = free_port(), free_port(), free_port()
        self.prefill_port, self.decode_port = free_port(), free_port()
        self.master: Server
        self.node: Server
        self.prefill: Server
        self.decode: Server
        self.router: Server

    @property
    def master_address(self) -> str:
        return f"127.0.0.1:{self.master_port}"

    def start(self) -> None:
        env = base_environment()
        self.master = self._fleet.start("master", master_command(self.master_port), env)
        self.master.wait_healthy(lambda: listening(self.master_port), _OWN_SECONDS)
        self.node = self._fleet.start("node", node_command(self.node_port, self.master_port), env)
        self.node.wait_healthy(lambda: listening(self.node_port), _OWN_SECONDS)
        self._report.note(f"master at {self.master_address}, a node lends {LEND}")
        self.prefill = self._start_vllm("prefill", self.prefill_port)
        self.decode = self._start_vllm("decode", self.decode_port)
        seconds = self._wait_vllm(self.prefill, self.prefill_port) + self._wait_vllm(self.decode, self.decode_port)
        self._report.note(f"prefill and decode are up after {seconds:.0f} s")
        command = router_command(self.router_port, self.prefill_port, self.decode_port)
        self.router = self._fleet.start("router", command, env)
        self.router.wait_healthy(lambda: healthy(self.router_port), _OWN_SECONDS)

    def restart_prefill(self) -> None:
        self.prefill.stop()
        self.prefill = self._start_vllm("prefill-again", self.prefill_port)
        self._report.note(f"prefill is up again after {self._wait_vllm(self.prefill, self.prefill_port):.0f} s")

    def wait_pool_settled(self, seconds: float) -> None:
        store = Store(self.master_address)
        try:
            seen: tuple[int, float] = (-1, 0.0)

            def settled() -> bool:
                nonlocal seen
                count = len(store.list())
                if count != seen[0]:
                    seen = (count, time.monotonic())
                return count > 0 and time.monotonic() - seen[1] > _SETTLED_SECONDS

            wait_until(settled, seconds, "the pool does not settle")
            self._report.note(f"the pool holds {seen[0]} objects")
        finally:
            store.close()

    def prefill_metrics(self) -> list[Sample]:
        return metrics(self.prefill_port)

    def decode_metrics(self) -> list[Sample]:
        return metrics(self.decode_port)

    def _start_vllm(self, name: str, port: int) -> Server:
        env = vllm_environment({"MOONTIDE_MASTER": self.master_address})
        return self._fleet.start(name, vllm_command(port, connector_config()), env)

    def _wait_vllm(self, server: Server, port: int) -> float:
        return server.wait_healthy(lambda: healthy(port), _VLLM_SECONDS)
