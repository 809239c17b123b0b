"""What is bound to a round means nothing elsewhere: encodings of different things differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.crypto.context import Context, Keys, box_statement, list_digest, survivors_statement
from sum_cases import context

KEYS = {
    0: Keys(b"m0" * 16, b"b0" * 16, b"c0" * 16),
    1: Keys(b"m1" * 16, b"b1" * 16, b"c1" * 16),
    3: Keys(b"m3" * 16, b"b3" * 16, b"c3" * 16),
}
OTHERS = [
    replace(context(), study=bytes(32)),
    replace(context(), roster=bytes(32)),
    replace(context(), query=bytes(32)),
    context(2),
    # The same bytes in all, cut elsewhere.
    Context(context().study + context().roster[:1], context().roster[1:], 1, context().query),
]


def test_parts_are_told_apart() -> None:
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
def test_another_context_gives_other_bytes(other: Context) -> None:
    assert other.bind("purpose", 1) != context().bind("purpose", 1)
    assert list_digest(other, KEYS) != list_digest(context(), KEYS)
    assert box_statement(other, 0, 1, b"d", b"b", b"c") != box_statement(context(), 0, 1, b"d", b"b", b"c")
    assert survivors_statement(other, [0, 1], [0, 1]) != survivors_statement(context(), [0, 1], [0, 1])


@pytest.mark.parametrize("number", [-1, 1 << 64])
def test_numbers_that_do_not_fit_are_errors(number: int) -> None:
    with pytest.raises(OverflowError):
        context().bind("purpose", number)


def test_a_list_of_keys_is_told_by_its_digest() -> None:
    lists = [
        KEYS,
        {0: KEYS[0], 1: KEYS[1]},
        {0: KEYS[0], 1: KEYS[1], 2: KEYS[3]},
        {0: KEYS[1], 1: KEYS[0], 3: KEYS[3]},
        *({**KEYS, 1: KEYS[1]._replace(**{part: bytes(32)})} for part in Keys._fields),
        {**KEYS, 1: Keys(KEYS[1].box, KEYS[1].mask, KEYS[1].commitment)},
    ]
    assert len({list_digest(context(), one) for one in lists}) == len(lists)
    assert list_digest(context(), dict(reversed(KEYS.items()))) == list_digest(context(), KEYS)


def test_a_statement_about_a_box_covers_all_that_it_says() -> None:
    said = (0, 1, b"digest", b"box", b"commitment")
    changed = [(2, *said[1:]), (1, 0, *said[2:]), (*said[:2], b"d", *said[3:]), (*said[:3], b"bo", b"xcommitment"), (*said[:4], b"c")]
    assert len({box_statement(context(), *one) for one in (said, *changed)}) == 6


def test_a_statement_about_survivors_is_about_sets_of_members() -> None:
    said = survivors_statement(context(), (2, 0, 5), (0, 1, 2, 5))
    assert said == survivors_statement(context(), {0, 2, 5}, [5, 2, 1, 0])
    others = [
        ((0, 2), (0, 1, 2, 5)),
        ((0, 2, 5), (0, 2, 5)),
        ((0, 2, 5, 1), (0, 1, 2, 5)),
        ((0, 2, 5, 0, 1, 2, 5), ()),
        ((0, 2, 4), (0, 1, 2, 5)),
    ]
    assert said not in {survivors_statement(context(), *one) for one in others}
