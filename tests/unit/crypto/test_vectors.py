"""The vectors of secure sums, replayed from the file."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

import numpy as np
import pytest

from shoal.crypto.hpke import open_box
from shoal.crypto.secagg.context import MemberPublicKeys, RoundContext, digest_key_list
from shoal.crypto.secagg.key_agreement import derive_public_key
from shoal.crypto.secagg.key_shares import MemberSecrets, check_revealed_share, derive_public_keys
from shoal.crypto.secagg.masking import mask_vector
from shoal.errors import RemoteProtocolError
from tests.support.crypto import agree_key, expand_mask, recombine_secret
from tools.vectors.base import DIRECTORY

FILE: dict[str, Any] = json.loads((DIRECTORY / "crypto.json").read_text())
PRIME = 65_521


def untagged(value: Any) -> Any:
    return int(value["int"]) if "int" in value else bytes.fromhex(value["bytes"])


CONTEXT = RoundContext(**{name: untagged(part) for name, part in FILE["context"].items()})
KEYS = {
    int(member): MemberPublicKeys(*map(bytes.fromhex, case["keys"]))
    for member, case in FILE["members"].items()
}


def encoded(*parts: int | bytes) -> bytes:
    return b"".join(
        b"i" + part.to_bytes(8, "big")
        if isinstance(part, int)
        else b"b" + len(part).to_bytes(8, "big") + part
        for part in parts
    )


def bound(context: dict[str, Any], purpose: str, *parts: int | bytes) -> bytes:
    fields = [untagged(context[name]) for name in ("study", "roster", "round", "query")]
    return b"shoal secure sum 1\0" + encoded(*fields, purpose.encode(), *parts)


def hkdf(secret: bytes, info: bytes) -> bytes:
    return hmac.digest(hmac.digest(bytes(32), secret, hashlib.sha256), info + b"\1", hashlib.sha256)


@pytest.mark.parametrize("case", FILE["bound"])
def test_bound_bytes_match_vectors(case: dict[str, Any]) -> None:
    parts = [untagged(part) for part in case["parts"]]
    assert bound(case["context"], case["purpose"], *parts).hex() == case["hex"]
    context = RoundContext(**{name: untagged(part) for name, part in case["context"].items()})
    assert context.bind(case["purpose"], *parts).hex() == case["hex"]


@pytest.mark.parametrize("case", FILE["shares"])
def test_shares_give_their_secret(case: dict[str, Any]) -> None:
    shares, t = [bytes.fromhex(share) for share in case["shares"]], case["threshold"]
    assert recombine_secret(dict(enumerate(shares)), t).hex() == case["secret"]
    points = range(len(shares) - t + 1, len(shares) + 1)
    secret = 0
    for limb in range(18):
        value = 0
        for point in points:
            weight = 1
            for other in points:
                if other != point:
                    weight = weight * other * pow(other - point, -1, PRIME) % PRIME
            value += weight * int.from_bytes(shares[point - 1][2 * limb : 2 * limb + 2], "little")
        secret |= value % PRIME << 15 * limb
    assert secret.to_bytes(32, "little").hex() == case["secret"]


@pytest.mark.parametrize("case", FILE["no_shares"], ids=lambda case: case["name"])
def test_malformed_shares_are_rejected(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        recombine_secret(
            {int(holder): bytes.fromhex(share) for holder, share in case["shares"].items()},
            case["threshold"],
        )
    assert caught.value.code == case["code"]


def test_keys_and_streams_match_vectors() -> None:
    private, public, info, key = (
        bytes.fromhex(FILE["agreed"][name]) for name in ("private", "public", "info", "key")
    )
    assert agree_key(private, public, info) == key
    for case in FILE["streams"]:
        assert expand_mask(bytes.fromhex(case["key"]), 5).tolist() == [
            int(number) for number in case["numbers"]
        ]
    for public in map(bytes.fromhex, FILE["no_keys"]):
        with pytest.raises(RemoteProtocolError):
            agree_key(private, public, info)


def test_sealed_box_opens() -> None:
    private, info, box, plain = (
        bytes.fromhex(FILE["box"][name]) for name in ("private", "info", "hex", "plain")
    )
    assert open_box(private, box, info) == plain


@pytest.mark.parametrize("member", KEYS)
def test_keys_and_masked_numbers_match_vectors(member: int) -> None:
    case = FILE["members"][str(member)]
    secrets = MemberSecrets(*map(bytes.fromhex, case["secrets"]))
    assert derive_public_keys(secrets, CONTEXT, member) == KEYS[member]
    assert KEYS[member].mask == derive_public_key(secrets.mask)
    assert KEYS[member].box == derive_public_key(secrets.box)
    assert (
        KEYS[member].commitment
        == hashlib.sha256(bound(FILE["context"], "seed", member, secrets.own)).digest()
    )
    values = np.array(FILE["values"], np.int64)
    masked = [int(word) for word in case["masked"]]
    assert mask_vector(values, secrets, CONTEXT, member, KEYS).tolist() == masked
    keys = [(hkdf(secrets.own, bound(FILE["context"], "own mask", member)), 1)]
    for other in KEYS.keys() - {member}:
        low, high = sorted((member, other))
        info = bound(FILE["context"], "pair", low, high, KEYS[low].mask, KEYS[high].mask)
        keys.append((agree_key(secrets.mask, KEYS[other].mask, info), 1 if member < other else -1))
    expected = [
        (value + sum(sign * int(expand_mask(key, 4)[i]) for key, sign in keys)) % 2**64
        for i, value in enumerate(FILE["values"])
    ]
    assert masked == expected


def test_key_list_and_statements_match_vectors() -> None:
    parts = [part for member in sorted(KEYS) for part in (member, *KEYS[member])]
    assert (
        hashlib.sha256(bound(FILE["context"], "list of keys", *parts)).hexdigest()
        == FILE["list_digest"]
    )
    assert digest_key_list(CONTEXT, KEYS).hex() == FILE["list_digest"]
    survivors, dealt = (
        b"".join(member.to_bytes(4, "big") for member in members) for members in ((0, 3), (0, 1, 3))
    )
    assert (
        bound(FILE["context"], "survivors", survivors, dealt).hex()
        == FILE["statements"]["survivors"]
    )
    statement = bytes.fromhex(FILE["statements"]["box"])
    assert statement.startswith(
        bound(FILE["context"], "box statement", 0, 3, bytes.fromhex(FILE["list_digest"]), b"box")
    )


def test_commitment_of_shares_matches_vectors() -> None:
    case = FILE["kept"]
    plain, commitment = bytes.fromhex(case["plain"]), bytes.fromhex(case["commitment"])
    own, other = hashlib.sha256(plain[:36]).digest(), hashlib.sha256(plain[36:]).digest()
    assert (
        hashlib.sha256(
            bound(FILE["context"], "shares", case["dealer"], case["holder"], own, other)
        ).digest()
        == commitment
    )
    assert bytes.fromhex(case["own"]) == plain[:36] + other
    assert bytes.fromhex(case["mask"]) == plain[36:] + own
    for which in ("own", "mask"):
        check_revealed_share(
            CONTEXT, case["dealer"], case["holder"], which, bytes.fromhex(case[which]), commitment
        )
