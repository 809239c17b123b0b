"""Tokens are valid only for their context, message and partition, alone and in batches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from py_arkworks_bls12381 import G1Point

from shoal.crypto.credentials import tokens
from shoal.crypto.credentials.bls import ORDER, encode_scalar
from shoal.crypto.credentials.issuance import Issuer
from shoal.crypto.credentials.tokens import TOKEN_BYTES, PresentedToken, TokenVerifier
from shoal.errors import RemoteProtocolError
from tests.support.tokens import (
    CONTEXT,
    FIELD,
    ISSUER,
    MESSAGE,
    NAMES,
    OTHER_ISSUER,
    OTHER_SCOPE,
    PLACE,
    RESPONSES,
    SCOPE,
    THIRD,
    mint,
    outside,
    part,
    person,
    presented,
    registered,
    third,
    torsion,
    verifier,
    with_part,
)

GOOD = presented(person("one"))
BESIDE = (
    presented(person("two")),
    presented(person("three"), b"another context", b"another message"),
)
MADE_OTHERWISE = mint(person("one"))

Bad = Callable[[], PresentedToken]


def put(name: str, change: Callable[[bytes], bytes]) -> Bad:
    return lambda: with_part(GOOD, name, change(part(GOOD, name)))


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def added_before_hashing(name: str, point: Callable[[], Any]) -> Bad:
    """Return the token of a cheating member.

    The proof is right except for a part outside the subgroup, and the challenge is that of the
    actual points.
    """

    def change(points: dict[str, Any]) -> None:
        points[name] = points[name] + point()

    return lambda: mint(person("one"), change)


def beyond_the_field(name: str) -> Bad:
    """Return a point's x in its other form.

    It has the same value in the field, and fits into 381 bits for about one point in four.
    """

    def make() -> PresentedToken:
        for attempt in range(1000):
            one = presented(person(f"person {attempt}"), seed=str(attempt))
            data = part(one, name)
            other = (int.from_bytes(data, "big") & ((1 << 381) - 1)) + FIELD
            if other < 1 << 381:
                return with_part(
                    one,
                    name,
                    bytes([data[0] & 0xE0 | other >> 376]) + other.to_bytes(48, "big")[1:],
                )
        raise AssertionError("one in four fits")

    return make


def of_another(names: tuple[str, ...], other: Callable[[], PresentedToken]) -> Bad:
    def make() -> PresentedToken:
        one = GOOD
        for name in names:
            one = with_part(one, name, part(other(), name))
        return one

    return make


def swapped(one: str, two: str) -> Bad:
    return lambda: with_part(with_part(GOOD, one, part(GOOD, two)), two, part(GOOD, one))


def somebody_elses_signature(points: dict[str, Any]) -> None:
    for name in ("Abar", "Bbar"):
        points[name] = G1Point.from_compressed_bytes(part(BESIDE[0], name))


def again() -> PresentedToken:
    return presented(person("one"), seed="again")


def elsewhere() -> PresentedToken:
    return presented(person("one"), b"another context")


SELF_MADE = Issuer.from_seed(b"my own issuer is as good as any!")
BAD: dict[str, Bad] = {
    "bound to another message": lambda: replace(GOOD, message=b"another"),
    "bound to no message": lambda: replace(GOOD, message=b""),
    "bound to another study": lambda: replace(GOOD, context=b"study two, slot 3"),
    "bound to another slot": lambda: replace(GOOD, context=b"study one, slot 4"),
    "a byte moved from the message to the context": lambda: replace(
        GOOD, context=CONTEXT + MESSAGE[:1], message=MESSAGE[1:]
    ),
    "bound to another place": lambda: replace(GOOD, partition=PLACE + 1),
    "with a place below 0": lambda: replace(GOOD, partition=-1),
    "with a place of five bytes": lambda: replace(GOOD, partition=PLACE + (1 << 32)),
    "a credential of another scope": lambda: presented(registered("one", scope=OTHER_SCOPE)),
    "a credential of another scope, said to be of this": lambda: mint(
        replace(registered("one", scope=OTHER_SCOPE), scope=SCOPE)
    ),
    "a credential of another issuer": lambda: presented(registered("one", OTHER_ISSUER)),
    "a credential of one's own, said to be the issuer's": lambda: mint(
        replace(registered("one", SELF_MADE), issuer_key=ISSUER.key)
    ),
    "a credential without a signature": lambda: mint(
        replace(person("one"), signature=bytes(G1Point().to_compressed_bytes()) + encode_scalar(5))
    ),
    "a second pseudonym from one credential": lambda: mint(
        replace(person("one"), k=person("one").k + 1)
    ),
    "a credential with another blind factor": lambda: mint(
        replace(person("one"), blind=person("one").blind + 1)
    ),
    "a credential with a place of one's choice": lambda: mint(
        replace(person("one"), partition=PLACE + 1)
    ),
    "a credential with another exponent": lambda: mint(
        replace(
            person("one"),
            signature=person("one").signature[:48]
            + encode_scalar(int.from_bytes(person("one").signature[48:], "big") + 1),
        )
    ),
    "somebody else's signature": lambda: mint(person("one"), somebody_elses_signature),
    "nothing": lambda: replace(GOOD, token=b""),
    "zeros": lambda: replace(GOOD, token=bytes(TOKEN_BYTES)),
    "the pseudonym alone": lambda: replace(GOOD, token=GOOD.token[:48]),
    "truncated": lambda: replace(GOOD, token=GOOD.token[:-1]),
    "truncated by a response": lambda: replace(GOOD, token=GOOD.token[:-32]),
    "extended": lambda: replace(GOOD, token=GOOD.token + b"\0"),
    "twice": lambda: replace(GOOD, token=2 * GOOD.token),
    "N and U swapped": swapped("N", "U"),
    "Abar and Bbar swapped": swapped("Abar", "Bbar"),
    "T1 and T2 swapped": swapped("T1", "T2"),
    "e and r1 swapped": swapped("e", "r1"),
    "blind and k swapped": swapped("blind", "k"),
    "the pseudonym of another person": of_another(("N",), lambda: BESIDE[0]),
    "the pseudonym of another context": of_another(("N",), elsewhere),
    "U of another token": of_another(("U",), again),
    "U and k of another token": of_another(("U", "k"), again),
    "T1 and T2 of another token": of_another(("T1", "T2"), again),
    "T1, T2 and U of another token": of_another(("T1", "T2", "U"), again),
    "responses of another token": of_another(RESPONSES, again),
    "all but the pseudonym of another person": of_another(
        (*NAMES[1:], *RESPONSES), lambda: BESIDE[0]
    ),
    "all but the pseudonym of another context": of_another((*NAMES[1:], *RESPONSES), elsewhere),
    "the identity with its sign for N": lambda: with_part(GOOD, "N", b"\xe0" + bytes(47)),
    "the identity with junk for N": lambda: with_part(GOOD, "N", b"\xc0" + bytes(46) + b"\x01"),
    "the identity with junk for U": lambda: with_part(GOOD, "U", b"\xc0" + part(GOOD, "U")[1:]),
    "the identity for Abar and Bbar": lambda: with_part(
        with_part(GOOD, "Abar", b"\xc0" + bytes(47)), "Bbar", b"\xc0" + bytes(47)
    ),
    "the identity for N and U": lambda: with_part(
        with_part(GOOD, "N", b"\xc0" + bytes(47)), "U", b"\xc0" + bytes(47)
    ),
    "x of N beyond the field": beyond_the_field("N"),
    "x of Abar beyond the field": beyond_the_field("Abar"),
    "x of T2 beyond the field": beyond_the_field("T2"),
    "not on the curve": lambda: with_part(GOOD, "D", b"\x80" + bytes(46) + b"\x01"),
}
POINTS: dict[str, Callable[[bytes], bytes]] = {
    "changed": flipped,
    "negated": lambda data: bytes([data[0] ^ 0x20]) + data[1:],
    "without the flag of compression": lambda data: bytes([data[0] & 0x7F]) + data[1:],
    "the identity": lambda data: b"\xc0" + bytes(47),
    "of order 3": lambda data: THIRD,
    "outside the subgroup": lambda data: outside(),
}
SCALARS: dict[str, Callable[[bytes], bytes]] = {
    "changed": flipped,
    "0": lambda data: bytes(32),
    "the order": lambda data: ORDER.to_bytes(32, "big"),
    "in its other form": lambda data: (int.from_bytes(data, "big") + ORDER).to_bytes(32, "big"),
}
BAD |= {f"{name}: {what}": put(name, change) for name in NAMES for what, change in POINTS.items()}
BAD |= {
    f"{name}: {what}": put(name, change) for name in RESPONSES for what, change in SCALARS.items()
}
BAD |= {f"{name}: order 3 in it": added_before_hashing(name, third) for name in NAMES}
BAD |= {f"{name}: torsion in it": added_before_hashing(name, torsion) for name in NAMES}


@pytest.mark.parametrize("make", BAD.values(), ids=BAD)
def test_invalid_tokens_are_rejected_alone_and_in_batch(make: Bad) -> None:
    bad = make()
    with pytest.raises(RemoteProtocolError) as caught:
        verifier().verify(bad)
    assert caught.value.code == "TOKEN-001"
    assert bad.token.hex()[:16] not in str(caught.value) or not bad.token
    assert verifier().verify_many([bad, BESIDE[1]]) == [False, True]


def test_invalid_tokens_are_rejected_among_valid_ones() -> None:
    assert len(BAD) > 100
    some = list(BAD.values())[::3]
    assert verifier().verify_many([one for make in some for one in (make(), *BESIDE)]) == [
        False,
        True,
        True,
    ] * len(some)


def test_valid_tokens_are_accepted() -> None:
    for one in (GOOD, *BESIDE, MADE_OTHERWISE):
        verifier().verify(one)
    assert verifier().verify_many([GOOD, *BESIDE, MADE_OTHERWISE, GOOD]) == [True] * 5
    assert verifier().verify_many([]) == []
    assert GOOD.token[:48] == MADE_OTHERWISE.token[:48]


def test_batch_may_have_different_partitions_and_contexts() -> None:
    many = [
        presented(
            registered(f"at {place}", place=place), f"context {place % 3}".encode(), bytes([place])
        )
        for place in range(6)
    ]
    many.append(presented(registered("last", place=(1 << 32) - 1), b"", b""))
    assert verifier().verify_many(many) == [True] * 7
    moved = [replace(one, context=many[index - 1].context) for index, one in enumerate(many)]
    assert verifier().verify_many(moved) == [False] * 7


def test_verifier_rejects_other_issuer_and_scope() -> None:
    for other in (TokenVerifier(OTHER_ISSUER.key, SCOPE), TokenVerifier(ISSUER.key, OTHER_SCOPE)):
        assert other.verify_many([GOOD, *BESIDE]) == [False] * 3
    assert TokenVerifier(OTHER_ISSUER.key, OTHER_SCOPE).verify_many(
        [presented(registered("one", OTHER_ISSUER, OTHER_SCOPE))]
    ) == [True]


@pytest.mark.parametrize(
    "key",
    [b"", ISSUER.key[:-1], ISSUER.key + b"\0", b"\xc0" + bytes(95), bytes(96), b"\x80" + bytes(95)],
)
def test_verifier_rejects_invalid_key(key: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        TokenVerifier(key, SCOPE)
    assert caught.value.code == "TOKEN-001"


@pytest.mark.parametrize("point", [third, torsion])
def test_point_outside_subgroup_is_always_rejected(point: Callable[[], Any]) -> None:
    """Without the subgroup check, points of order 3 would pass in one of three cases."""
    bad = added_before_hashing("T1", point)()
    assert not any(verifier().verify_many([bad] * 40))


class Counting(TokenVerifier):
    """A verifier that counts the equations it has checked."""

    n_checked = 0

    def _are_valid(self, group: list[Any]) -> bool:
        self.n_checked += 1
        return super()._are_valid(group)


class TestBatches:
    def test_invalid_tokens_are_found_by_bisection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert tokens.BATCH_SIZE == 256
        monkeypatch.setattr(tokens, "BATCH_SIZE", 32)
        many = [presented(person("one"), message=bytes([i])) for i in range(35)]
        counting = Counting(ISSUER.key, SCOPE)
        assert counting.verify_many(many) == [True] * 35
        assert counting.n_checked == 2
        bad = {0, 31, 34}
        mixed = [
            replace(one, message=b"another") if i in bad else one for i, one in enumerate(many)
        ]
        counting.n_checked = 0
        assert counting.verify_many(mixed) == [i not in bad for i in range(35)]
        # 32, two of 16, four of 8, and of the two of those that fail two of 4 each, of which one
        # each is checked one by one; then 3.
        assert counting.n_checked == 1 + 2 + 4 + 4 + 8 + 1 + 3

    def test_flood_of_invalid_tokens_is_checked_one_by_one(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tokens, "_FLOOD_GROUPS", 4)
        mixed = [GOOD if i % 6 == 5 else replace(GOOD, message=b"another") for i in range(24)]
        counting = Counting(ISSUER.key, SCOPE)
        assert counting.verify_many(mixed) == [i % 6 == 5 for i in range(24)]
        assert counting.n_checked == 1 + 2 + 4 + 24

    def test_weights_are_fresh_and_128_bits(self) -> None:
        drawn = [
            int(weight)
            for _ in range(2)
            for four in verifier()._draw_weights(10)
            for weight in four
        ]
        assert len(set(drawn)) == 80
        assert all(0 < int.from_bytes(encode_scalar(weight), "big") < 1 << 128 for weight in drawn)
        assert max(drawn).bit_length() > 118


def test_libraries_are_imported_lazily() -> None:
    code = (
        "import sys, shoal.crypto.credentials.issuance, shoal.crypto.credentials.tokens; "
        "print({'pyblst', 'py_arkworks_bls12381'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("set()", "")
