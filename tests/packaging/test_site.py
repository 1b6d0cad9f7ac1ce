"""The documentation's site: built as `make docs` does, and not built when a page is wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scripts import docs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    docs.install()


def test_the_site_has_its_pages_and_what_the_code_says() -> None:
    site = docs.ROOT / "build" / "docs"
    done = docs.build(docs.ROOT / "docs", site)
    assert done.returncode == 0, done.stderr
    assert "lend</span>" in (site / "configuration.html").read_text()
    engine = (site / "reference" / "engine.html").read_text()
    assert 'id="moontide.engine.Engine.read"' in engine
    assert 'id="moontide.engine.Engine.metrics"' in engine
    assert 'id="moontide.errors.PeerLost"' in (site / "reference" / "errors.html").read_text()
    assert (site / "design" / "laws.html").exists()
    assert "generated: " not in (site / "configuration.html").read_text()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("\n[gone](nowhere.md)\n", "nowhere.md"),
        ("\n```{eval-rst}\n.. autofunction:: moontide.config.gone\n```\n", "gone"),
    ],
)
def test_a_wrong_page_is_an_error(tmp_path: Path, text: str, complaint: str) -> None:
    for name in ("conf.py", "generated.py"):
        shutil.copy(docs.ROOT / "docs" / name, tmp_path / name)
    (tmp_path / "index.md").write_text("# Page\n" + text)
    for _ in range(2):
        done = docs.build(tmp_path, tmp_path / "out")
        assert done.returncode != 0
        assert complaint in done.stderr
