"""Keys: the encoding is injective, the chain depends on all that decides a block's content and on nothing else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moontide.errors import Internal, Invalid
from moontide.kv import keys
from moontide.kv.keys import Chain, KeySpace, Span, encode, self_check

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)
SPACE = KeySpace(("weights", "settings"), block_tokens=4)


def kinds(value: object) -> object:
    """The value with its types, since 1 == True and "" == b"" must not hide a collision."""
    if isinstance(value, tuple):
        return ("tuple", tuple(kinds(item) for item in value))
    return (type(value).__name__, value)


@given(VALUES, VALUES)
def test_two_values_never_share_an_encoding(left: object, right: object) -> None:
    assert (encode(left) == encode(right)) == (kinds(left) == kinds(right))


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), min_size=2, max_size=2, unique=True))
def test_neighbouring_strings_do_not_run_together(pairs: list[tuple[str, str]]) -> None:
    assert encode(pairs[0]) != encode(pairs[1])


@pytest.mark.parametrize("value", [1.5, {"a": 1}, object(), {1}])
def test_what_cannot_be_expressed_is_refused(value: object) -> None:
    with pytest.raises(Invalid):
        encode((value,))


@given(st.lists(st.integers(0, 1 << 40), min_size=4, max_size=40), st.data())
def test_a_changed_token_changes_its_block_and_all_after_it(tokens: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(tokens) - 1))
    other = list(tokens)
    other[at] += 1
    blocks = Chain(SPACE, tokens).blocks(len(tokens) // 4)
    changed = Chain(SPACE, other).blocks(len(tokens) // 4)
    for index, (left, right) in enumerate(zip(blocks, changed, strict=True)):
        assert (left == right) == (index < at // 4)
    assert Chain(SPACE, tokens).digest(len(tokens)) != Chain(SPACE, other).digest(len(tokens))


@given(st.lists(st.integers(0, 1000), min_size=9, max_size=30), st.integers(0, 9))
def test_the_digest_depends_on_the_length_and_is_no_block_hash(tokens: list[int], count: int) -> None:
    chain = Chain(SPACE, tokens)
    digests = [chain.digest(length) for length in range(len(tokens) + 1)]
    assert len(set(digests)) == len(digests)
    assert chain.digest(count) == Chain(SPACE, tokens[:count]).digest(count)
    assert not set(digests) & set(chain.blocks(chain.full_blocks))


def test_blocks_come_out_the_same_in_any_order_of_asking() -> None:
    forward = Chain(SPACE, range(40))
    assert [forward.blocks(n) for n in range(11)][-1] == Chain(SPACE, range(40)).blocks(10)


@pytest.mark.parametrize(
    "spans",
    [
        [Span("lora", ("name", "path"))],
        [Span("lora", ("name", "path2"))],
        [Span("salt", "name")],
        [Span("image", "hash", 5, 7)],
        [Span("image", "hash", 6, 8)],
        [Span("image", "hash", 6, 9)],
        [Span("image", "hash2", 6, 9)],
        [Span("image", "hash", 5, 7), Span("image", "hash2", 6, 9)],
    ],
)
def test_extra_keys_matter(spans: list[Span]) -> None:
    variants: list[list[Span]] = [
        [],
        [Span("lora", ("name", "path"))],
        [Span("lora", ("name", "path2"))],
        [Span("salt", "name")],
        [Span("image", "hash", 5, 7)],
        [Span("image", "hash", 6, 8)],
        [Span("image", "hash", 6, 9)],
        [Span("image", "hash2", 6, 9)],
        [Span("image", "hash", 5, 7), Span("image", "hash2", 6, 9)],
    ]
    mine = Chain(SPACE, range(12), spans)
    for other in variants:
        equal = other == spans
        assert (Chain(SPACE, range(12), other).blocks(3) == mine.blocks(3)) == equal
        assert (Chain(SPACE, range(12), other).digest(11) == mine.digest(11)) == equal


def test_a_span_leaves_the_blocks_before_it_alone() -> None:
    plain, image = Chain(SPACE, range(12)), Chain(SPACE, range(12), [Span("image", "hash", 8, 9)])
    assert plain.blocks(2) == image.blocks(2)
    assert plain.blocks(3) != image.blocks(3)


@pytest.mark.parametrize(
    "other",
    [
        KeySpace(("weights2", "settings"), block_tokens=4),
        KeySpace(("weights", "settings", ""), block_tokens=4),
        KeySpace(("weights", "settings"), block_tokens=8),
        KeySpace(("weights", "settings"), block_tokens=4, tp_size=2),
    ],
)
def test_another_space_shares_no_key(other: KeySpace) -> None:
    keys = {space.key(Chain(space, range(8)).blocks(1)[0], 0) for space in (SPACE, other)}
    assert len(keys) == 2


def test_ranks_have_keys_of_their_own() -> None:
    space = KeySpace("m", block_tokens=4, tp_size=2)
    block = Chain(space, range(4)).blocks(1)[0]
    assert space.key(block, 0) != space.key(block, 1)
    with pytest.raises(Invalid, match="allowed are 0 to 1"):
        space.key(block, 2)


def test_keys_fit_the_pool() -> None:
    assert len(SPACE.key(Chain(SPACE, range(4)).blocks(1)[0], 0)) < 128


def test_bad_arguments_are_named() -> None:
    with pytest.raises(Invalid, match="token ids"):
        Chain(SPACE, [-1, 0, 0, 0]).blocks(1)
    with pytest.raises(Invalid, match="3 blocks asked for"):
        Chain(SPACE, range(8)).blocks(3)
    with pytest.raises(Invalid, match="9 tokens asked for"):
        Chain(SPACE, range(8)).digest(9)
    with pytest.raises(Invalid):
        KeySpace(1.5, block_tokens=4)


def test_the_published_vectors_hold() -> None:
    self_check()


def test_the_self_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(keys.VECTORS, "digest", "00")
    with pytest.raises(Internal, match="'digest'"):
        self_check()


def test_processes_with_other_hash_seeds_get_the_same_keys() -> None:
    code = (
        "from moontide.kv.keys import *; s = KeySpace(('a', 'b'), 4);"
        "c = Chain(s, range(9), [Span('lora', ('n', 'p')), Span('image', 'h', 2, 6)]);"
        "print(s.keys(c.blocks(2), 0), c.digest(9).hex())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert len(outputs) == 1
