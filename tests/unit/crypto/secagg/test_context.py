"""Bytes bound to a round are unique to their context, purpose and parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.crypto.secagg.context import (
    MemberPublicKeys,
    RoundContext,
    digest_key_list,
    encode_box_statement,
    encode_survivors_statement,
)
from tests.support.secagg import context

KEYS = {
    0: MemberPublicKeys(b"m0" * 16, b"b0" * 16, b"c0" * 16),
    1: MemberPublicKeys(b"m1" * 16, b"b1" * 16, b"c1" * 16),
    3: MemberPublicKeys(b"m3" * 16, b"b3" * 16, b"c3" * 16),
}
OTHERS = [
    replace(context(), study=bytes(32)),
    replace(context(), roster=bytes(32)),
    replace(context(), query=bytes(32)),
    context(2),
    # The same bytes in all, cut elsewhere.
    RoundContext(context().study + context().roster[:1], context().roster[1:], 1, context().query),
]


def test_different_parts_encode_differently() -> None:
    about = context()
    bound = [
        about.bind("a"),
        about.bind("a", b""),
        about.bind("a", 0),
        about.bind("a", bytes(8)),
        about.bind("a", 0, 0),
        about.bind("a", b"ab", b"c"),
        about.bind("a", b"a", b"bc"),
        about.bind("a", b"abc"),
        about.bind("ab", b"c"),
        about.bind("ab", b""),
        about.bind("", b"a"),
        about.bind("a", b"", 0),
        about.bind("a", 0, b""),
    ]
    assert len(set(bound)) == len(bound)


@pytest.mark.parametrize("other", OTHERS)
def test_different_contexts_encode_differently(other: RoundContext) -> None:
    assert other.bind("purpose", 1) != context().bind("purpose", 1)
    assert digest_key_list(other, KEYS) != digest_key_list(context(), KEYS)
    assert encode_box_statement(other, 0, 1, b"d", b"b", b"c") != encode_box_statement(
        context(), 0, 1, b"d", b"b", b"c"
    )
    assert encode_survivors_statement(other, [0, 1], [0, 1]) != encode_survivors_statement(
        context(), [0, 1], [0, 1]
    )


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_numbers_beyond_64_bits_raise(number: int) -> None:
    with pytest.raises(OverflowError):
        context().bind("purpose", number)


def test_digest_identifies_list_of_keys() -> None:
    lists = [
        KEYS,
        {0: KEYS[0], 1: KEYS[1]},
        {0: KEYS[0], 1: KEYS[1], 2: KEYS[3]},
        {0: KEYS[1], 1: KEYS[0], 3: KEYS[3]},
        *({**KEYS, 1: KEYS[1]._replace(**{part: bytes(32)})} for part in MemberPublicKeys._fields),
        {**KEYS, 1: MemberPublicKeys(KEYS[1].box, KEYS[1].mask, KEYS[1].commitment)},
    ]
    assert len({digest_key_list(context(), one) for one in lists}) == len(lists)
    assert digest_key_list(context(), dict(reversed(KEYS.items()))) == digest_key_list(
        context(), KEYS
    )


def test_box_statement_covers_all_its_parts() -> None:
    said = (0, 1, b"digest", b"box", b"commitment")
    changed = [
        (2, *said[1:]),
        (1, 0, *said[2:]),
        (*said[:2], b"d", *said[3:]),
        (*said[:3], b"bo", b"xcommitment"),
        (*said[:4], b"c"),
    ]
    assert len({encode_box_statement(context(), *one) for one in (said, *changed)}) == 6


def test_survivors_statement_depends_on_sets_only() -> None:
    said = encode_survivors_statement(context(), (2, 0, 5), (0, 1, 2, 5))
    assert said == encode_survivors_statement(context(), {0, 2, 5}, [5, 2, 1, 0])
    others = [
        ((0, 2), (0, 1, 2, 5)),
        ((0, 2, 5), (0, 2, 5)),
        ((0, 2, 5, 1), (0, 1, 2, 5)),
        ((0, 2, 5, 0, 1, 2, 5), ()),
        ((0, 2, 4), (0, 1, 2, 5)),
    ]
    assert said not in {encode_survivors_statement(context(), *one) for one in others}
