"""What the long-running subcommands share: a line that says where they are, and an end by signal."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Mapping

__all__ = ["describe_counts", "refusal_news", "serve_until_signal"]


def refusal_news(refusals: Callable[[], tuple[int, str]]) -> Callable[[], str | None]:
    """A watch that says when connections were refused since it was asked last: how many, and why the last one was."""
    told = 0

    def watch() -> str | None:
        nonlocal told
        count, last = refusals()
        if count == told:
            return None
        fresh, told = count - told, count
        return f"refused {fresh} connection{'s' if fresh > 1 else ''} ({count} so far); the last: {last}"

    return watch


_WATCH_S = 0.5


def serve_until_signal(
    announce: str, watch: Callable[[], str | None] | None = None, drive: Callable[[float], None] | None = None
) -> None:
    """Prints `announce` on standard output and returns at SIGTERM or SIGINT.

    `watch` is asked twice a second for news to log on standard error. `drive(seconds)`: what this thread does between
    these questions, for a server that polls.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    print(announce, flush=True)
    while not stop.is_set():
        if drive is not None:
            drive(_WATCH_S)
        elif stop.wait(_WATCH_S):
            break
        news = watch() if watch is not None else None
        if news:
            print(news, file=sys.stderr, flush=True)


def describe_counts(counts: Mapping[str, int]) -> str:
    """A line per number, for a person."""
    return "".join(f"{name} {value}\n" for name, value in counts.items())
