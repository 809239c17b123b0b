"""BBS: keys, signatures, blind issuance and proofs."""

from __future__ import annotations

import pytest

from shoal.crypto.credentials.bbs import (
    N_RANDOMS,
    BBSScheme,
    ParsedSignature,
    Proof,
    blind_sign,
    commit,
    is_valid_signature,
    make_generators,
    make_public_key,
    make_secret_key,
    prove,
)
from shoal.crypto.credentials.bls import (
    ORDER,
    MalformedError,
    draw_scalar,
    encode_scalar,
    multi_scalar_mul,
)
from shoal.entropy import SeededEntropy
from tests.support.crypto import encode_draft, is_valid_proof, sign

SECRET = make_secret_key(b"k" * 32, b"")
KEY = make_public_key(SECRET)
MESSAGES = [b"one", b"", b"three"]


def randoms(n: int, seed: str = "randoms") -> list[int]:
    entropy = SeededEntropy(seed)
    return [draw_scalar(entropy) for _ in range(n)]


def test_keys_match_draft() -> None:
    material, info = (
        b"this-IS-just-an-Test-IKM-to-generate-$e(r@t#-key",
        b"this-IS-some-key-metadata-to-be-used-in-test-key-gen",
    )
    assert (
        encode_scalar(make_secret_key(material, info)).hex()
        == "60e55110f76883a13d030b2f6bd11883422d5abde717569fc0731f51237169fc"
    )
    assert (
        make_public_key(make_secret_key(material, info))
        .hex()
        .startswith("a820f230f6ae38503b86c70dc50b61c58a77e45c39ab25c0652bbaa8fa136f28")
    )


def test_generators_are_distinct() -> None:
    found = make_generators(8, b"one ") + make_generators(8, b"another ")
    assert len(set(found)) == 16
    assert make_generators(3, b"one ") == found[:3]


def test_signature_is_valid_only_for_its_messages_and_scheme() -> None:
    scheme = BBSScheme(KEY, b"header", 3)
    scalars = scheme.messages_to_scalars(MESSAGES)
    signature = sign(scheme, SECRET, MESSAGES)
    assert is_valid_signature(scheme, signature, scalars)
    assert sign(scheme, SECRET, MESSAGES) == signature
    assert not is_valid_signature(scheme, signature, [*scalars[:2], scalars[2] + 1])
    assert not is_valid_signature(scheme, signature, scalars[:2])
    assert not is_valid_signature(scheme, signature, [*scalars, 0])
    assert not is_valid_signature(BBSScheme(KEY, b"other", 3), signature, scalars)
    assert not is_valid_signature(BBSScheme(make_public_key(5), b"header", 3), signature, scalars)
    for bad in (
        signature[:-1],
        signature + b"\0",
        b"\xc0" + bytes(47) + signature[48:],
        signature[:48] + bytes(32),
    ):
        assert not is_valid_signature(scheme, bad, scalars)


def test_scheme_rejects_invalid_key() -> None:
    for key in (b"", b"\xc0" + bytes(95), KEY[:-1]):
        with pytest.raises(MalformedError):
            BBSScheme(key, b"", 1)


@pytest.mark.parametrize("shown", [[], [0], [1, 2], [0, 1, 2]])
def test_proof_without_pseudonym_is_valid_only_for_its_inputs(shown: list[int]) -> None:
    scheme = BBSScheme(KEY, b"header", 3)
    scalars = scheme.messages_to_scalars(MESSAGES)
    signed = ParsedSignature.parse(scheme, sign(scheme, SECRET, MESSAGES), scalars)
    proof = prove(signed, shown, b"for this", randoms(N_RANDOMS + 3 - len(shown)))
    disclosed = [(index, scalars[index]) for index in shown]
    data = encode_draft(proof)
    assert (proof.pseudonym, proof.U) == (b"", b"")
    assert is_valid_proof(scheme, data, disclosed, b"for this")
    assert not is_valid_proof(scheme, data, disclosed, b"for that")
    assert not is_valid_proof(BBSScheme(KEY, b"another", 3), data, disclosed, b"for this")
    assert not is_valid_proof(scheme, data[:-1], disclosed, b"for this")
    assert not is_valid_proof(scheme, data + b"\0", disclosed, b"for this")
    assert not is_valid_proof(scheme, data, [*disclosed, (3, 1)], b"for this")
    assert not is_valid_proof(scheme, data, [(0, scalars[0]), (0, scalars[0])], b"for this")
    for start in range(0, len(data), 16):
        changed = bytearray(data)
        changed[start + 15] ^= 1
        assert not is_valid_proof(scheme, bytes(changed), disclosed, b"for this")


def with_pseudonym() -> tuple[BBSScheme, ParsedSignature]:
    scheme = BBSScheme(KEY, b"header", 1, has_pseudonyms=True)
    blind, own, added, mask, *hiding = randoms(6)
    signature = blind_sign(
        scheme, SECRET, commit(scheme, blind, own, hiding), [b"seen"], added, mask
    )
    scalars = [*scheme.messages_to_scalars([b"seen"]), blind, (own + added) % ORDER]
    assert is_valid_signature(scheme, signature, scalars)
    return scheme, ParsedSignature.parse(scheme, signature, scalars)


def test_proof_with_pseudonym_is_valid_only_for_its_context() -> None:
    scheme, signed = with_pseudonym()
    disclosed = [(0, signed.scalars[0])]
    proof = prove(signed, [0], b"for this", randoms(N_RANDOMS + 2), b"context")
    data = encode_draft(proof)
    assert is_valid_proof(scheme, data, disclosed, b"for this", b"context", proof.pseudonym)
    assert not is_valid_proof(scheme, data, disclosed, b"for this", b"another", proof.pseudonym)
    assert not is_valid_proof(scheme, data, disclosed, b"for this", b"context", proof.U)
    assert not is_valid_proof(scheme, data, disclosed, b"for this", b"context", b"\xc0" + bytes(47))
    assert not is_valid_proof(scheme, data, disclosed, b"for this")
    assert (
        proof.pseudonym
        == multi_scalar_mul((scheme.hash_context(b"context"), signed.scalars[-1])).compress()
    )
    # Secrets cannot be disclosed.
    assert not is_valid_proof(
        scheme, data, [*disclosed, (1, signed.scalars[1])], b"for this", b"context", proof.pseudonym
    )


def test_reused_randomness_reveals_secret() -> None:
    _, signed = with_pseudonym()
    one, two = (
        prove(signed, [0], header, randoms(N_RANDOMS + 2), b"context")
        for header in (b"one", b"two")
    )

    def solved(a: Proof, b: Proof) -> int:
        return (
            (a.responses[-1] - b.responses[-1]) * pow(a.challenge - b.challenge, -1, ORDER) % ORDER
        )

    assert solved(one, two) == signed.scalars[-1]
    assert (
        solved(one, prove(signed, [0], b"two", randoms(N_RANDOMS + 2, "others"), b"context"))
        != signed.scalars[-1]
    )


def test_blind_sign_rejects_invalid_commitment() -> None:
    scheme = BBSScheme(KEY, b"header", 1, has_pseudonyms=True)
    blind, own, added, *hiding = randoms(5)
    commitment = commit(scheme, blind, own, hiding)
    assert len(commitment) == 144
    changed = [
        commitment[:i] + bytes([commitment[i] ^ 1]) + commitment[i + 1 :]
        for i in (20, 47, 60, 100, 143)
    ]
    for bad in (
        b"",
        commitment[:-1],
        commitment + b"\0",
        b"\xc0" + bytes(47) + commitment[48:],
        commitment[:112] + bytes(32),
        *changed,
    ):
        with pytest.raises(MalformedError):
            blind_sign(scheme, SECRET, bad, [b"seen"], added, 1)
