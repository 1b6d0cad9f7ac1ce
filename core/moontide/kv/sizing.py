"""How much room a model's KV cache takes in a pool: arithmetic, nothing is measured here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moontide.errors import Invalid

__all__ = ["DTYPE_BYTES", "ModelShape", "Plan", "as_fields", "plan_pool", "shape_from_file"]

DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of one element of the cache, by the name of its type."""

_HEADER_BYTES = 64  # before each object in a segment, and its alignment
_MASTER_BYTES = 335  # of the master's memory per object; seen with keys of 64 bytes and 200,000 objects
_COUNT_MAX = 1 << 20


@dataclass(frozen=True)
class ModelShape:
    """What of a model decides the size of its cache.

    `latent`: elements per token and layer of a compressed cache (multi-head latent attention); 0: keys and values of
    `kv_heads` heads of `head_dim` elements.
    """

    layers: int
    kv_heads: int = 1
    head_dim: int = 1
    latent: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("layers", self.layers, 1),
            ("kv_heads", self.kv_heads, 1),
            ("head_dim", self.head_dim, 1),
            ("latent", self.latent, 0),
        ):
            if not least <= value <= _COUNT_MAX:
                raise Invalid(f"{name} = {value}: must be from {least} to {_COUNT_MAX}")

    def elements_per_token(self, tensor_parallel: int) -> int:
        """Of one of `tensor_parallel` ranks. Heads that cannot be divided, and a latent cache, are on every rank."""
        if self.latent:
            return self.layers * self.latent
        return self.layers * 2 * -(-self.kv_heads // tensor_parallel) * self.head_dim


def shape_from_file(path: Path) -> ModelShape:
    """Of a model's config.json. Invalid: it is not JSON, or says nothing of its layers and heads."""
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise Invalid(f"{path}: {error}") from None
    said = said.get("text_config", said) if isinstance(said, dict) else {}

    def number(*names: str) -> int | None:
        found = next((said[name] for name in names if type(said.get(name)) is int), None)
        return found if found is None or found > 0 else None

    layers = number("num_hidden_layers", "n_layer")
    heads = number("num_attention_heads", "n_head")
    width = number("hidden_size", "n_embd")
    latent = number("kv_lora_rank")
    if layers is not None and latent is not None:
        return ModelShape(layers, latent=latent + (number("qk_rope_head_dim") or 0))
    head_dim = number("head_dim") or (width // heads if width and heads else None)
    kv_heads = number("num_key_value_heads") or heads
    if layers is None or kv_heads is None or head_dim is None:
        raise Invalid(f"{path}: it does not say num_hidden_layers, num_key_value_heads and head_dim")
    return ModelShape(layers, kv_heads, head_dim)


@dataclass(frozen=True)
class Plan:
    """What fits. Bytes but for `blocks` and `tokens`; `fill_seconds` where a rate was given."""

    bytes_per_token: int
    block_bytes: int
    objects_per_block: int
    blocks: int
    tokens: int
    master_bytes: int
    fill_seconds: float | None


def plan_pool(
    shape: ModelShape, *, dtype: str, block_tokens: int, tensor_parallel: int, budget: int, tokens_per_second: float
) -> Plan:
    """`budget`: bytes that the nodes lend together; `tokens_per_second`: prompt tokens that are new, 0: not known.

    A block of tokens is one object per rank, of all layers. Invalid: a number out of its range, or a budget that holds
    no block.
    """
    if dtype not in DTYPE_BYTES:
        raise Invalid(f"dtype = {dtype!r}: allowed are {', '.join(DTYPE_BYTES)}")
    for name, count in (("block_tokens", block_tokens), ("tensor_parallel", tensor_parallel)):
        if not 1 <= count <= _COUNT_MAX:
            raise Invalid(f"{name} = {count}: must be from 1 to {_COUNT_MAX}")
    if not tokens_per_second >= 0:
        raise Invalid(f"rate = {tokens_per_second}: must be 0 or more tokens per second")
    per_rank = shape.elements_per_token(tensor_parallel) * DTYPE_BYTES[dtype]
    object_bytes = -(-(_HEADER_BYTES + per_rank * block_tokens) // _HEADER_BYTES) * _HEADER_BYTES
    block_bytes = object_bytes * tensor_parallel
    blocks = budget // block_bytes
    if blocks == 0:
        raise Invalid(f"budget = {budget} bytes: one block takes {block_bytes}")
    tokens = blocks * block_tokens
    return Plan(
        bytes_per_token=per_rank * tensor_parallel,
        block_bytes=block_bytes,
        objects_per_block=tensor_parallel,
        blocks=blocks,
        tokens=tokens,
        master_bytes=blocks * tensor_parallel * _MASTER_BYTES,
        fill_seconds=tokens / tokens_per_second if tokens_per_second else None,
    )


def as_fields(plan: Plan) -> dict[str, Any]:
    """By name, in order, without what is not known."""
    return {name: value for name, value in vars(plan).items() if value is not None}
