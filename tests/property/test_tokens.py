"""Whatever is sent as a token: one verdict alone and in a batch, no error but the one, and nothing that was changed is accepted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hypothesis import example, given, settings
from hypothesis import strategies as st

from credential_cases import person, presented, verifier
from hostile import hostile
from shoal.crypto.tokens import TOKEN_BYTES, Presented
from shoal.errors import RemoteProtocolError


@cache
def two_tokens() -> tuple[Presented, Presented]:
    one, beside = (presented(person("one"), seed=seed) for seed in ("first", "second"))
    return one, beside


def is_valid(one: Presented) -> bool:
    try:
        verifier().verify(one)
    except RemoteProtocolError as error:
        assert error.code == "TOKEN-001"
        return False
    return True


@hostile(100)
@given(st.binary(max_size=TOKEN_BYTES + 1) | st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES), st.integers(-2, 1 << 33))
@example(bytes(TOKEN_BYTES), 0)
@example(b"\xff" * TOKEN_BYTES, 0)
@example(b"\xc0" + bytes(TOKEN_BYTES - 1), 0)
def test_any_bytes(token: bytes, place: int) -> None:
    any_bytes = replace(two_tokens()[0], token=token, place=place)
    assert not is_valid(any_bytes)
    assert verifier().verify_many([any_bytes, any_bytes]) == [False, False]


@settings(max_examples=30)
@given(st.integers(0, 8 * TOKEN_BYTES - 1))
def test_any_bit(bit: int) -> None:
    one, beside = two_tokens()
    changed = bytearray(one.token)
    changed[bit // 8] ^= 1 << bit % 8
    bad = replace(one, token=bytes(changed))
    assert not is_valid(bad)
    assert verifier().verify_many([beside, bad]) == [True, False]


@settings(max_examples=30)
@given(st.integers(0, TOKEN_BYTES), st.booleans())
def test_halves_of_two_tokens(cut: int, is_first: bool) -> None:
    """Two tokens of one person, context and message have nothing in common that could be put together but the pseudonym."""
    one, beside = two_tokens()
    head, tail = (one.token, beside.token) if is_first else (beside.token, one.token)
    mixed = replace(one, token=head[:cut] + tail[cut:])
    is_whole = mixed.token in (one.token, beside.token)
    assert is_valid(mixed) is is_whole
    assert verifier().verify_many([mixed, beside]) == [is_whole, True]
