"""`moontide plan`."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from moontide.config import parse_size
from moontide.errors import Invalid
from moontide.kv.sizing import DTYPE_BYTES, ModelShape, as_fields, plan_pool, shape_from_file

__all__ = ["plan"]


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="A model's config.json, instead of the numbers below.")
@click.option("--layers", type=int, metavar="N", help="Layers that have a cache.")
@click.option("--kv-heads", type=int, metavar="N", help="Key-value heads of a layer.")
@click.option("--head-dim", type=int, metavar="N", help="Elements of a head.")
@click.option("--dtype", type=click.Choice(list(DTYPE_BYTES)), default="bf16", show_default=True, help="Of the cache.")
@click.option("--block-tokens", default=16, show_default=True, metavar="N", help="Tokens of a block.")
@click.option("--tensor-parallel", default=1, show_default=True, metavar="N", help="Ranks that share a model.")
@click.option("--budget", required=True, metavar="SIZE", help="Memory that the nodes lend together.")
@click.option("--rate", default=0.0, metavar="N", help="New prompt tokens per second, for the time to fill it.")
@click.option("--json", "as_json", is_flag=True, help="JSON instead of words.")
def plan(
    model: Path | None,
    layers: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    dtype: str,
    block_tokens: int,
    tensor_parallel: int,
    budget: str,
    rate: float,
    as_json: bool,
) -> None:
    """Say what a pool of a given size holds: bytes per token, blocks, tokens, the master's memory, the time to fill."""
    if model is not None:
        shape = shape_from_file(model)
    elif layers is None or kv_heads is None or head_dim is None:
        raise Invalid("give --model, or --layers, --kv-heads and --head-dim")
    else:
        shape = ModelShape(layers, kv_heads, head_dim)
    found = plan_pool(
        shape,
        dtype=dtype,
        block_tokens=block_tokens,
        tensor_parallel=tensor_parallel,
        budget=parse_size(budget, option="--budget"),
        tokens_per_second=rate,
    )
    fields = as_fields(found)
    if as_json:
        click.echo(msgspec.json.encode(fields))
        return
    for name, value in fields.items():
        click.echo(f"{name:<18} {value:>20,.0f}")
