"""Looking into a pool from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import moontide
from moontide.cli.main import main
from support.pool_process import Pool
from support.waiting import wait_for

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as running:
        yield running


def run(pool: Pool, *arguments: str, given: bytes = b"", status: int = 0) -> Result:
    result = CliRunner().invoke(main, [*arguments, "--master", pool.address], input=given)
    assert result.exit_code == status, result.output
    return result


def test_bytes_go_in_and_come_out(pool: Pool, tmp_path: Path) -> None:
    value = bytes(range(256)) * 500
    (tmp_path / "value").write_bytes(value)
    run(pool, "put", "cli/file", str(tmp_path / "value"))
    run(pool, "put", "cli/given", given=b"\x00\xff")
    run(pool, "put", "cli/empty", given=b"")
    assert run(pool, "get", "cli/file").stdout_bytes == value
    run(pool, "get", "cli/given", "-o", str(tmp_path / "copy"))
    assert (tmp_path / "copy").read_bytes() == b"\x00\xff"
    assert "ALREADY_EXISTS" in run(pool, "put", "cli/file", given=b"other", status=1).stderr
    assert "NOT_FOUND" in run(pool, "get", "cli/none", "-o", str(tmp_path / "none"), status=1).stderr
    assert not (tmp_path / "none").exists(), "a miss writes no file"
    listed = [line.split() for line in run(pool, "ls", "cli/").stdout.splitlines()]
    assert listed == [["0", "cli/empty"], ["128000", "cli/file"], ["2", "cli/given"]]
    assert len(run(pool, "ls", "cli/", "--limit", "2").stdout.splitlines()) == 2
    found = run(pool, "stat", "cli/given", "cli/none", "--json", status=1)
    told = json.loads(found.stdout)
    assert (told["key"], told["bytes"], len(told["places"])) == ("cli/given", 2, 1)
    assert f"{told['places'][0]['node']}@127.0.0.1:" in run(pool, "stat", "cli/given").stdout
    assert "cli/none: NOT_FOUND" in found.stderr
    run(pool, "rm", "cli/given", "--prefix", "cli/e")
    assert "cli/given: NOT_FOUND" in run(pool, "rm", "cli/given", "cli/file", status=1).stderr
    assert run(pool, "ls", "cli/").stdout == ""
    assert "give a KEY" in run(pool, "rm", status=2).stderr


def test_replicas_are_told(pool: Pool) -> None:
    run(pool, "put", "replicas/a", "--replicas", "2", given=b"a")  # one node only: one place, and that is said
    assert len(json.loads(run(pool, "stat", "replicas/a", "--json").stdout)["places"]) == 1
    assert json.loads(run(pool, "status", "--json").stdout)["replicas_short"] == 1
    assert "--replicas" in run(pool, "put", "replicas/b", "--replicas", "9", given=b"", status=2).stderr
    run(pool, "rm", "replicas/a")


def test_keys_that_are_no_text(pool: Pool) -> None:
    odd = [b"\x00\xff", b"hex:00", b"line\nbreak"]
    with moontide.Store(pool.address) as store:
        for key in odd:
            store.put(key, key)
    shown = [json.loads(line)["key"] for line in run(pool, "ls", "--json").stdout.splitlines()]
    assert shown == ["hex:00ff", "hex:6865783a3030", "hex:6c696e650a627265616b"]
    for key, text in zip(odd, shown, strict=True):
        assert run(pool, "get", text).stdout_bytes == key
    assert "digits of hexadecimal" in run(pool, "get", "hex:xy", status=1).stderr
    run(pool, "rm", *shown)


def test_pins_and_times(pool: Pool) -> None:
    run(pool, "put", "pins/a", "--pin", "hard", given=b"a" * 1000)
    run(pool, "put", "pins/b", "--ttl", "100ms", given=b"b")
    assert json.loads(run(pool, "status", "--json").stdout)["hard_pinned_bytes"] >= 1000
    wait_for(lambda: len(run(pool, "ls", "pins/").stdout.splitlines()) == 1, what="the end of its time")
    run(pool, "pin", "pins/a")
    assert "hard_pinned_bytes 0\n" in run(pool, "status").stdout
    assert "pins/b: NOT_FOUND" in run(pool, "pin", "pins/b", "--pin", "soft", status=1).stderr
    assert "--ttl" in run(pool, "put", "pins/c", "--ttl", "soon", given=b"", status=1).stderr
    run(pool, "rm", "--prefix", "pins/")


def test_no_pool_is_named() -> None:
    result = CliRunner(env={"MOONTIDE_MASTER": None, "MOONTIDE_CONFIG": None}).invoke(main, ["ls"])
    assert result.exit_code == 1 and "give --master" in result.stderr


def test_draining_from_the_command_line(pool: Pool) -> None:
    run(pool, "put", "drain/a", given=b"a")
    node = json.loads(run(pool, "stat", "drain/a", "--json").stdout)["places"][0]["node"]
    assert "objects" in run(pool, "drain", node).stdout
    assert run(pool, "drain", node, "--wait", "--timeout", "0.2", status=1).stdout, "a lone node keeps what it has"
    run(pool, "drain", node, "--cancel")
    run(pool, "put", "drain/b", given=b"b")
    assert "32 hexadecimal" in run(pool, "drain", "node", status=1).stderr
    assert "no such node" in run(pool, "drain", "0" * 32, status=1).stderr
    run(pool, "rm", "drain/a", "drain/b")
