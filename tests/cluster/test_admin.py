"""A pool over HTTP: its health by trying it, its state, its objects, and who may change them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

import moontide
from moontide.admin import PoolService
from moontide.cli.main import main
from support.pool_process import Server, free_port
from support.waiting import wait_for

pytestmark = pytest.mark.cluster

TOKEN = "a token of sixteen bytes or more"
SECRET = "the secret of this cluster"


class AdminPool:
    """A master that listens for HTTP as well, and nodes."""

    def __init__(self, folder: Path, *, secret: bool = False, token: bool = True) -> None:
        self.http = f"127.0.0.1:{free_port()}"
        self._secret = ["--secret-file", str(private(folder / "secret", SECRET))] if secret else []
        shown = ["--http-token-file", str(private(folder / "token", TOKEN))] if token else []
        listen = ["--listen", f"127.0.0.1:{free_port()}", "--http-listen", self.http, "--lease", "200ms"]
        self.master = Server("master", *listen, *self._secret, *shown)
        self.nodes: list[Server] = []
        flags = {"master": self.master.address, "secret_file": self._secret[1] if secret else None}
        self.config = moontide.load_config(flags, environ={})

    def lend(self) -> Server:
        node = Server("node", "--master", self.master.address, "--lend", "16MiB", *self._secret)
        self.nodes.append(node)
        wanted = len(self.nodes)
        wait_for(lambda: self.ask("/v1/pool")[1]["counts"]["nodes_ready"] == wanted, 20, "the node joined")
        return node

    def ask(
        self, path: str, *, method: str = "GET", body: object = None, token: str = "", host: str = ""
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        headers |= {"Host": host} if host else {}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"http://{self.http}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def state(self) -> str:
        return str(self.ask("/health")[1]["state"])

    def close(self) -> None:
        for server in (*self.nodes, self.master):
            server.close()


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[AdminPool]:
    made = AdminPool(tmp_path)
    yield made
    made.close()


def test_health_is_found_out_by_trying(pool: AdminPool) -> None:
    assert pool.ask("/health/live") == (200, {"state": "live"})
    status, health = pool.ask("/health")
    assert (status, health["state"]) == (503, "unready")
    assert "no node has joined" in health["reasons"]
    assert CliRunner().invoke(main, ["health", pool.http]).exit_code == 1
    first, second = pool.lend(), pool.lend()
    wait_for(lambda: pool.state() == "ready", 20, "objects can be put and read")
    status, health = pool.ask("/health/ready")
    assert (status, health["state"], health["reasons"]) == (200, "ready", [])
    assert health["tried"]["error"] == ""
    assert CliRunner().invoke(main, ["health", pool.http]).output == "ready\n"
    second.kill()
    wait_for(lambda: pool.state() == "degraded", 20, "one node is missing")
    assert "1 of 2 nodes away or joining" in pool.ask("/health")[1]["reasons"]
    first.kill()
    wait_for(lambda: pool.state() == "unready", 20, "both nodes are missing")
    assert pool.ask("/health/live")[0] == 200
    assert pool.ask("/v1/pool")[1]["counts"]["objects"] == 0, "self-tests leave nothing behind"


def test_a_stopped_node_takes_no_objects(pool: AdminPool) -> None:
    node = pool.lend()
    wait_for(lambda: pool.state() == "ready", 20, "objects can be put and read")
    node.stop()
    wait_for(lambda: pool.state() == "unready", 30, "the node does not answer")
    assert pool.ask("/health/live")[0] == 200
    node.go_on()
    wait_for(lambda: pool.state() == "ready", 30, "the node answers again")


def test_state_and_objects(pool: AdminPool) -> None:
    pool.lend()
    keys = [b"a/1", b"a/2", b"a/\xff/x", b"b/%2F keep"]
    with moontide.Store(pool.master.address, config=pool.config) as store:
        for key in keys:
            store.put(key, b"v" * 1000)
    _, state = pool.ask("/v1/pool")
    assert state["address"] == pool.master.address
    (node,) = state["nodes"]
    assert (node["state"], node["tier"], node["objects"]) == ("ready", "dram", 4)
    assert node["committed_bytes"] == state["counts"]["committed_bytes"] >= 4000
    listed = CliRunner().invoke(main, ["segments", pool.http, "--json"])
    assert json.loads(listed.output)["instance"] == node["instance"]
    assert node["address"] in CliRunner().invoke(main, ["segments", pool.http]).output

    first = pool.ask("/v1/objects?prefix=a/&limit=2")[1]
    assert first == {"objects": [{"key": "a/1", "bytes": 1000}, {"key": "a/2", "bytes": 1000}], "next": "a/2"}
    rest = pool.ask(f"/v1/objects?prefix=a/&limit=2&start_after={quote(first['next'])}")[1]
    assert rest == {"objects": [{"key": "hex:612fff2f78", "bytes": 1000}], "next": ""}
    for key in ("a/1", "hex:612fff2f78", "b/%2F keep"):
        assert pool.ask(f"/v1/objects/{quote(key)}") == (200, {"key": key, "bytes": 1000})
    assert pool.ask("/v1/objects/none")[0] == 404
    for bad in ("limit=0", "limit=1001", "limit=x", "prefix=hex:zz"):
        assert pool.ask(f"/v1/objects?{bad}")[0] == 400

    assert pool.ask("/v1/objects/a/1/keep", method="POST", body={"pin": "hard"}, token=TOKEN)[0] == 200
    assert pool.ask("/v1/pool")[1]["nodes"][0]["hard_pinned_bytes"] >= 1000
    for body in ({"pin": "none", "x": 1}, {"pin": "iron"}, {"ttl": -1}, []):
        assert pool.ask("/v1/objects/a/1/keep", method="POST", body=body, token=TOKEN)[0] == 400
    assert pool.ask("/v1/objects/a/1", method="DELETE", token=TOKEN) == (200, {"removed": True})
    assert pool.ask("/v1/objects/a/1", method="DELETE", token=TOKEN)[0] == 404
    assert pool.ask("/v1/objects/a/1")[0] == 404


def test_changes_need_the_token(pool: AdminPool) -> None:
    pool.lend()
    with moontide.Store(pool.master.address, config=pool.config) as store:
        store.put("kept", b"value")
        for token in ("", TOKEN[:-1], TOKEN + "x", "é"):
            for path, method in (("/v1/objects/kept", "DELETE"), ("/v1/objects/kept/keep", "POST")):
                status, answer = pool.ask(path, method=method, body={"ttl": 0.001}, token=token)
                assert (status, answer["error"]["code"]) == (403, "DENIED")
        assert store.get("kept") == b"value"


def test_names_of_strangers_are_not_answered(pool: AdminPool) -> None:
    pool.lend()
    for host, status in (("evil.example", 403), ("evil.example:80", 403), ("localhost:1", 200), ("[::1]:1", 200)):
        assert pool.ask("/v1/pool", host=host)[0] == status
        assert pool.ask("/v1/objects", host=host)[0] == status


def test_without_a_token_nothing_is_changed(tmp_path: Path) -> None:
    pool = AdminPool(tmp_path, token=False)
    try:
        for token in ("", " ", "x"):
            status, answer = pool.ask("/v1/objects/kept", method="DELETE", token=token)
            assert status == 403
            assert "http_token_file" in answer["error"]["message"]
    finally:
        pool.close()


def test_with_a_secret_objects_are_shown_to_who_has_the_token(tmp_path: Path) -> None:
    pool = AdminPool(tmp_path, secret=True)
    try:
        pool.lend()
        wait_for(lambda: pool.state() == "ready", 20, "objects can be put and read")
        for path in ("/v1/objects", "/v1/objects/x"):
            assert pool.ask(path)[0] == 403
        assert pool.ask("/v1/objects", token=TOKEN)[0] == 200
        assert pool.ask("/v1/objects/x", token=TOKEN)[0] == 404
    finally:
        pool.close()


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    token = private(tmp_path / "token", TOKEN)
    token.chmod(0o644)
    arguments = ["master", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--http-token-file", str(token)]
    ended = CliRunner().invoke(main, arguments)
    assert ended.exit_code == 1
    assert "chmod 600" in ended.output


@pytest.mark.slow
def test_the_page_shows_the_pool(pool: AdminPool, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    assert browser is not None, "the Debian package chromium is missing"
    node = pool.lend()
    with moontide.Store(pool.master.address, config=pool.config) as store:
        store.put_many([(f"page/{i}", bytes(200_000)) for i in range(20)])
    picture = tmp_path / "page.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}"]
    flags += ["--window-size=1000,800", "--virtual-time-budget=5000", "--timeout=20000"]
    page = f"http://{pool.http}/"
    shown = subprocess.run([browser, *flags, "--dump-dom", page], capture_output=True, timeout=100, check=True).stdout
    text = shown.decode()
    assert 'class="badge ready"' in text
    assert pool.ask("/v1/pool")[1]["nodes"][0]["address"] in text
    assert "<strong>20</strong>" in text
    subprocess.run([browser, *flags, f"--screenshot={picture}", page], capture_output=True, timeout=100, check=True)
    assert picture.stat().st_size > 10_000
    assert node.process.poll() is None


def test_the_page_loads_nothing_from_elsewhere() -> None:
    class Still:
        address, term = "127.0.0.1:1", 1

        def stats(self) -> dict[str, int]:
            return {}

        def nodes(self) -> list[dict[str, str | int]]:
            return []

    service = PoolService(moontide.load_config(environ={}), Still())
    assert {route.path for route in service.routes() if route.path.startswith("/dashboard")} == {
        "/dashboard.js",
        "/dashboard.css",
    }
    pages = Path(moontide.__file__).parent / "admin" / "pages"
    for path in pages.iterdir():
        text = path.read_text()
        assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}, path
        assert "innerHTML" not in text
