"""NIXL with its UCX back end, prepared descriptor lists and requests that are posted again.

Without the progress thread, which costs 20-50 % on two cores, except on a target that sleeps: nothing else drives it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

from nixl_cu12._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t
from side import Contestant, Entry, Memory, Submission, main


class Nixl(Contestant):
    name = "nixl"

    def __init__(self, plan: dict[str, Any], source: Memory, sink: Memory) -> None:
        self._source, self._sink = source, sink
        sleeps = plan["wait"] == "sleep" and plan["role"] == "target"
        locks = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT if plan["variant"] == "threads" else None
        settings = nixl_agent_config(enable_prog_thread=sleeps, backends=["UCX"], sync_mode=locks)
        self._agent = nixl_agent(plan["role"], settings)
        self._agent.register_memory([(m.address, m.nbytes, 0, "") for m in (source, sink)], "DRAM")

    def hello(self) -> dict[str, Any]:
        return {
            "metadata": base64.b64encode(self._agent.get_agent_metadata()).decode(),
            "source": self._source.address,
            "sink": self._sink.address,
        }

    def connect(self, other: dict[str, Any]) -> None:
        self._other = other
        name = self._agent.add_remote_agent(base64.b64decode(other["metadata"]))
        self._peer = name.decode() if isinstance(name, bytes) else name

    def _descriptors(self, op: str, entries: Sequence[Entry]) -> tuple[list[Any], list[Any]]:
        local, remote = (self._sink, "source") if op == "read" else (self._source, "sink")
        return (
            [(local.address + at, length, 0) for at, _, length in entries],
            [(self._other[remote] + at, length, 0) for _, at, length in entries],
        )

    def _wait(self, handle: Any, state: str) -> None:
        check = self._agent.check_xfer_state
        while state == "PROC":
            state = check(handle)
        if state != "DONE":
            raise RuntimeError(f"NIXL's transfer ended in {state}")

    def _prepared(self, op: str, entries: Sequence[Entry]) -> Any:
        local, remote = self._descriptors(op, entries)
        near = self._agent.prep_xfer_dlist("NIXL_INIT_AGENT", local, "DRAM")
        far = self._agent.prep_xfer_dlist(self._peer, remote, "DRAM")
        order = list(range(len(entries)))
        return self._agent.make_prepped_xfer(op.upper(), near, order, far, order)

    def prepare(self, op: str, entries: Sequence[Entry]) -> Callable[[], None]:
        handle = self._prepared(op, entries)
        transfer, wait = self._agent.transfer, self._wait
        return lambda: wait(handle, transfer(handle))

    def submission(self, entries: Sequence[Entry]) -> Submission:
        agent = self._agent
        local, remote = self._descriptors("read", entries)
        ready = self._prepared("read", entries)

        def submit() -> Any:
            near, far = agent.get_xfer_descs(local, "DRAM"), agent.get_xfer_descs(remote, "DRAM")
            handle = agent.initialize_xfer("READ", near, far, self._peer)
            return handle, agent.transfer(handle)

        return submit, lambda: (ready, agent.transfer(ready)), lambda ticket: self._wait(*ticket)

    def progress(self) -> None:
        self._agent.get_new_notifs()

    def versions(self) -> dict[str, str]:
        return {"nixl-cu12": version("nixl-cu12")}


main(Nixl)
