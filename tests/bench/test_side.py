"""What runs inside a contestant's process: windows, wiping, arrival, digests; and what watches from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import side
from harness.environments import compile_limits
from harness.turns import Memories
from harness.watch import ForeignCpu

BLOCK = 4096
POOL = 64 * BLOCK


@pytest.fixture
def memories() -> Iterator[tuple[side.Memory, side.Memory]]:
    """(source with blocks that say which one they are, wiped sink)."""
    made = []
    for _ in range(2):
        fd = os.memfd_create("test")
        os.ftruncate(fd, POOL)
        made.append(side.Memory(fd, POOL))
        os.close(fd)
    source, sink = made
    for i in range(POOL // BLOCK):
        source.view[i * BLOCK : (i + 1) * BLOCK] = (i + 1).to_bytes(8, "little") * (BLOCK // 8)
    yield source, sink


def copy(window: side.Window, source: side.Memory, sink: side.Memory, size: int) -> None:
    for of, at in window.pairs:
        sink.view[at : at + size] = source.view[of : of + size]


@pytest.mark.parametrize("op", ["read", "write"])
@pytest.mark.parametrize("order", ["straight", "shuffled"])
@pytest.mark.parametrize("index", [0, 1])
def test_arrival_is_seen_only_when_every_entry_is_in_its_place(
    memories: tuple[side.Memory, side.Memory], op: str, order: str, index: int
) -> None:
    source, sink = memories
    window = side.Window({"size": BLOCK, "count": 16, "op": op, "order": order}, index, source, sink)
    window.wipe_all()
    assert not window.arrived()
    copy(window, source, sink, BLOCK)
    assert window.arrived()
    assert window.intact()
    window.wipe()
    assert not window.arrived()
    copy(window, source, sink, BLOCK)
    # Two blocks swapped, and one byte wrong in the middle of a block.
    a, b = window.base, window.base + BLOCK
    first = bytes(sink.view[a : a + BLOCK])
    sink.view[a : a + BLOCK] = bytes(sink.view[b : b + BLOCK])
    sink.view[b : b + BLOCK] = first
    assert not window.arrived()
    copy(window, source, sink, BLOCK)
    sink.view[a + 100] ^= 1
    assert window.arrived()
    assert not window.intact()


def test_entries_stay_inside_their_window_and_are_a_permutation() -> None:
    assert sorted(side.slots(1024, "shuffled")) == list(range(1024))
    assert side.slots(1024, "shuffled") != list(range(1024))
    assert side.slots(8, "straight") == list(range(8))


def test_the_buffers_of_all_turns_tell_every_block_from_every_other() -> None:
    memories = Memories()
    try:
        source = side.Memory(memories.fds["initiator_source"], 1 << 20)
        blocks = {bytes(source.view[at : at + BLOCK]) for at in range(0, 1 << 20, BLOCK)}
        assert len(blocks) == (1 << 20) // BLOCK
    finally:
        memories.close()


def test_foreign_cpu_sees_a_busy_process_and_leaves_out_the_turns_own() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        outside, inside = ForeignCpu({os.getpid()}), ForeignCpu({os.getpid(), busy.pid})
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if time.clock_gettime(side.cpu_clock_of(busy.pid)) > 0.5:
                break
        # Other processes of the machine count in both, so only the difference is the busy one's.
        assert outside.share() - inside.share() > 0.05
    finally:
        busy.kill()
        busy.wait()


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("copy", ["4096", "8", "65536", "3", "shuffled", "memcpy", "rep movsb"]),
        ("cma", ["4096", "8", "65536", "3", "shuffled", "readv 4 x 1", "writev 4 x 8"]),
        ("cma", ["1048576", "2", "2097152", "3", "straight", "readv 64 x 1", "readv 1024 x 16"]),
        ("tcp", ["4096", "8", "65536", "3", "shuffled", "write", "poll", "1 x 64 buffers 0"]),
        (
            "tcp",
            ["1048576", "2", "4194304", "3", "straight", "read", "sleep", "1 x 512 buffers 0", "2 x 64 buffers 1024"],
        ),
    ],
)
def test_the_bare_loops_run_check_their_bytes_and_report(
    program: str, arguments: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    source = Path(side.__file__).resolve().parent.parent / "limits"
    programs = compile_limits(source, tmp_path_factory.mktemp("limits"))
    done = subprocess.run([str(programs[program]), *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    loops = [a for a in arguments[5:] if a not in ("read", "write", "poll", "sleep")]
    assert [event["loop"] for event in events] == loops
    assert all(0 < event["p50_us"] <= event["p99_us"] for event in events)


def test_a_bare_loop_refuses_nonsense(tmp_path: Path) -> None:
    source = Path(side.__file__).resolve().parent.parent / "limits"
    programs = compile_limits(source, tmp_path)
    for arguments in (["0", "1", "4096", "1", "straight"], ["4096", "2", "4096", "1", "straight"], []):
        assert subprocess.run([str(programs["copy"]), *arguments], capture_output=True, check=False).returncode == 2
    bad = ["4096", "1", "4096", "1", "straight", "read", "poll", "9 x 0 buffers 0"]
    assert subprocess.run([str(programs["tcp"]), *bad], capture_output=True, check=False).returncode == 2
