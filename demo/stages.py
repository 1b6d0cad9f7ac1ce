"""The three stages with Moontide in them. Each prints a row per prompt and says which promises held."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from demo.client import Answer, Sample, complete, complete_at_once, total
from demo.cluster import Cluster
from demo.compare import References, difference
from demo.moved import PROMPT_TOKENS, Moved, moved_between
from demo.processes import wait_until
from demo.prompts import BLOCK_TOKENS, Prompt
from demo.report import Report

# From the moment of the crash until each client has its answer or its error.
CRASH_SECONDS = 20
SETTLE_SECONDS = 20


def _print_batch(
    report: Report, batch: Sequence[Prompt], answers: Sequence[Answer], moved: Moved, references: References
) -> None:
    """A row per prompt. What several prompts at once moved can not be told apart: it stands in a row of its own."""
    single = len(batch) == 1
    for prompt, answer in zip(batch, answers, strict=True):
        wrong = difference(answer, references.answers[prompt.name])
        numbers = (moved.blocks, moved.bytes) if single else ("", "")
        text = "DIFFERS" if wrong else "same"
        cells = (*numbers, f"{answer.seconds * 1000:.0f}", moved.way if single else "", text)
        report.row(prompt.name, answer.prompt_tokens, len(answer.tokens), *cells)
        if wrong:
            report.fail(f"{prompt.name!r}: {wrong}")
    if not single:
        report.row("  together", "", "", moved.blocks, moved.bytes, "", moved.way, "")


def _serve(
    cluster: Cluster,
    report: Report,
    batches: Sequence[Sequence[Prompt]],
    references: References,
    look: Callable[[], list[Sample]],
) -> list[Moved]:
    """Sends the batches through the router; `look` gives the metrics of the server whose loads are shown."""
    report.header()
    all_moved = []
    for batch in batches:
        before = look()
        answers = complete_at_once(cluster.router_port, batch)
        moved = moved_between(before, look())
        _print_batch(report, batch, answers, moved, references)
        all_moved.append(moved)
    return all_moved


def _full_blocks(batch: Sequence[Prompt], references: References) -> int:
    return sum(references.answers[prompt.name].prompt_tokens // BLOCK_TOKENS for prompt in batch)


def hand_over(cluster: Cluster, report: Report, batches: Sequence[Sequence[Prompt]], references: References) -> None:
    report.note("loads into the decode server:")
    moved = _serve(cluster, report, batches, references, cluster.decode_metrics)
    still = [
        batch[0].name
        for batch, one in zip(batches, moved, strict=True)
        if _full_blocks(batch, references) and not one.blocks
    ]
    report.require(not still, "every prompt longer than a block was handed over", f"nothing moved for {still}")


def reuse(cluster: Cluster, report: Report, batches: Sequence[Sequence[Prompt]], references: References) -> None:
    cluster.wait_pool_settled(SETTLE_SECONDS)
    cluster.restart_prefill()
    report.note("loads into the prefill server, which has just started with an empty cache:")
    moved = _serve(cluster, report, batches, references, cluster.prefill_metrics)
    hits = sum(one.external_tokens for one in moved)
    tokens = sum(references.answers[prompt.name].prompt_tokens for batch in batches for prompt in batch)
    report.note(f"vLLM's own metrics: {hits} of {tokens} prompt tokens were external prefix hits")
    still = [
        batch[0].name
        for batch, one in zip(batches, moved, strict=True)
        if _full_blocks(batch, references) and not (one.external_tokens and one.blocks)
    ]
    # vLLM counts a hit when it is promised. Only blocks that arrived show that it was kept and not computed again.
    report.require(not still, "every prompt longer than a block came from the pool", f"nothing loaded for {still}")


def crash(
    cluster: Cluster,
    report: Report,
    crowd: Sequence[Prompt],
    alone: Sequence[Sequence[Prompt]],
    references: References,
) -> None:
    before = total(cluster.prefill_metrics(), PROMPT_TOKENS)
    with ThreadPoolExecutor(max_workers=len(crowd)) as pool:
        futures = [pool.submit(complete, cluster.router_port, prompt, CRASH_SECONDS + 10) for prompt in crowd]
        # A counter, since the gauge of running requests may fall between two looks, or be an old one.
        busy = wait_until(
            lambda: total(cluster.prefill_metrics(), PROMPT_TOKENS) > before,
            30,
            "the prefill server has computed no prompt",
            interval=0,
        )
        unanswered = sum(not future.done() for future in futures)
        cluster.prefill.kill()
        killed = time.monotonic()
        report.note(f"killed {busy * 1000:.0f} ms after the first request was sent, {unanswered} unanswered")
        answers, slowest = _await_answers(futures, killed)
    right = 0
    for prompt, answer in zip(crowd, answers, strict=True):
        wrong = difference(answer, references.answers[prompt.name])
        right += not wrong
        if wrong and not answer.error.startswith("HTTP 5"):
            report.fail(f"{prompt.name!r} got neither the right text nor a clear error: {wrong}")
        elif wrong:
            report.note(f"{prompt.name!r} got a clear error: {answer.error[:160]}")
    for route, count in sorted(Counter(answer.route for answer in answers).items()):
        report.note(f"{count} went by {route or 'no route'}")
    report.require(unanswered > 0, "requests were under way when the server was killed", "all were answered before")
    report.require(
        slowest < CRASH_SECONDS,
        f"{right} of {len(crowd)} got the right text, the rest a clear error, within {CRASH_SECONDS} s",
        f"the last one took {slowest:.1f} s",
    )
    report.note(f"the last answer came {slowest:.1f} s after the kill")
    report.note("new requests, with the decode server alone:")
    _serve(cluster, report, alone, references, cluster.decode_metrics)


def _await_answers(futures: Sequence[Future[Answer]], since: float) -> tuple[list[Answer], float]:
    """All answers, and how long after `since` the last one came."""
    last = [since]
    lock = threading.Lock()

    def came(_: Future[Answer]) -> None:
        with lock:
            last.append(time.monotonic())

    for future in futures:
        future.add_done_callback(came)
    answers = [future.result() for future in futures]
    with lock:
        return answers, max(last) - since
