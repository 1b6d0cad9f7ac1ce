"""The demo's harness: children end whatever happens, and a wrong answer is not taken for a right one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from demo.client import Answer, Sample, total
from demo.compare import difference
from demo.moved import moved_between
from demo.processes import DemoError, Fleet, free_port, wait_until
from demo.prompts import after_the_kill, batches, for_the_kill
from demo.report import Report
from support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[2]
# A child with a child of its own, which ignores SIGTERM and says its number in the log: one write per line, since
# both share the file and print() may write the end of the line on its own.
STUBBORN = (
    "import os, signal, sys\n"
    "child = os.fork()\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "os.write(1, b'%d\\n' % os.getpid())\n"
    "signal.pause()\n"
)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def numbers(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def test_fleet_ends_whole_groups_on_an_error(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="staged"), Fleet(tmp_path) as fleet:
        server = fleet.start("stubborn", [sys.executable, "-c", STUBBORN], os.environ)
        pids = wait_for(lambda: two if len(two := numbers(server.log)) == 2 else None)
        server.stop(0.1)
        assert pids is not None
        raise DemoError("staged")
    wait_for(lambda: not any(alive(pid) for pid in pids), what="the end of the group")


def test_children_end_with_a_killed_demo(tmp_path: Path) -> None:
    code = (
        "import os, sys, signal\n"
        "from pathlib import Path\n"
        "from demo.processes import Fleet\n"
        "fleet = Fleet(Path(sys.argv[1]))\n"
        "server = fleet.start('sleeper', [sys.executable, '-c', 'import signal; signal.pause()'], os.environ)\n"
        "print(server.pid, flush=True)\n"
        "signal.pause()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        pid = int(demo.stdout.readline())
        assert alive(pid)
        demo.send_signal(signal.SIGKILL)
        demo.wait()
    wait_for(lambda: not alive(pid), what="the end of the child")


def test_a_server_that_dies_at_start_shows_its_log(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        server = fleet.start("broken", [sys.executable, "-c", "raise SystemExit('no luck today')"], os.environ)
        with pytest.raises(DemoError, match=r"broken exited with 1(.|\n)*no luck today"):
            server.wait_healthy(lambda: False, 30)


def test_wait_until_ends_at_its_deadline() -> None:
    with pytest.raises(DemoError, match="the tide: not within 0.05 s"):
        wait_until(lambda: False, 0.05, "the tide", interval=0.01)


def test_free_port_is_free() -> None:
    assert 0 < free_port() < 65536


RIGHT = Answer(text="abc", tokens=(1, 2, 3), prompt_tokens=5)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(error="HTTP 500"), "no answer: HTTP 500"),
        (Answer(text="abd", tokens=(1, 2, 4)), "token 2 is 4, the ordinary server's is 3"),
        (Answer(text="ab", tokens=(1, 2)), "2 tokens"),
        (Answer(text="abC", tokens=(1, 2, 3)), "3 tokens"),
    ],
)
def test_a_wrong_answer_is_told_apart(answer: Answer, words: str) -> None:
    assert words in difference(answer, RIGHT)
    assert not difference(RIGHT, RIGHT)


def test_failures_decide_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.require(True, "this held", "")
    assert report.finish() == 0
    report.require(False, "this held", "it did not")
    assert report.finish() == 1
    assert "this held: it did not" in capsys.readouterr().err


def test_what_was_moved_is_the_difference_of_two_pages() -> None:
    def page(blocks: float, shm: float, pool: float) -> list[Sample]:
        load = {"operation": "load"}
        return [
            Sample("vllm:moontide_blocks_total", {**load, "source": "pool"}, blocks),
            Sample("vllm:moontide_bytes_total", {**load, "source": "prefill", "path": "shm"}, shm),
            Sample("vllm:moontide_bytes_total", {**load, "source": "pool", "path": "tcp"}, pool),
            Sample("vllm:moontide_bytes_total", {"operation": "save", "source": "pool", "path": ""}, 999),
        ]

    moved = moved_between(page(1, 10, 7), page(4, 10, 107))
    assert (moved.blocks, moved.bytes, moved.way) == (3, 100, "pool/tcp")
    assert moved_between([], []).way == "-"
    assert total(page(1, 10, 7), "vllm:moontide_bytes_total", source="pool", operation="load") == 7


def test_prompts_are_all_different() -> None:
    prompts = [p for batch in [*batches(), for_the_kill(), after_the_kill()] for p in batch]
    assert len({p.name for p in prompts}) == len({p.text for p in prompts}) == len(prompts)
    assert all(p.other().text != p.text and p.other().name == p.name for p in prompts)
