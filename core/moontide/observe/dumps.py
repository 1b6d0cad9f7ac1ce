"""What is under way: for a person who looks for what is stuck, and for programs."""

from __future__ import annotations

import _thread
import os
import signal
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TextIO

import msgspec

from moontide import _core
from moontide.errors import Invalid, MoontideError

__all__ = [
    "Connecting",
    "EngineDump",
    "StageDump",
    "TransferDump",
    "dump_engine",
    "dump_on_signal",
    "dumps_text",
    "format_dump",
]


class StageDump(msgspec.Struct, frozen=True):
    """Slices of a transfer that are in the same place."""

    peer: str
    """The peer's identity."""
    address: str
    path: str
    """Empty while none is chosen."""
    stage: str
    """ "queue", "wire", "copy"; "fence": the transfer has its outcome, and the peer may still be landing bytes."""
    slices: int
    bytes: int
    age_seconds: float
    """How long the first of them is there."""


class TransferDump(msgspec.Struct, frozen=True):
    """One transfer that is not quiet."""

    number: int
    trace: str
    served: bool
    """For a peer that asked this engine to read from it."""
    done: bool
    """Has its outcome, and is a hostage."""
    code: str
    """Of the outcome."""
    age_seconds: float
    idle_seconds: float
    """Since the last byte moved."""
    bytes_moved: int
    bytes_total: int
    slices_left: int
    where: tuple[StageDump, ...]


class Connecting(msgspec.Struct, frozen=True):
    """A link that is being opened."""

    address: str
    age_seconds: float


class EngineDump(msgspec.Struct, frozen=True):
    """What is under way in one engine; `transfers` oldest first."""

    instance_id: str
    address: str
    transfers: tuple[TransferDump, ...]
    transfers_left_out: int
    connecting: tuple[Connecting, ...]
    links: int
    links_lingering: int
    hostages: int
    holds: int


def dump_engine(runtime: _core.Runtime, transfers_max: int = 1000) -> EngineDump:
    """Any thread; does not wait for anything under way. Closed."""
    return msgspec.convert(_core.dump(runtime, transfers_max), EngineDump)


def format_dump(dump: EngineDump) -> str:
    """A line for the engine, one per transfer, and one per place where slices of it are."""
    head = (
        f"moontide engine {dump.address} ({dump.instance_id[:12]}) pid {os.getpid()}: "
        f"{len(dump.transfers) + dump.transfers_left_out} transfers, {dump.hostages} of them hostages, "
        f"{dump.links} links, {dump.links_lingering} lingering, {dump.holds} holds"
    )
    lines = [head, *(f"  connecting to {each.address} for {each.age_seconds:.3f} s" for each in dump.connecting)]
    for transfer in dump.transfers:
        kind = "pull for a peer" if transfer.served else "transfer"
        outcome = f" {transfer.code}, not quiet" if transfer.done else ""
        lines.append(
            f"  {kind} {transfer.number} trace {transfer.trace}{outcome}: age {transfer.age_seconds:.3f} s, "
            f"last progress {transfer.idle_seconds:.3f} s ago, {transfer.bytes_moved} of {transfer.bytes_total} bytes"
        )
        lines += [
            f"    {place.stage} {place.age_seconds:.3f} s: {place.slices} slices, {place.bytes} bytes, "
            f"path {place.path or 'none'}, peer {place.address} ({place.peer[:12]})"
            for place in transfer.where
        ]
    if dump.transfers_left_out:
        lines.append(f"  and {dump.transfers_left_out} younger transfers")
    return "\n".join(lines) + "\n"


def dumps_text(runtimes: Iterable[_core.Runtime]) -> str:
    """All of them."""
    parts = []
    for runtime in runtimes:
        try:
            parts.append(format_dump(dump_engine(runtime)))
        except MoontideError as error:
            parts.append(f"moontide engine: {error}\n")
    return "".join(parts) or "moontide: no engine is open\n"


def _write(text: Callable[[], str], into: TextIO) -> None:
    into.write(text())
    into.flush()


class _Handler:
    """Of the signal: a class of its own, so that it is known again."""

    def __init__(self, text: Callable[[], str], before: object) -> None:
        self._text = text
        self._before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        # In a thread: the main one may hold the lock of the stream, or be in the middle of anything else, also of
        # what threading.Thread would wait for.
        _thread.start_new_thread(_write, (self._text, sys.stderr))
        if callable(self._before):
            self._before(number, frame)


def dump_on_signal(text: Callable[[], str], number: signal.Signals = signal.SIGUSR1) -> None:
    """From now on the signal writes `text` (asked in a thread) to standard error.

    A handler that was there runs after it. Python runs handlers in the main thread, between two of its instructions; a
    main thread that waits in an engine looks for signals every 50 ms. Once is enough for a process. Invalid: not called
    in the main thread.
    """
    before = signal.getsignal(number)
    if isinstance(before, _Handler):
        return
    try:
        signal.signal(number, _Handler(text, before))
    except ValueError:
        raise Invalid("dump_on_signal: only the main thread can install a signal handler") from None
