"""Any bytes as a token: the same verdict alone and in a batch, and only TOKEN-001.

No changed token is accepted.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.crypto.credentials.tokens import TOKEN_BYTES, PresentedToken
from shoal.errors import RemoteProtocolError
from tests.support.hostile import hostile
from tests.support.tokens import person, presented, verifier


@cache
def two_tokens() -> tuple[PresentedToken, PresentedToken]:
    one, other = (presented(person("one"), seed=seed) for seed in ("first", "second"))
    return one, other


def is_valid(one: PresentedToken) -> bool:
    try:
        verifier().verify(one)
    except RemoteProtocolError as error:
        assert error.code == "TOKEN-001"
        return False
    return True


@hostile(100)
@given(
    st.binary(max_size=TOKEN_BYTES + 1) | st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES),
    st.integers(-2, 1 << 33),
)
@example(bytes(TOKEN_BYTES), 0)
@example(b"\xff" * TOKEN_BYTES, 0)
@example(b"\xc0" + bytes(TOKEN_BYTES - 1), 0)
def test_any_bytes_as_token_are_rejected(token: bytes, partition: int) -> None:
    any_bytes = replace(two_tokens()[0], token=token, partition=partition)
    assert not is_valid(any_bytes)
    assert verifier().verify_many([any_bytes, any_bytes]) == [False, False]


@settings(max_examples=30)
@given(st.integers(0, 8 * TOKEN_BYTES - 1))
def test_token_with_any_changed_bit_is_rejected(bit: int) -> None:
    one, other = two_tokens()
    changed = bytearray(one.token)
    changed[bit // 8] ^= 1 << bit % 8
    bad = replace(one, token=bytes(changed))
    assert not is_valid(bad)
    assert verifier().verify_many([other, bad]) == [True, False]


@settings(max_examples=30)
@given(st.integers(0, TOKEN_BYTES), st.booleans())
def test_halves_of_two_tokens_are_rejected(cut: int, is_first: bool) -> None:
    """Combine two tokens of one person, context and message.

    They have only the pseudonym in common.
    """
    one, other = two_tokens()
    head, tail = (one.token, other.token) if is_first else (other.token, one.token)
    mixed = replace(one, token=head[:cut] + tail[cut:])
    is_whole = mixed.token in (one.token, other.token)
    assert is_valid(mixed) is is_whole
    assert verifier().verify_many([mixed, other]) == [is_whole, True]
