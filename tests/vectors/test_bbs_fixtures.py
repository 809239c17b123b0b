"""The fixtures of the BBS drafts.

Every verdict, commitment, signature, domain, pseudonym and proof must agree byte for byte. The
fixtures are read from ``../shared/vectors``, which is not part of this project.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.crypto.credentials.bbs import (
    BBSScheme,
    ParsedSignature,
    blind_sign,
    commit,
    is_valid_signature,
    make_public_key,
    prove,
)
from shoal.crypto.credentials.bls import encode_scalar
from tests.support.crypto import encode_draft, is_valid_proof, sign

FIXTURES = Path(__file__).parents[2] / "../shared/vectors"

pytestmark = pytest.mark.skipif(
    not (FIXTURES / "bbssig001.json").is_file(),
    reason="the fixtures of the BBS drafts are not in ../shared/vectors",
)


def read_fixture(name: str) -> Any:
    return json.loads((FIXTURES / f"{name}.json").read_text())


def decode_hex(values: list[str]) -> list[bytes]:
    return [bytes.fromhex(value) for value in values]


@pytest.mark.parametrize("number", range(1, 11))
def test_signature_agrees_with_bbs_fixture(number: int) -> None:
    case = read_fixture(f"bbssig{number:03}")
    keys, messages = case["signerKeyPair"], decode_hex(case["messages"])
    secret = int(keys["secretKey"], 16)
    scheme = BBSScheme(
        bytes.fromhex(keys["publicKey"]), bytes.fromhex(case["header"]), len(messages)
    )
    signature = bytes.fromhex(case["signature"])
    assert (
        is_valid_signature(scheme, signature, scheme.messages_to_scalars(messages))
        is case["result"]["valid"]
    )
    if case["result"]["valid"]:
        assert make_public_key(secret).hex() == keys["publicKey"]
        assert encode_scalar(scheme.domain).hex() == case["trace"]["domain"]
        assert (
            scheme.compute_signed_point(scheme.messages_to_scalars(messages)).compress().hex()
            == case["trace"]["B"]
        )
        assert sign(scheme, secret, messages) == signature


@pytest.mark.parametrize("number", range(1, 16))
def test_proof_agrees_with_bbs_fixture(number: int) -> None:
    case = read_fixture(f"bbsproof{number:03}")
    messages, shown = decode_hex(case["messages"]), case["disclosedIndexes"]
    scheme = BBSScheme(
        bytes.fromhex(case["signerPublicKey"]), bytes.fromhex(case["header"]), len(messages)
    )
    scalars, header = (
        scheme.messages_to_scalars(messages),
        bytes.fromhex(case["presentationHeader"]),
    )
    assert (
        is_valid_proof(
            scheme, bytes.fromhex(case["proof"]), [(i, scalars[i]) for i in shown], header
        )
        is case["result"]["valid"]
    )
    if case["result"]["valid"]:
        drawn = case["trace"]["random_scalars"]
        names = ("r1", "r2", "e_tilde", "r1_tilde", "r3_tilde")
        randoms = [
            int(value, 16)
            for value in (*(drawn[name] for name in names), *drawn["m_tilde_scalars"])
        ]
        proof = prove(
            ParsedSignature.parse(scheme, bytes.fromhex(case["signature"]), scalars),
            shown,
            header,
            randoms,
        )
        assert [point.hex() for point in proof.points] == [
            case["trace"][name] for name in ("A_bar", "B_bar", "D", "T1", "T2")
        ]
        assert encode_draft(proof).hex() == case["proof"]


def test_pseudonym_agrees_with_bbs_fixture() -> None:
    signed, committed, shown = (
        read_fixture(name) for name in ("nymSignature001", "nym_commit001", "nymProof001")
    )
    messages = decode_hex(read_fixture("messages"))
    scheme = BBSScheme(
        bytes.fromhex(signed["signerKeyPair"]["publicKey"]),
        bytes.fromhex(signed["header"]),
        10,
        has_pseudonyms=True,
    )
    assert encode_scalar(scheme.domain).hex() == signed["trace"]["domain"]
    assert scheme.base_bytes[-2].hex() == signed["trace"]["Q_2"]
    blind, own = int(committed["proverBlind"], 16), int(committed["proverNym"], 16)
    hiding = [
        int(value, 16) for value in (committed["trace"]["s_tilde"], *committed["trace"]["m_tildes"])
    ]
    commitment = commit(scheme, blind, own, hiding)
    assert commitment.hex() == committed["commitmentWithProof"]
    secret, added = (
        int(signed["signerKeyPair"]["secretKey"], 16),
        int(signed["signer_nym_entropy"], 16),
    )
    for mask in (1, 12345):
        assert (
            blind_sign(scheme, secret, commitment, messages, added, mask).hex()
            == signed["signature"]
        )
    scalars = [*scheme.messages_to_scalars(messages), blind, int(signed["nym_secret"], 16)]
    assert [encode_scalar(scalar).hex() for scalar in scalars] == shown["trace"]["msg_scalars"]
    assert is_valid_signature(scheme, bytes.fromhex(signed["signature"]), scalars)
    drawn = shown["trace"]["randomScalars"]
    names = ("r1", "r2", "eTilde", "r1Tilde", "r3Tilde")
    randoms = [
        int(value, 16) for value in (*(drawn[name] for name in names), *drawn["m_tilde_scalars"])
    ]
    context, header, indices = (
        bytes.fromhex(shown["context_id"]),
        bytes.fromhex(shown["presentationHeader"]),
        shown["disclosedIndexes"],
    )
    proof = prove(
        ParsedSignature.parse(scheme, bytes.fromhex(shown["signature"]), scalars),
        indices,
        header,
        randoms,
        context,
    )
    assert proof.pseudonym.hex() == shown["pseudonym"]
    assert proof.U.hex() == shown["trace"]["Ut"]
    assert encode_draft(proof).hex() == shown["proof"]
    disclosed = [(index, scalars[index]) for index in indices]
    assert is_valid_proof(scheme, encode_draft(proof), disclosed, header, context, proof.pseudonym)
    assert not is_valid_proof(
        scheme, encode_draft(proof), disclosed, header, context + b"!", proof.pseudonym
    )
