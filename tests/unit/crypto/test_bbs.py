"""Signatures are on what they are on; proofs show what they show, and neither more nor for anything else."""

from __future__ import annotations

import pytest

from shoal.crypto.bbs import Scheme, blind_sign, commit, generators, is_signed, public_key, secret_key, sign
from shoal.crypto.bbs_proofs import N_RANDOMS, Proof, Signed, is_proof, prove
from shoal.crypto.bls import ORDER, MalformedError, draw_scalar, scalar_bytes, weighted
from shoal.entropy import SeededEntropy

SECRET = secret_key(b"k" * 32, b"")
KEY = public_key(SECRET)
MESSAGES = [b"one", b"", b"three"]


def randoms(n: int, seed: str = "randoms") -> list[int]:
    entropy = SeededEntropy(seed)
    return [draw_scalar(entropy) for _ in range(n)]


def test_keys_are_made_as_the_draft_makes_them() -> None:
    material, info = b"this-IS-just-an-Test-IKM-to-generate-$e(r@t#-key", b"this-IS-some-key-metadata-to-be-used-in-test-key-gen"
    assert scalar_bytes(secret_key(material, info)).hex() == "60e55110f76883a13d030b2f6bd11883422d5abde717569fc0731f51237169fc"
    assert public_key(secret_key(material, info)).hex().startswith("a820f230f6ae38503b86c70dc50b61c58a77e45c39ab25c0652bbaa8fa136f28")


def test_generators_differ() -> None:
    found = generators(8, b"one ") + generators(8, b"another ")
    assert len(set(found)) == 16
    assert generators(3, b"one ") == found[:3]


def test_signatures() -> None:
    scheme = Scheme(KEY, b"header", 3)
    scalars = scheme.scalars(MESSAGES)
    signature = sign(scheme, SECRET, MESSAGES)
    assert is_signed(scheme, signature, scalars)
    assert sign(scheme, SECRET, MESSAGES) == signature
    assert not is_signed(scheme, signature, [*scalars[:2], scalars[2] + 1])
    assert not is_signed(scheme, signature, scalars[:2])
    assert not is_signed(scheme, signature, [*scalars, 0])
    assert not is_signed(Scheme(KEY, b"other", 3), signature, scalars)
    assert not is_signed(Scheme(public_key(5), b"header", 3), signature, scalars)
    for bad in (signature[:-1], signature + b"\0", b"\xc0" + bytes(47) + signature[48:], signature[:48] + bytes(32)):
        assert not is_signed(scheme, bad, scalars)


def test_no_scheme_has_a_key_that_is_none() -> None:
    for key in (b"", b"\xc0" + bytes(95), KEY[:-1]):
        with pytest.raises(MalformedError):
            Scheme(key, b"", 1)


@pytest.mark.parametrize("shown", [[], [0], [1, 2], [0, 1, 2]])
def test_proofs_without_pseudonym(shown: list[int]) -> None:
    scheme = Scheme(KEY, b"header", 3)
    scalars = scheme.scalars(MESSAGES)
    signed = Signed.of(scheme, sign(scheme, SECRET, MESSAGES), scalars)
    proof = prove(signed, shown, b"for this", randoms(N_RANDOMS + 3 - len(shown)))
    disclosed = [(index, scalars[index]) for index in shown]
    data = proof.to_draft()
    assert (proof.pseudonym, proof.U) == (b"", b"")
    assert is_proof(scheme, data, disclosed, b"for this")
    assert not is_proof(scheme, data, disclosed, b"for that")
    assert not is_proof(Scheme(KEY, b"another", 3), data, disclosed, b"for this")
    assert not is_proof(scheme, data[:-1], disclosed, b"for this")
    assert not is_proof(scheme, data + b"\0", disclosed, b"for this")
    assert not is_proof(scheme, data, [*disclosed, (3, 1)], b"for this")
    assert not is_proof(scheme, data, [(0, scalars[0]), (0, scalars[0])], b"for this")
    for start in range(0, len(data), 16):
        changed = bytearray(data)
        changed[start + 15] ^= 1
        assert not is_proof(scheme, bytes(changed), disclosed, b"for this")


def with_pseudonym() -> tuple[Scheme, Signed]:
    scheme = Scheme(KEY, b"header", 1, has_pseudonyms=True)
    blind, own, added, mask, *hiding = randoms(6)
    signature = blind_sign(scheme, SECRET, commit(scheme, blind, own, hiding), [b"seen"], added, mask)
    scalars = [*scheme.scalars([b"seen"]), blind, (own + added) % ORDER]
    assert is_signed(scheme, signature, scalars)
    return scheme, Signed.of(scheme, signature, scalars)


def test_proofs_with_a_pseudonym() -> None:
    scheme, signed = with_pseudonym()
    disclosed = [(0, signed.scalars[0])]
    proof = prove(signed, [0], b"for this", randoms(N_RANDOMS + 2), b"context")
    data = proof.to_draft()
    assert is_proof(scheme, data, disclosed, b"for this", b"context", proof.pseudonym)
    assert not is_proof(scheme, data, disclosed, b"for this", b"another", proof.pseudonym)
    assert not is_proof(scheme, data, disclosed, b"for this", b"context", proof.U)
    assert not is_proof(scheme, data, disclosed, b"for this", b"context", b"\xc0" + bytes(47))
    assert not is_proof(scheme, data, disclosed, b"for this")
    assert proof.pseudonym == weighted((scheme.point_of_context(b"context"), signed.scalars[-1])).compress()
    # Secrets that are claimed to be disclosed do not count as such.
    assert not is_proof(scheme, data, [*disclosed, (1, signed.scalars[1])], b"for this", b"context", proof.pseudonym)


def test_randomness_that_is_used_twice_gives_the_secret_away() -> None:
    _, signed = with_pseudonym()
    one, two = (prove(signed, [0], header, randoms(N_RANDOMS + 2), b"context") for header in (b"one", b"two"))

    def solved(a: Proof, b: Proof) -> int:
        return (a.responses[-1] - b.responses[-1]) * pow(a.challenge - b.challenge, -1, ORDER) % ORDER

    assert solved(one, two) == signed.scalars[-1]
    assert solved(one, prove(signed, [0], b"two", randoms(N_RANDOMS + 2, "others"), b"context")) != signed.scalars[-1]


def test_what_is_no_commitment_is_not_signed() -> None:
    scheme = Scheme(KEY, b"header", 1, has_pseudonyms=True)
    blind, own, added, *hiding = randoms(5)
    commitment = commit(scheme, blind, own, hiding)
    assert len(commitment) == 144
    changed = [commitment[:i] + bytes([commitment[i] ^ 1]) + commitment[i + 1 :] for i in (20, 47, 60, 100, 143)]
    for bad in (b"", commitment[:-1], commitment + b"\0", b"\xc0" + bytes(47) + commitment[48:], commitment[:112] + bytes(32), *changed):
        with pytest.raises(MalformedError):
            blind_sign(scheme, SECRET, bad, [b"seen"], added, 1)
