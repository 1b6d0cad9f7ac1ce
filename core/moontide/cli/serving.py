"""What the long-running subcommands share: a line that says where they are, and an end by signal."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable

__all__ = ["serve_until_signal"]


def serve_until_signal(announce: str, watch: Callable[[], str | None] | None = None) -> None:
    """Prints `announce` on standard output and returns at SIGTERM or SIGINT.

    `watch` is asked twice a second for news to log on standard error.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    print(announce, flush=True)
    while not stop.wait(0.5):
        news = watch() if watch is not None else None
        if news:
            print(news, file=sys.stderr, flush=True)
