"""The hand-over with a fake engine: what arrives, what is freed when, and every way in which it fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from fakes.kv import Fabric, FakeEngine, FakeTransfer
from fakes.kv_node import BLOCKS, IDENTITY, PROMPT, SIZE, TABLE, Node, until
from moontide.errors import Expired, PeerLost, TimedOut
from moontide.kv.keys import Span
from moontide.kv.layout import Rank
from moontide.kv.logs import LimitedLog
from moontide.kv.messages import WorkerReport
from moontide.kv.scheduling import RequestView, ScheduledRequest
from moontide.kv.working import Finished


@pytest.fixture
def fabric() -> Fabric:
    return Fabric()


@pytest.fixture
def pair(fabric: Fabric) -> tuple[Node, Node]:
    return Node(fabric, "p:1"), Node(fabric, "d:1")


def hand_over(prefill: Node, prompt: list[int] = PROMPT) -> dict[str, Any]:
    """Params for the decode side; the hold exists."""
    prefill.prefill("p", prompt, TABLE, params={"do_remote_decode": True})
    delay, params = prefill.finish("p", prompt, TABLE)
    assert delay and prefill.step().sent == set()
    assert isinstance(params, dict)
    return params


def start_load(decode: Node, params: Any, table: list[int], *, local: int = 0, prompt: list[int] = PROMPT) -> int:
    decode.scheduler.arrived(RequestView("d", prompt, params=params))
    count = decode.scheduler.match("d", local)
    assert count == decode.scheduler.match("d", local), "asking twice changes nothing"
    decode.scheduler.allocated("d", table, count)
    return count


def test_all_blocks_arrive_in_order_and_the_prefill_side_is_freed_once(pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    params = hand_over(prefill)
    table = [1, 2, 30, 5]
    assert start_load(decode, params, table) == len(PROMPT)
    before = decode.cache.copy()
    finished = decode.load("d")
    assert finished.received == {"d"} and not finished.failed and not finished.failed_blocks
    assert decode.content(table, len(PROMPT)) == prefill.content(TABLE, len(PROMPT))
    others = [block for block in range(BLOCKS) if block not in table]
    assert np.array_equal(decode.cache[:, others], before[:, others])
    assert prefill.worker.held == 1
    assert prefill.step().sent == {"p"} and prefill.step().sent == set()
    assert prefill.worker.held == 0
    assert prefill.counts()["holds|released"] == 1 and decode.counts()["loads|peer|ok"] == 1


def test_a_local_prefix_is_kept_and_the_rest_goes_to_its_positions(pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    params = hand_over(prefill)
    table = [7, 8, 6, 2]
    decode.compute(PROMPT, table, 0, 2 * SIZE)
    before = decode.cache[:, table[:2]].copy()
    assert start_load(decode, params, table, local=2 * SIZE) == len(PROMPT) - 2 * SIZE
    assert decode.load("d").failed == {}
    assert np.array_equal(decode.cache[:, table[:2]], before)
    assert decode.content(table, len(PROMPT)) == prefill.content(TABLE, len(PROMPT))


def test_a_prompt_that_goes_on_takes_what_is_there(pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    params = hand_over(prefill)
    table = [1, 2, 3, 4]
    assert start_load(decode, params, table, prompt=[*PROMPT, 7]) == len(PROMPT)
    assert decode.load("d").failed == {}


def test_all_local_releases_the_hold_without_reading(pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    params = hand_over(prefill, PROMPT[:12])
    assert start_load(decode, params, [1, 2, 3], local=12, prompt=PROMPT[:12]) == 0
    decode.step()
    until(lambda: prefill.step().sent == {"p"})


def test_a_request_that_never_runs_releases_the_hold(pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    decode.scheduler.arrived(RequestView("d", PROMPT, params=hand_over(prefill)))
    assert decode.finish("d", PROMPT, [], complete=False) == (False, None)
    assert decode.scheduler.has_jobs
    decode.step()
    until(lambda: prefill.step().sent == {"p"})


def test_a_request_that_waits_keeps_its_hold_alive(fabric: Fabric, pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    params = hand_over(prefill)
    claims: list[int] = []
    fabric.faults["claim"] = lambda: claims.append(1)
    decode.scheduler.arrived(RequestView("d", PROMPT, params=params))
    decode.step()
    until(lambda: len(claims) == 1)
    decode.step()
    decode.scheduler.allocated("d", [1, 2, 3, 4], decode.scheduler.match("d", 0))
    assert not decode.load("d").failed and len(claims) == 2
    # One that is scheduled at once claims once.
    start_load(decode, hand_over(prefill), [5, 6, 7, 8])
    assert not decode.load("d").failed and len(claims) == 3


def test_a_waiting_request_that_is_aborted_gives_its_hold_back(pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    decode.scheduler.arrived(RequestView("d", PROMPT, params=hand_over(prefill)))
    decode.step()
    assert decode.finish("d", PROMPT, [], complete=False) == (False, None)
    decode.step()
    until(lambda: prefill.step().sent == {"p"})


def test_params_of_another_prompt_are_refused(pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    params = hand_over(prefill)
    before = decode.cache.copy()
    start_load(decode, params, [1, 2, 3, 4], prompt=[1, *PROMPT[1:]])
    finished = decode.load("d")
    assert finished.failed == {"d": "INCOMPATIBLE"} and finished.failed_blocks == {1, 2, 3, 4}
    assert np.array_equal(decode.cache, before), "not one byte was read"


def test_an_adapter_on_one_side_only_is_another_content(pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    params = hand_over(prefill)
    decode.scheduler.arrived(RequestView("d", PROMPT, [Span("lora", ("a", "b"))], params=params))
    decode.scheduler.allocated("d", [1, 2, 3, 4], decode.scheduler.match("d", 0))
    assert decode.load("d").failed == {"d": "INCOMPATIBLE"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rank": Rank(pp_size=2)}, "pp size: 1 here, 2 there"),
        ({"physical": "other"}, "physical layout: test here, other there"),
        ({"model": msgspec.structs.replace(IDENTITY, weights="w2")}, "model weights: w here, w2 there"),
    ],
)
def test_another_layout_is_refused_with_both_values(
    fabric: Fabric, change: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    prefill, decode = Node(fabric, "p:1", layout=change), Node(fabric, "d:1")
    # The digests differ too, as the spaces do; the layouts come first.
    start_load(decode, hand_over(prefill), [1, 2, 3, 4])
    finished = decode.load("d")
    assert finished.failed == {"d": "INCOMPATIBLE"}
    assert words in caplog.text
    until(lambda: prefill.step().sent == {"p"})


def test_another_tensor_parallel_size_is_refused(pair: tuple[Node, Node], caplog: pytest.LogCaptureFixture) -> None:
    prefill, decode = pair
    params = hand_over(prefill)
    params["addresses"] = [*params["addresses"], "q:1"]
    start_load(decode, params, [1, 2, 3, 4])
    assert decode.load("d").failed == {"d": "INCOMPATIBLE"}
    assert "tp size: 1 here, 2 there" in caplog.text


def raiser(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("open", TimedOut("slow")),
        ("claim", PeerLost("died")),
        ("claim", Expired("over")),
        ("read", PeerLost("died")),
        ("read", TimedOut("stuck")),
        ("release", Expired("over")),
        ("release", TimedOut("silent")),
        ("release", PeerLost("died")),
    ],
)
def test_any_failing_step_fails_the_load_once(
    fabric: Fabric, pair: tuple[Node, Node], step: str, error: Exception
) -> None:
    prefill, decode = pair
    params = hand_over(prefill)
    fabric.faults[step] = raiser(error)
    start_load(decode, params, [1, 2, 3, 4])
    finished = decode.load("d")
    assert finished.failed == {"d": error.code}  # type: ignore[attr-defined]
    assert finished.failed_blocks == {1, 2, 3, 4}
    # The same hit is not offered again.
    assert decode.scheduler.match("d", 0) == 0


def test_a_dead_prefill_side_and_an_unknown_hold(pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    params = hand_over(prefill)
    start_load(decode, {**params, "hold": "0" * 32}, [1, 2, 3, 4])
    assert decode.load("d").failed == {"d": "NOT_FOUND"}
    prefill.engine.close()
    start_load(decode, params, [1, 2, 3, 4])
    assert decode.load("d").failed == {"d": "UNAVAILABLE"}


def test_a_restarted_prefill_side_is_met_anew(fabric: Fabric, pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    start_load(decode, hand_over(prefill), [1, 2, 3, 4])
    assert not decode.load("d").failed
    prefill.engine.close()
    again = Node(fabric, "p:1")
    start_load(decode, hand_over(again), [5, 6, 7, 8])
    assert not decode.load("d").failed
    assert decode.content([5, 6, 7, 8], len(PROMPT)) == again.content(TABLE, len(PROMPT))


def test_a_silent_peer_keeps_the_threads_only_once(fabric: Fabric, pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    params = hand_over(prefill)
    now = [0.0]
    decode.worker._peers._links._clock = lambda: now[0]
    asked: list[int] = []

    def silent() -> None:
        asked.append(1)
        raise TimedOut("no answer")

    fabric.faults["open"] = silent
    for cause in ("TIMED_OUT", "UNAVAILABLE", "UNAVAILABLE"):
        start_load(decode, params, [1, 2, 3, 4])
        assert decode.load("d").failed == {"d": cause}
    assert len(asked) == 1
    now[0] = 10.0
    del fabric.faults["open"]
    start_load(decode, params, [1, 2, 3, 4])
    assert not decode.load("d").failed


def test_links_are_bounded_whatever_addresses_clients_send(fabric: Fabric, pair: tuple[Node, Node]) -> None:
    links = pair[1].worker._peers._links
    for number in range(300):
        FakeEngine(fabric, f"many:{number}")
        links.get(f"many:{number}")
    assert len(links._peers) == 256
    fabric.faults["open"] = raiser(TimedOut("no"))
    for number in range(300):
        with pytest.raises(TimedOut):
            links.get(f"silent:{number}")
    assert len(links._silent) == 256


def test_repeated_warnings_are_counted_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = LimitedLog(logging.getLogger("moontide.kv"), clock=lambda: now[0])
    for number in range(5):
        log.warning("a", "lost %d", number)
    log.warning("b", "other")
    now[0] = 2.0
    log.warning("a", "lost %d", 9)
    assert caplog.messages == ["lost 0", "other", "lost 9 (and 4 more of the kind before)"]


def test_a_claim_waits_for_a_hold_that_is_about_to_be_made(pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    prefill.prefill("p", PROMPT, TABLE, params={"do_remote_decode": True})
    _, params = prefill.finish("p", PROMPT, TABLE)
    decode.settings = msgspec.structs.replace(decode.settings, claim_timeout=5.0)
    decode.worker._peers._settings = decode.settings
    start_load(decode, params, [1, 2, 3, 4])
    asked = []
    prefill.engine.fabric.faults["claim"] = lambda: asked.append(1)
    decode.step()
    until(lambda: len(asked) > 1)
    prefill.step()
    assert not decode.load("d").failed


def test_a_load_is_not_reported_before_its_blocks_are_quiet(pair: tuple[Node, Node]) -> None:
    prefill, decode = pair
    params = hand_over(prefill)
    transfers: list[FakeTransfer] = []

    def gate(transfer: FakeTransfer) -> None:
        transfer.results = [PeerLost("half way")]
        transfer.settle.clear()
        transfers.append(transfer)

    decode.engine.read_gate = gate
    start_load(decode, params, [1, 2, 3, 4])
    decode.step()
    until(lambda: transfers and transfers[0].canceled)
    assert decode.step().received == set()
    transfers[0].settle.set()
    assert decode.load("d").failed == {"d": "PEER_LOST"}


@pytest.mark.parametrize("reason", ["expired", "peer_lost"])
def test_a_hold_that_ends_by_itself_frees_the_blocks_once(pair: tuple[Node, Node], reason: str) -> None:
    prefill, _ = pair
    params = hand_over(prefill)
    prefill.engine.finish_hold(bytes.fromhex(params["hold"]), reason)
    assert prefill.step().sent == {"p"} and prefill.step().sent == set()
    assert prefill.counts()[f"holds|{reason}"] == 1


def test_a_hold_that_cannot_be_made_frees_the_blocks_at_once(fabric: Fabric, pair: tuple[Node, Node]) -> None:
    prefill, _ = pair
    fabric.faults["hold"] = raiser(TimedOut("no"))
    prefill.prefill("p", PROMPT, TABLE, params={"do_remote_decode": True})
    assert prefill.finish("p", PROMPT, TABLE)[0]
    assert prefill.step().sent == {"p"}


@pytest.mark.parametrize(
    ("complete", "computed", "table"), [(False, 14, TABLE), (True, 13, TABLE), (True, 14, TABLE[:3]), (True, 14, [])]
)
def test_an_incomplete_prefill_is_not_handed_over(
    pair: tuple[Node, Node], complete: bool, computed: int, table: list[int]
) -> None:
    prefill, _ = pair
    prefill.prefill("p", PROMPT, TABLE, params={"do_remote_decode": True})
    assert prefill.scheduler.finished("p", complete=complete, table=table, computed=computed) == (False, None)


def test_holds_take_a_bounded_share_of_the_cache(fabric: Fabric) -> None:
    node = Node(fabric, "p:1", settings={"max_held_share": 0.5})

    def hold(name: str) -> Any:
        node.prefill(name, PROMPT, TABLE, params={"do_remote_decode": True})
        answer = node.finish(name, PROMPT, TABLE)
        node.step()
        return answer[1]

    held = [hold(str(number)) for number in range(BLOCKS // 2 // len(TABLE))]
    assert all(held) and hold("more") is None
    assert node.counts()["bypassed|holds_full"] == 1
    node.engine.finish_hold(bytes.fromhex(held[0]["hold"]), "released")
    node.step()
    assert hold("again") and hold("once more") is None


def test_reports_of_several_workers_are_all_heard() -> None:
    first = WorkerReport({"a": "EXPIRED"}, [(b"x", 0)], [b"m"])
    merged = first.merged_with(WorkerReport({"b": "PEER_LOST"}, [(b"x", 1)]))
    assert merged == WorkerReport({"a": "EXPIRED", "b": "PEER_LOST"}, [(b"x", 0), (b"x", 1)], [b"m"])
    assert merged and not WorkerReport()


def test_requests_nobody_announced_change_nothing(pair: tuple[Node, Node]) -> None:
    node, _ = pair
    assert node.scheduler.match("x", 0) == 0
    node.scheduler.allocated("x", [1], 4)
    assert node.scheduler.finished("x", complete=True, table=[1], computed=4) == (False, None)
    assert node.step(ScheduledRequest("x", 0, 4, lambda: [1])) == Finished()
