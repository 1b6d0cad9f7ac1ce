"""What a client's body becomes on its way to a prefill and to a decode server. Pure functions."""

from __future__ import annotations

from typing import Any

__all__ = ["decode_alone", "decode_body", "prefill_body", "strip"]

_ASK_TO_HOLD = {"do_remote_decode": True, "do_remote_prefill": False}


def strip(body: dict[str, Any]) -> bool:
    """Removes what only this router may say: clients must not name other servers' memory. True if there was any."""
    had = body.get("kv_transfer_params") is not None
    body.pop("kv_transfer_params", None)
    return had


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
