"""Registration and issuance: deterministic, and rejected if invalid."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from shoal.crypto.credentials.bbs import blind_sign
from shoal.crypto.credentials.bls import ORDER, encode_scalar
from shoal.crypto.credentials.issuance import (
    COMMITMENT_BYTES,
    ISSUED_BYTES,
    ISSUER_KEY_BYTES,
    PSEUDONYM_BYTES,
    Credential,
    Issuer,
    Registration,
)
from shoal.crypto.credentials.tokens import (
    TOKEN_BYTES,
    encode_partition,
    make_scheme,
    read_pseudonym,
)
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from tests.support.tokens import (
    CONTEXT,
    ISSUER,
    MESSAGE,
    OTHER_ISSUER,
    OTHER_SCOPE,
    PLACE,
    SCOPE,
    person,
    presented,
    registered,
    verifier,
)

REGISTRATION = Registration(b"r" * 32)
COMMITMENT = REGISTRATION.make_commitment(ISSUER.key, SCOPE)
ISSUED = ISSUER.issue(SCOPE, COMMITMENT, PLACE, SeededEntropy("issued"))
CREDENTIAL = REGISTRATION.accept(ISSUER.key, SCOPE, ISSUED)
PINNED = [
    "9454e9ca8633",
    "2eb0a6e5fb4c",
    "b6f803cda51b",
    "e65e23898632",
    "b24b157edf9f",
    "7759386cf916",
    "ab3576f0dbca",
]


def flipped(data: bytes, index: int) -> bytes:
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]


def test_encodings_have_documented_sizes() -> None:
    assert len(ISSUER.key) == ISSUER_KEY_BYTES == 96
    assert len(COMMITMENT) == COMMITMENT_BYTES == 144
    assert len(ISSUED) == ISSUED_BYTES == 116
    assert len(CREDENTIAL.compute_pseudonym(CONTEXT)) == PSEUDONYM_BYTES == 48
    assert len(CREDENTIAL.mint(CONTEXT, MESSAGE, SeededEntropy(1))) == TOKEN_BYTES == 496


def test_encodings_are_fixed() -> None:
    """Stored and issued credentials stay valid only while none of these bytes changes."""
    token = CREDENTIAL.mint(CONTEXT, MESSAGE, SeededEntropy("token"))
    made = (
        ISSUER.key,
        COMMITMENT,
        ISSUED,
        REGISTRATION.to_bytes(),
        CREDENTIAL.to_bytes(),
        CREDENTIAL.compute_pseudonym(CONTEXT),
        token,
    )
    assert [hashlib.sha256(data).hexdigest()[:12] for data in made] == PINNED


def test_issuer_follows_from_seed() -> None:
    assert Issuer.from_seed(bytes(range(32))).key == ISSUER.key != OTHER_ISSUER.key
    with pytest.raises(ValueError, match="32 bytes"):
        Issuer.from_seed(bytes(31))


def test_commitment_is_deterministic(entropy: SeededEntropy) -> None:
    again = Registration.from_bytes(REGISTRATION.to_bytes())
    assert again == REGISTRATION
    assert again.make_commitment(ISSUER.key, SCOPE) == COMMITMENT
    others = {Registration.draw(entropy).make_commitment(ISSUER.key, SCOPE) for _ in range(3)}
    others |= {
        REGISTRATION.make_commitment(OTHER_ISSUER.key, SCOPE),
        REGISTRATION.make_commitment(ISSUER.key, OTHER_SCOPE),
    }
    assert len(others | {COMMITMENT}) == 6
    assert len({other[:48] for other in others}) == 5
    assert b"rrrr" not in repr(REGISTRATION).encode()


@pytest.mark.parametrize(
    "data", [b"", b"r" * 32, b"\x02" + b"r" * 32, b"\x01" + b"r" * 31, b"\x01" + b"r" * 33]
)
def test_registration_from_bytes_rejects_other_bytes(data: bytes) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        Registration.from_bytes(data)
    assert caught.value.code == "TOKEN-003"


def test_credential_round_trips() -> None:
    again = Credential.from_bytes(CREDENTIAL.to_bytes())
    assert again == CREDENTIAL
    assert again.partition == PLACE
    assert again.mint(CONTEXT, MESSAGE, SeededEntropy(1)) == CREDENTIAL.mint(
        CONTEXT, MESSAGE, SeededEntropy(1)
    )
    for secret in (
        CREDENTIAL.k,
        CREDENTIAL.blind,
        int.from_bytes(CREDENTIAL.signature[48:], "big"),
    ):
        assert str(secret) not in repr(CREDENTIAL)


def test_credential_from_bytes_rejects_other_bytes() -> None:
    data = CREDENTIAL.to_bytes()
    no_key = b"\x01" + b"\xc0" + bytes(95) + data[97:]
    for bad in (
        b"",
        data[:-1],
        data + b"\0",
        b"\x02" + data[1:],
        data[:-32] + bytes(32),
        data[:-64] + b"\xff" * 64,
    ):
        with pytest.raises(LocalProtocolError) as caught:
            Credential.from_bytes(bad)
        assert caught.value.code == "TOKEN-003"
    with pytest.raises(RemoteProtocolError) as other:
        Credential.from_bytes(no_key).mint(CONTEXT, MESSAGE, SeededEntropy(1))
    assert other.value.code == "TOKEN-003"
    with pytest.raises(LocalProtocolError) as third:
        replace(CREDENTIAL, signature=bytes(80)).compute_pseudonym(CONTEXT)
    assert third.value.code == "TOKEN-003"


BAD_COMMITMENTS = {
    "nothing": b"",
    "too short": COMMITMENT[:-1],
    "too long": COMMITMENT + b"\0",
    "without a proof": COMMITMENT[:48],
    "the identity": b"\xc0" + bytes(47) + COMMITMENT[48:],
    "a scalar of 0": COMMITMENT[:48] + bytes(32) + COMMITMENT[80:],
    "a scalar beyond the order": COMMITMENT[:112]
    + (int.from_bytes(COMMITMENT[112:], "big") + ORDER).to_bytes(32, "big"),
    "another commitment's proof": COMMITMENT[:48]
    + Registration(b"o" * 32).make_commitment(ISSUER.key, SCOPE)[48:],
    "the point changed": flipped(COMMITMENT, 30),
    "its sign changed": bytes([COMMITMENT[0] ^ 0x20]) + COMMITMENT[1:],
    "the first response changed": flipped(COMMITMENT, 79),
    "the second response changed": flipped(COMMITMENT, 111),
    "the challenge changed": flipped(COMMITMENT, 143),
}


@pytest.mark.parametrize("commitment", BAD_COMMITMENTS.values(), ids=BAD_COMMITMENTS)
def test_issue_rejects_invalid_commitment(commitment: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        ISSUER.issue(SCOPE, commitment, PLACE, SeededEntropy(1))
    assert caught.value.code == "TOKEN-002"


def test_issue_rejects_invalid_partition() -> None:
    for place in (-1, 1 << 32):
        with pytest.raises(OverflowError):
            ISSUER.issue(SCOPE, COMMITMENT, place, SeededEntropy(1))
    assert (
        REGISTRATION.accept(
            ISSUER.key, SCOPE, ISSUER.issue(SCOPE, COMMITMENT, (1 << 32) - 1, SeededEntropy(1))
        ).partition
        == (1 << 32) - 1
    )


def issued_by_their_own() -> bytes:
    """Return an answer with a total secret of 0. All its pseudonyms would be the identity."""
    scheme = make_scheme(ISSUER.key, SCOPE)
    _, own, *_ = REGISTRATION._derive_secrets(ISSUER.key, SCOPE)
    signature = blind_sign(
        scheme, ISSUER._secret, COMMITMENT, [encode_partition(PLACE)], -own % ORDER, 1
    )
    return signature + encode_scalar(-own) + encode_partition(PLACE)


BAD_ANSWERS = {
    "nothing": b"",
    "too short": ISSUED[:-1],
    "too long": ISSUED + b"\0",
    "the signature changed": flipped(ISSUED, 20),
    "its sign changed": bytes([ISSUED[0] ^ 0x20]) + ISSUED[1:],
    "its exponent changed": flipped(ISSUED, 79),
    "the identity as signature": b"\xc0" + bytes(47) + ISSUED[48:],
    "the issuer's part changed": flipped(ISSUED, 111),
    "the issuer's part left out": ISSUED[:80] + bytes(32) + ISSUED[112:],
    "the issuer's part in another form": ISSUED[:80]
    + (int.from_bytes(ISSUED[80:112], "big") + ORDER).to_bytes(32, "big")
    + ISSUED[112:],
    "another place than signed": ISSUED[:112] + encode_partition(PLACE + 1),
    "a place of five bytes": ISSUED[:112] + b"\0" + encode_partition(PLACE),
    "a key for one person": OTHER_ISSUER.issue(SCOPE, COMMITMENT, PLACE, SeededEntropy(1)),
    "another scope": ISSUER.issue(OTHER_SCOPE, COMMITMENT, PLACE, SeededEntropy(1)),
    "another's commitment": ISSUER.issue(
        SCOPE, Registration(b"o" * 32).make_commitment(ISSUER.key, SCOPE), PLACE, SeededEntropy(1)
    ),
    "a secret of 0": issued_by_their_own(),
}


@pytest.mark.parametrize("issued", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
def test_accept_rejects_invalid_credential(issued: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        REGISTRATION.accept(ISSUER.key, SCOPE, issued)
    assert caught.value.code == "TOKEN-003"


def test_commitment_rejects_invalid_issuer_key() -> None:
    for key in (b"", ISSUER.key[:-1], b"\xc0" + bytes(95), bytes(96)):
        with pytest.raises(RemoteProtocolError) as caught:
            REGISTRATION.make_commitment(key, SCOPE)
        assert caught.value.code == "TOKEN-003"
        with pytest.raises(RemoteProtocolError) as caught:
            REGISTRATION.accept(key, SCOPE, ISSUED)
        assert caught.value.code == "TOKEN-003"


def test_participant_cannot_choose_pseudonym() -> None:
    """The secret includes the issuer's part: one registration, signed twice, has two secrets."""
    again = REGISTRATION.accept(
        ISSUER.key, SCOPE, ISSUER.issue(SCOPE, COMMITMENT, PLACE, SeededEntropy("again"))
    )
    assert again.compute_pseudonym(CONTEXT) != CREDENTIAL.compute_pseudonym(CONTEXT)


def test_pseudonyms_differ_per_person_and_context() -> None:
    people = [person("one"), person("two"), registered("three", place=0)]
    contexts = [CONTEXT, b"another study", b""]
    pseudonyms = {one.compute_pseudonym(context) for one in people for context in contexts}
    assert len(pseudonyms) == 9
    assert read_pseudonym(presented(people[0], message=b"m1").token) == people[0].compute_pseudonym(
        CONTEXT
    )
    assert read_pseudonym(presented(people[0], message=b"m2").token) == people[0].compute_pseudonym(
        CONTEXT
    )


class TestRandomness:
    def test_two_tokens_of_one_message_share_only_pseudonym(self) -> None:
        one, two = (CREDENTIAL.mint(CONTEXT, MESSAGE, SeededEntropy(seed)) for seed in (1, 2))
        assert one[:48] == two[:48]
        for start in (*range(48, 336, 48), *range(336, 496, 32)):
            assert one[start : start + 32] != two[start : start + 32]

    def test_repeated_entropy_repeats_whole_token_or_nothing(self) -> None:
        """A copied or restored machine never has two challenges for one randomness."""
        one = CREDENTIAL.mint(CONTEXT, MESSAGE, SeededEntropy(1))
        assert CREDENTIAL.mint(CONTEXT, MESSAGE, SeededEntropy(1)) == one
        for other in (
            CREDENTIAL.mint(CONTEXT, b"another", SeededEntropy(1)),
            CREDENTIAL.mint(CONTEXT + b"!", MESSAGE, SeededEntropy(1)),
            CREDENTIAL.mint(CONTEXT + MESSAGE[:1], MESSAGE[1:], SeededEntropy(1)),
            person("one").mint(CONTEXT, MESSAGE, SeededEntropy(1)),
        ):
            for start in range(48, 336, 48):
                assert other[start : start + 48] != one[start : start + 48]

    def test_tokens_from_repeated_entropy_are_valid(self) -> None:
        verifier().verify(presented(person("one"), seed="repeated"))
        verifier().verify(presented(person("one"), message=b"another", seed="repeated"))
