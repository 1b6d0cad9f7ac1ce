"""What a pool of a given size holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from moontide.cli.main import main
from moontide.errors import Invalid
from moontide.kv.sizing import ModelShape, plan_pool, shape_from_file

LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


def written(folder: Path, said: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(said))
    return path


def planned(*arguments: str) -> dict[str, float]:
    result = CliRunner().invoke(main, ["plan", *arguments, "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, float] = json.loads(result.stdout)
    return found


def test_a_model_by_its_numbers_and_by_its_file(tmp_path: Path) -> None:
    numbers = planned("--layers", "32", "--kv-heads", "8", "--head-dim", "128", "--budget", "64GiB", "--rate", "10000")
    assert numbers["bytes_per_token"] == 32 * 2 * 8 * 128 * 2 == 131_072
    assert numbers["block_bytes"] == 16 * 131_072 + 64
    assert numbers["blocks"] == (64 << 30) // (16 * 131_072 + 64)
    assert numbers["tokens"] == numbers["blocks"] * 16
    assert numbers["fill_seconds"] == pytest.approx(numbers["tokens"] / 10_000)
    file = str(written(tmp_path, LLAMA_8B))
    assert planned("--model", file, "--budget", "64GiB", "--rate", "10000") == numbers
    assert "fill_seconds" not in planned("--model", file, "--budget", "64GiB")
    words = CliRunner().invoke(main, ["plan", "--model", file, "--budget", "64GiB"])
    assert "bytes_per_token                 131,072\n" in words.stdout


@pytest.mark.parametrize(
    ("said", "shape"),
    [
        (LLAMA_8B, ModelShape(32, 8, 128)),
        ({"text_config": LLAMA_8B | {"head_dim": 64}}, ModelShape(32, 8, 64)),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768}, ModelShape(12, 12, 64)),
        ({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, ModelShape(61, latent=576)),
    ],
)
def test_files_of_several_kinds(tmp_path: Path, said: object, shape: ModelShape) -> None:
    assert shape_from_file(written(tmp_path, said)) == shape


def test_ranks_share_heads_as_far_as_they_go() -> None:
    shape = ModelShape(layers=4, kv_heads=2, head_dim=8)
    assert [shape.elements_per_token(ranks) for ranks in (1, 2, 8)] == [128, 64, 64]
    assert ModelShape(layers=4, latent=100).elements_per_token(8) == 400


@pytest.mark.parametrize("said", [[], {}, {"num_hidden_layers": 0}, {"num_hidden_layers": "32"}, "text"])
def test_a_file_that_says_too_little(tmp_path: Path, said: object) -> None:
    with pytest.raises(Invalid, match=r"config\.json"):
        shape_from_file(written(tmp_path, said))
    with pytest.raises(Invalid, match=r"none\.json"):
        shape_from_file(tmp_path / "none.json")


def test_numbers_out_of_range() -> None:
    shape = ModelShape(1, 1, 1)
    usual = {"dtype": "fp16", "block_tokens": 16, "tensor_parallel": 1, "budget": 1 << 20, "tokens_per_second": 0.0}
    for wrong in (
        {"dtype": "int3"},
        {"block_tokens": 0},
        {"tensor_parallel": 0},
        {"budget": 1},
        {"tokens_per_second": float("nan")},
    ):
        with pytest.raises(Invalid, match="=|budget"):
            plan_pool(shape, **(usual | wrong))  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="layers = 0"):
        ModelShape(0)
    assert CliRunner().invoke(main, ["plan", "--budget", "1GiB"]).exit_code == 1
