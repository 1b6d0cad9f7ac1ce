"""kv_transfer_params come from clients: whatever they hold, the answer is a value, never an exception."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moontide.config import Config
from moontide.errors import Invalid
from moontide.kv.params import HoldRequest, Ignored, PullRequest, new_hold_id, parse, parse_address
from moontide.kv.settings import KvSettings

GOOD: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "moontide": 1,
    "hold": "0123456789abcdef" * 2,
    "addresses": ["127.0.0.1:4711"],
    "num_tokens": 100,
    "num_blocks": 4,
    "block_size": 32,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=12), inner, max_size=5),
    max_leaves=10,
)


def test_what_the_prefill_side_answers_is_understood() -> None:
    pull = parse(GOOD)
    assert isinstance(pull, PullRequest)
    assert pull.as_params() == GOOD
    assert parse(json.loads(json.dumps(pull.as_params()))) == pull
    assert pull.hold_id == bytes.fromhex(GOOD["hold"])


def test_fields_of_other_connectors_do_not_disturb_a_hold() -> None:
    # What proxies written for other connectors send.
    params = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_host": None}
    assert parse(params) == HoldRequest()


@pytest.mark.parametrize("params", [None, {}, {"x": 1}, {"do_remote_decode": False}, {"do_remote_prefill": None}])
def test_nothing_is_asked_for(params: object) -> None:
    assert parse(params) is None


BAD: list[tuple[object, str]] = [
    ("text", "malformed"),
    ([], "malformed"),
    (7, "malformed"),
    ({1: 2}, "malformed"),
    ({str(i): i for i in range(65)}, "malformed"),
    ({"do_remote_prefill": True}, "foreign"),
    ({"do_remote_prefill": 1}, "malformed"),
    ({"do_remote_decode": "true"}, "malformed"),
    ({**GOOD, "do_remote_decode": True}, "malformed"),
    ({**GOOD, "moontide": 2}, "version"),
    ({**GOOD, "moontide": 0}, "version"),
    ({**GOOD, "moontide": True}, "malformed"),
    ({**GOOD, "moontide": "1"}, "malformed"),
    ({**GOOD, "hold": "xyz"}, "malformed"),
    ({**GOOD, "hold": GOOD["hold"] + "0"}, "malformed"),
    ({**GOOD, "hold": GOOD["hold"] + "\n"}, "malformed"),
    ({**GOOD, "hold": None}, "malformed"),
    ({**GOOD, "addresses": []}, "malformed"),
    ({**GOOD, "addresses": "127.0.0.1:1"}, "malformed"),
    ({**GOOD, "addresses": ["127.0.0.1"]}, "malformed"),
    ({**GOOD, "addresses": ["127.0.0.1:0"]}, "malformed"),
    ({**GOOD, "addresses": ["127.0.0.1:70000"]}, "malformed"),
    ({**GOOD, "addresses": ["http://127.0.0.1:1"]}, "malformed"),
    ({**GOOD, "addresses": ["a b:1"]}, "malformed"),
    ({**GOOD, "addresses": ["127.0.0.1:1"] * 1025}, "malformed"),
    ({**GOOD, "addresses": [None]}, "malformed"),
    ({**GOOD, "num_tokens": 0}, "malformed"),
    ({**GOOD, "num_tokens": -1}, "malformed"),
    ({**GOOD, "num_tokens": 1 << 70}, "malformed"),
    ({**GOOD, "num_tokens": 1.5}, "malformed"),
    ({**GOOD, "num_tokens": float("nan")}, "malformed"),
    ({**GOOD, "num_blocks": 5}, "malformed"),
    ({**GOOD, "block_size": 0}, "malformed"),
    *[({name: value for name, value in GOOD.items() if name != gone}, "malformed") for gone in list(GOOD)[3:]],
]


@pytest.mark.parametrize(("params", "reason"), BAD)
def test_bad_params_are_ignored_with_a_reason(params: object, reason: str) -> None:
    answer = parse(params)
    assert isinstance(answer, Ignored)
    assert answer.reason == reason


class Hostile(dict[str, object]):
    def get(self, *arguments: object) -> object:  # type: ignore[override]
        raise RuntimeError("boo")


def test_a_hostile_object_cannot_raise() -> None:
    assert parse(Hostile(a=1)) == Ignored("malformed", "RuntimeError")


@given(JSON, st.sampled_from(list(GOOD)))
def test_any_value_in_any_field(value: object, name: str) -> None:
    answer = parse({**GOOD, name: value})
    assert answer is None or isinstance(answer, (PullRequest, HoldRequest, Ignored))
    assert parse(value) is None or isinstance(parse(value), (HoldRequest, Ignored))
    assert isinstance(parse({"do_remote_prefill": True, "do_remote_decode": value}), Ignored)


@given(st.text(max_size=40))
def test_addresses(text: str) -> None:
    parsed = parse_address(text)
    if parsed is not None:
        assert text == f"{parsed[0]}:{text.rpartition(':')[2]}" and 1 <= parsed[1] <= 65535


@pytest.mark.parametrize("text", ["localhost:80", "[::1]:80", "10.0.0.1:65535", "node-1.cluster.local:1"])
def test_good_addresses(text: str) -> None:
    assert parse_address(text) is not None


@pytest.mark.parametrize(
    "text", ["", ":1", "a:", "a:-1", "a:1:2", "::1:80", "a:١", "-a:1", "a" * 300 + ":1", None, 1, "a:1\n"]
)
def test_bad_addresses(text: object) -> None:
    assert parse_address(text) is None


def test_hold_ids_are_random() -> None:
    assert len({new_hold_id() for _ in range(100)}) == 100


def test_settings_come_from_the_extra_config_over_the_configuration() -> None:
    config = Config(master="127.0.0.1:1", hold_ttl=9)
    assert KvSettings.resolve({}, config).master == "127.0.0.1:1"
    found = KvSettings.resolve({"master": "127.0.0.1:2", "cache_bytes": "1MiB", "lookup_timeout": "20ms"}, config)
    assert (found.master, found.cache_bytes, found.lookup_timeout, found.hold_ttl) == ("127.0.0.1:2", 1 << 20, 0.02, 9)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"mastre": "a:1"}, ["mastre", "did you mean 'master'"]),
        ({"master": "nonsense"}, ["master", "nonsense"]),
        ({"load_threads": 0}, ["load_threads", ">= 1"]),
        ({"load_threads": "many"}, ["load_threads"]),
        ({"hold_ttl": "soon"}, ["hold_ttl", "soon"]),
        ({"cache_bytes": "1 parsec"}, ["cache_bytes", "1 parsec"]),
        ({"pool": "perhaps"}, ["pool"]),
    ],
)
def test_bad_settings_name_the_option(extra: dict[str, object], words: list[str]) -> None:
    with pytest.raises(Invalid) as caught:
        KvSettings.resolve(extra, Config())
    assert [word for word in words if word not in str(caught.value)] == []
