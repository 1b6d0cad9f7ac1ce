"""What one ordinary vLLM server answers: the measure for everything that Moontide's servers answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from demo.client import TOKENS_OUT, Answer, complete, complete_at_once
from demo.processes import DemoError
from demo.prompts import Prompt

_ATTEMPTS = 8
# An answer that repeats a few tokens for ever would hide a wrong cache.
_DISTINCT_TOKENS = 8


@dataclass
class References:
    """The prompts that were kept, in batches, and the one right answer to each."""

    batches: list[list[Prompt]] = field(default_factory=list)
    answers: dict[str, Answer] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)


def _ask(port: int, prompts: Sequence[Prompt]) -> list[Answer]:
    """Each alone, then all at once; an answer with an error where it can not serve as a measure."""
    alone = [complete(port, prompt) for prompt in prompts]
    at_once = complete_at_once(port, prompts)
    for prompt, answer in [*zip(prompts, alone, strict=True), *zip(prompts, at_once, strict=True)]:
        if answer.error:
            raise DemoError(f"the ordinary server failed on {prompt.name!r}: {answer.error}")
        if not prompt.low < answer.prompt_tokens < prompt.high or len(answer.tokens) != TOKENS_OUT:
            raise DemoError(
                f"{prompt.name!r} has {answer.prompt_tokens} tokens and {len(answer.tokens)} in the answer; "
                f"wanted are {prompt.low} to {prompt.high} and {TOKENS_OUT}"
            )
    return [_judge(one, two) for one, two in zip(alone, at_once, strict=True)]


def _judge(alone: Answer, at_once: Answer) -> Answer:
    if not alone.same_as(at_once):
        return Answer(error="the ordinary server disagrees with itself on it")
    if len(set(alone.tokens)) < _DISTINCT_TOKENS:
        return Answer(error="its answer has too few different tokens to show a wrong cache")
    return alone


def collect(port: int, batches: Sequence[Sequence[Prompt]], note: Callable[[str], None]) -> References:
    """Asks the ordinary server alone and in the same concurrency.

    A prompt on which it disagrees with itself (a tie between two tokens that rounding decides), or whose answer says
    too little, is replaced by another of its kind, and reported.
    """
    references = References()
    for wanted in batches:
        batch = list(wanted)
        for _ in range(_ATTEMPTS):
            answers = _ask(port, batch)
            unsure = [i for i, answer in enumerate(answers) if answer.error]
            if not unsure:
                break
            for i in unsure:
                note(f"replaced {batch[i].name!r}: {answers[i].error}")
                references.replaced.append(batch[i].name)
                batch[i] = batch[i].other()
        else:
            raise DemoError(f"no prompts for {[p.name for p in batch]} serve as a measure")
        references.batches.append(batch)
        references.answers.update({prompt.name: answer for prompt, answer in zip(batch, answers, strict=True)})
    return references


def difference(answer: Answer, reference: Answer) -> str:
    """One sentence about where an answer leaves its reference; empty when it does not."""
    if answer.error:
        return f"no answer: {answer.error}"
    if answer.same_as(reference):
        return ""
    for position, (one, two) in enumerate(zip(answer.tokens, reference.tokens, strict=False)):
        if one != two:
            return f"token {position} is {one}, the ordinary server's is {two}"
    return (
        f"{len(answer.tokens)} tokens {answer.text!r}, the ordinary server's {len(reference.tokens)} {reference.text!r}"
    )
