"""What vLLM's objects mean in moontide.kv's terms. Everything that knows a vLLM attribute by name and is no hook."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from moontide.errors import Invalid, Unsupported
from moontide.kv.identity import ModelIdentity, fingerprint_folder
from moontide.kv.keys import Span
from moontide.kv.layout import LayerLayout, Layout, Rank, layer_from_strides, without_aliases
from moontide.kv.scheduling import RequestView, ScheduledRequest

__all__ = ["Memory", "check_supported", "describe_cache", "model_identity", "scheduled_requests", "view_request"]

# Names of places and releases: they change without the cache changing.
_NO_SETTINGS = {"_name_or_path", "transformers_version", "_commit_hash"}


def check_supported(vllm_config: Any) -> None:
    """Raises Unsupported for a shape of engine that the connector does not know, with the value."""
    parallel = vllm_config.parallel_config
    for field in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        size = getattr(parallel, field, 1)
        if size != 1:
            raise Unsupported(f"{field} = {size}: MoontideConnector supports 1")


def model_identity(vllm_config: Any) -> ModelIdentity:
    """Identity of the weights and settings of the model that the engine serves."""
    model = vllm_config.model_config
    config = model.hf_config
    weights = fingerprint_folder(model.model) if Path(model.model).is_dir() else getattr(config, "_commit_hash", None)
    settings = {name: value for name, value in config.to_dict().items() if name not in _NO_SETTINGS}
    load = vllm_config.load_config
    described = [settings, model.quantization, str(load.load_format), model.seed if load.load_format == "dummy" else 0]
    text = json.dumps(described, sort_keys=True, default=str)
    return ModelIdentity(
        weights=weights or f"{model.model}@{model.revision}",
        settings=hashlib.sha256(text.encode()).hexdigest()[:32],
        dtype=str(model.dtype).removeprefix("torch."),
        cache_dtype=str(vllm_config.cache_config.cache_dtype),
    )


class Memory:
    """The storages behind a set of tensors, by name. Keeps them alive."""

    def __init__(self) -> None:
        self.ranges: dict[str, tuple[int, int]] = {}
        self._names: dict[int, str] = {}
        self._tensors: list[Any] = []

    def add(self, tensor: Any) -> tuple[str, int]:
        """(region that holds the tensor, offset of its first element there). Raises Unsupported."""
        if tensor.device.type != "cpu":
            raise Unsupported(f"KV cache on device {tensor.device}: this release moves host memory only")
        storage = tensor.untyped_storage()
        start = storage.data_ptr()
        if start not in self._names:
            name = f"kv{len(self._names)}"
            self._names[start] = name
            self.ranges[name] = (start, storage.nbytes())
            self._tensors.append(tensor)
        return self._names[start], tensor.data_ptr() - start

    @property
    def bases(self) -> dict[str, int]:
        return {name: start for name, (start, _) in self.ranges.items()}


def _instruction_set(vllm_config: Any, spec: Any) -> str:
    """The CPU attention kernel packs a block's inside after the instruction set it uses."""
    from vllm.v1.attention.backends import cpu_attn

    choose = getattr(cpu_attn, "_get_attn_isa", None)
    if choose is None:
        import torch

        return str(torch.backends.cpu.get_cpu_capability())
    return str(choose(spec.dtype, spec.block_size, spec.head_size, vllm_config.cache_config.cache_dtype))


def _physical(vllm_config: Any, kv_cache_config: Any, spec: Any, layer_names: Iterable[str]) -> str:
    import vllm

    context = vllm_config.compilation_config.static_forward_context
    backends = set()
    for name in layer_names:
        backend = getattr(context.get(name), "attn_backend", None)
        backends.add(backend.get_name() if backend is not None else "?")
    layout = getattr(kv_cache_config, "kv_cache_layout", None) or "?"
    return "/".join(
        ["+".join(sorted(backends)), str(layout), _instruction_set(vllm_config, spec), f"vllm-{vllm.__version__}"]
    )


def describe_cache(
    vllm_config: Any, kv_cache_config: Any, kv_caches: Mapping[str, Any], tp_rank: int
) -> tuple[Layout, Memory]:
    """The layout of a worker's cache, from the tensors' own shapes and strides. Raises Invalid, Unsupported."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise Unsupported(f"{len(groups)} groups of KV cache: MoontideConnector supports 1")
    spec = groups[0].kv_cache_spec
    memory = Memory()
    layers: dict[str, LayerLayout] = {}
    for name, tensor in kv_caches.items():
        if not hasattr(tensor, "untyped_storage"):
            raise Unsupported(f"layer {name}: a {type(tensor).__name__} instead of one tensor")
        region, offset = memory.add(tensor)
        layers[name] = layer_from_strides(
            name,
            region=region,
            offset=offset,
            num_blocks=kv_cache_config.num_blocks,
            shape=tuple(tensor.shape),
            stride=tuple(tensor.stride()),
            item_bytes=tensor.element_size(),
        )
    if not layers:
        raise Invalid("the engine registered no KV cache")
    layout = Layout(
        model=model_identity(vllm_config),
        physical=_physical(vllm_config, kv_cache_config, spec, layers),
        block_tokens=spec.block_size,
        kv_heads=getattr(spec, "num_kv_heads", 1),
        rank=Rank(tp_rank=tp_rank, tp_size=vllm_config.parallel_config.tensor_parallel_size),
        layers=without_aliases(layers),
    )
    return layout, memory


def _embeds_spans(tensor: Any, block_tokens: int) -> list[Span]:
    import torch

    spans = []
    for start in range(0, tensor.shape[0], block_tokens):
        piece = tensor[start : start + block_tokens].detach().cpu().contiguous()
        digest = hashlib.sha256(piece.view(torch.uint8).numpy().tobytes()).digest()
        spans.append(Span("embeds", (str(piece.dtype), tuple(piece.shape), digest), start, start + piece.shape[0]))
    return spans


def view_request(request: Any, block_tokens: int) -> RequestView:
    """What keys are made of. A request whose content cannot be expressed says so in ``bypass``; never raises."""
    prompt: list[int] = []
    spans: list[Span] = []
    bypass = ""
    try:
        prompt = list(request.all_token_ids[: request.num_prompt_tokens])
        lora = request.lora_request
        if lora is not None:
            spans.append(Span("lora", (lora.lora_name, lora.lora_path)))
        if request.cache_salt:
            spans.append(Span("salt", request.cache_salt))
        for feature in request.mm_features or ():
            if feature.identifier is None:
                bypass = "multimodal"
                break
            start = feature.mm_position.offset
            spans.append(Span("mm", feature.identifier, start, start + feature.mm_position.length))
        if request.prompt_embeds is not None:
            spans += _embeds_spans(request.prompt_embeds, block_tokens)
        if getattr(request, "resumable", False):
            bypass = "streaming"
        for span in spans:
            span.encoded(0)
    except Exception:
        bypass = "inexpressible"
    return RequestView(
        request_id=request.request_id,
        prompt=prompt,
        spans=spans,
        bypass=bypass,
        params=request.kv_transfer_params,
    )


def scheduled_requests(output: Any, block_tokens: int) -> Iterable[ScheduledRequest]:
    """The requests of one step with the authoritative block tables."""
    state = output.kv_connector_block_state
    scheduled = output.num_scheduled_tokens

    def table(request_id: str) -> list[int]:
        tables = state.get_block_ids(request_id) if state is not None else None
        return tables[0] if tables else []

    for new in output.scheduled_new_reqs:
        yield ScheduledRequest(
            new.req_id,
            new.num_computed_tokens,
            scheduled.get(new.req_id, 0),
            partial(table, new.req_id),
            new.block_ids[0][new.num_computed_tokens // block_tokens :],
        )
    cached = output.scheduled_cached_reqs
    for request_id, computed, blocks in zip(
        cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True
    ):
        fresh = blocks[0] if blocks is not None else ()
        if request_id in cached.resumed_req_ids:
            # The whole table, which replaces the one before; its beginning may be shared and stays as it is.
            fresh = fresh[computed // block_tokens :]
        yield ScheduledRequest(request_id, computed, scheduled.get(request_id, 0), partial(table, request_id), fresh)
