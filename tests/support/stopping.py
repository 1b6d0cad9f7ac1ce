"""SIGSTOP that has happened: on a busy machine the threads of a process stop one by one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support.waiting import wait_for

__all__ = ["stop_process"]


def stop_process(pid: int) -> None:
    """Stops the process, and returns when each of its threads stands still: alive, and does nothing."""
    os.kill(pid, signal.SIGSTOP)
    states = [task / "stat" for task in Path(f"/proc/{pid}/task").iterdir()]
    wait_for(lambda: all(s.read_text().rpartition(")")[2].split()[0] == "T" for s in states), 10, "all threads stopped")
