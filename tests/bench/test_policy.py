"""`moontide bench policy`: generator, replay and command; the default policy on traces that nobody tuned it on."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from click.testing import CliRunner

from moontide.bench.policy import CAPACITIES, OPTIMUM, measure
from moontide.bench.traces import BLOCK_TOKENS, FAMILIES, generate, read_trace
from moontide.cli.main import main
from moontide.config import load_config
from moontide.errors import Invalid

TRACES = Path(__file__).parents[1] / "fixtures" / "traces"


def run(*arguments: str) -> str:
    done = CliRunner().invoke(main, ["bench", "policy", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trace_follows_from_family_and_seed(family: str) -> None:
    made = generate(family, 5, 400)
    assert made == generate(family, 5, 400)
    assert made != generate(family, 6, 400)
    assert len(made) == 400
    before: dict[int, int] = {}
    for request in made:
        assert len(request.hash_ids) == -(-request.input_length // BLOCK_TOKENS)
        for block, previous in zip(request.hash_ids, [-1, *request.hash_ids], strict=False):
            assert before.setdefault(block, previous) == previous  # a block stands for its whole prefix
    assert [request.timestamp for request in made] == sorted(request.timestamp for request in made)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_traces_in_the_repository_are_what_the_generator_makes(family: str) -> None:
    assert read_trace(str(TRACES / f"{family}.jsonl")) == generate(family, 1, 120)


def test_the_replay_is_exact() -> None:
    """Figures of the small traces that a replay in a few lines of Python gave: LRU as the public tools replay it."""
    for family in FAMILIES:
        requests = read_trace(str(TRACES / f"{family}.jsonl"))
        report = measure(requests, family)
        for percent, ratio in zip(CAPACITIES, report.hit_percent["lru"], strict=True):
            capacity = max(1, report.unique_blocks * percent // 100)
            cached: dict[int, None] = {}  # the coldest first
            hits = 0
            for request in requests:
                for block in request.hash_ids:
                    if block not in cached:
                        break
                    hits += 1
                for block in reversed(request.hash_ids):
                    cached.pop(block, None)
                    cached[block] = None
                while len(cached) > capacity:
                    del cached[next(iter(cached))]
            assert ratio == round(100 * hits / report.blocks, 2)


def test_the_command_generates_replays_and_draws(tmp_path: Path) -> None:
    trace, figures, again, picture = (str(tmp_path / name) for name in ("t.jsonl", "1.json", "2.json", "p.svg"))
    text = run("--generate", "chat", "--seed", "3", "--requests", "300", "--out", trace, "--json", figures)
    assert "300 requests" in text
    run("--trace", trace, "--json", again, "--svg", picture)
    first, second = (json.loads(Path(path).read_text()) for path in (figures, again))
    assert first["hit_percent"] == second["hit_percent"]
    assert second["trace"] == "t.jsonl"
    assert second["capacities_percent"] == list(CAPACITIES)
    assert list(second["hit_percent"])[-1] == OPTIMUM
    assert {"prefix", "lru", "s3fifo", "tinylfu"} < set(second["hit_percent"])
    for ratios in second["hit_percent"].values():
        assert all(0 <= ratio <= best for ratio, best in zip(ratios, second["hit_percent"][OPTIMUM], strict=True))
        assert all(f"{ratio:.2f}" in text for ratio in ratios)
    drawn = ElementTree.parse(picture).getroot()
    assert len(drawn.findall("{http://www.w3.org/2000/svg}polyline")) == len(second["hit_percent"])


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []}', "\0",
     '{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]}',
     '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [-1]}',
     '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}'],
)  # fmt: skip
def test_what_is_no_trace_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(Invalid, match=r"bad\.jsonl"):
        read_trace(str(path))


def test_every_policy_can_be_configured() -> None:
    from moontide import _core

    assert set(_core.policy_names) == {"prefix", "lru", "s3fifo", "tinylfu"}
    for name in _core.policy_names:
        assert load_config({"eviction": name}).eviction == name
    with pytest.raises(Invalid, match="eviction"):
        load_config({"eviction": "random"})


def check_default_is_level(family: str, seed: int, requests: int) -> None:
    """Within half a point of the better of LRU and S3-FIFO at each capacity, and ahead of both on the mean."""
    ratios = measure(generate(family, seed, requests), family).hit_percent
    prefix, lru, s3_fifo = ratios["prefix"], ratios["lru"], ratios["s3fifo"]
    for ratio, *others in zip(prefix, lru, s3_fifo, strict=True):
        assert ratio >= max(others) - 0.5, ratios
    assert sum(prefix) > max(sum(lru), sum(s3_fifo)), ratios


@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_is_level_with_the_better_one_and_ahead_on_the_mean(family: str) -> None:
    check_default_is_level(family, 301, 6000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(302, 311))
@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_is_level_on_ten_seeds(family: str, seed: int) -> None:
    check_default_is_level(family, seed, 6000)
