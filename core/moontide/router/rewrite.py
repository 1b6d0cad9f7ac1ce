"""What a client's body becomes on its way to a prefill and to a decode server. Pure functions."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["decode_alone", "decode_body", "parse", "prefill_body", "strip"]

# Far from every JSON library's own limit, which depends on the stack: what was read here must be written, and read
# by the servers.
_MAX_DEPTH = 200

_ASK_TO_HOLD = {"do_remote_decode": True, "do_remote_prefill": False}


def parse(data: bytes) -> Any:
    """Raises msgspec.DecodeError for what is not JSON, and for JSON that is nested too deeply."""
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    # The brackets bound the depth from above: nearly every body is spared the walk.
    if data.count(b"[") + data.count(b"{") > _MAX_DEPTH and _deeper_than(value, _MAX_DEPTH):
        raise msgspec.DecodeError("it is nested too deeply")
    return value


def _deeper_than(value: Any, limit: int) -> bool:
    level: list[Any] = [[value]]
    for _ in range(limit + 1):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def strip(body: dict[str, Any]) -> bool:
    """Removes what only this router may say: clients must not name other servers' memory. True if there was any.

    vLLM hands the entries of vllm_xargs to its connector under the same names.
    """
    found = [
        holder.pop("kv_transfer_params", None) for holder in (body, body.get("vllm_xargs")) if isinstance(holder, dict)
    ]
    return any(params is not None for params in found)


def _several_prompts(prompt: object) -> bool:
    """A string or a list of token ids is one prompt; a list of those is as many as it has."""
    return isinstance(prompt, list) and len(prompt) != 1 and not all(isinstance(item, int) for item in prompt)


def decode_alone(body: dict[str, Any]) -> str:
    """Why this request cannot be split between two servers; empty if it can.

    One hold serves one sequence, so what makes several of one request goes to a decode server alone; so does what
    needs the prompt computed where the answer is made.
    """
    if "messages" not in body and not isinstance(body.get("prompt"), (str, list)):
        return "body"
    if "messages" not in body and _several_prompts(body["prompt"]):
        return "several_prompts"
    for field in ("n", "best_of"):
        count = body.get(field)
        if count is not None and count != 1:
            return "several_answers"
    if body.get("use_beam_search"):
        return "beam_search"
    if body.get("prompt_logprobs") is not None or body.get("echo"):
        return "prompt_logprobs"
    if body.get("prompt_embeds") is not None:
        return "prompt_embeds"
    return ""


def prefill_body(body: dict[str, Any]) -> dict[str, Any]:
    """The same request for one token, whose blocks are then held."""
    prefill = {key: value for key, value in body.items() if key not in ("min_tokens", "stream_options")}
    prefill["stream"] = False
    prefill["max_tokens"] = 1
    if "max_completion_tokens" in prefill:
        prefill["max_completion_tokens"] = 1
    prefill["kv_transfer_params"] = dict(_ASK_TO_HOLD)
    return prefill


def decode_body(body: dict[str, Any], params: dict[str, Any] | None) -> dict[str, Any]:
    """The request as the client made it, with the way to the blocks if there is one."""
    return body if params is None else {**body, "kv_transfer_params": params}
