"""Tokens verified by a third implementation: the written equations on py_ecc."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from typing import Any

import pytest

from shoal.crypto.credentials.tokens import PresentedToken
from tests.support.tokens import ISSUER, SCOPE, person, presented, registered

_RECURSION_LIMIT = sys.getrecursionlimit()
ecc = pytest.importorskip(
    "py_ecc.optimized_bls12_381",
    reason="py_ecc (an oracle of the development environment) is not installed",
)
compression = pytest.importorskip("py_ecc.bls.point_compression")
hashing = pytest.importorskip("py_ecc.bls.hash_to_curve")
expansion = pytest.importorskip("py_ecc.bls.hash")
# py_ecc raises the limit. Deeply nested JSON in other tests would then overflow the stack.
sys.setrecursionlimit(_RECURSION_LIMIT)

API = b"BBS_BLS12381G1_XMD:SHA-256_SSWU_RO_H2G_HM2S_PSEUDONYM_"
P1 = int(
    "a8ce256102840821a3e94ea9025e4662b205762f9776b3a766c872b948f1fd225e7c59698588e70d11406d161b4e28c9",
    16,
)


def length(n: int) -> bytes:
    return n.to_bytes(8, "big")


def expanded(message: bytes, tag: bytes) -> bytes:
    return bytes(expansion.expand_message_xmd(message, tag, 48, hashlib.sha256))


def scalar(message: bytes, tag: bytes) -> int:
    return int.from_bytes(expanded(message, API + tag), "big") % ecc.curve_order


def hashed(message: bytes, tag: bytes) -> Any:
    return hashing.hash_to_G1(message, tag, hashlib.sha256)


def encoded(point: Any) -> bytes:
    return int(compression.compress_G1(point)).to_bytes(48, "big")


def decoded(data: bytes) -> Any:
    point = compression.decompress_G1(int.from_bytes(data, "big"))
    assert not ecc.is_inf(point)
    assert ecc.is_inf(ecc.multiply(point, ecc.curve_order))
    return point


@cache
def generators(n: int, api: bytes) -> list[Any]:
    state, found = expanded(api + b"MESSAGE_GENERATOR_SEED", api + b"SIG_GENERATOR_SEED_"), []
    for i in range(1, n + 1):
        state = expanded(state + length(i), api + b"SIG_GENERATOR_SEED_")
        found.append(hashed(state, api + b"SIG_GENERATOR_DST_"))
    return found


def total(*terms: tuple[Any, int]) -> Any:
    result = ecc.Z1
    for point, factor in terms:
        result = ecc.add(result, ecc.multiply(point, factor % ecc.curve_order))
    return result


def holds(one: PresentedToken, issuer_key: bytes, scope: bytes) -> bool:
    parts = [one.token[i : i + 48] for i in range(0, 336, 48)]
    N, Abar, Bbar, D, T1, T2, U = map(decoded, parts)
    e, r1, r3, blind, k = (
        int.from_bytes(one.token[i : i + 32], "big") for i in range(336, 496, 32)
    )
    Q1, H1 = generators(2, API)
    H2, H3 = generators(2, b"BLIND_" + API)
    bases = b"".join(map(encoded, (Q1, H1, H2, H3)))
    domain = scalar(issuer_key + length(3) + bases + API + length(len(scope)) + scope, b"H2S_")
    place = scalar(one.partition.to_bytes(4, "big"), b"MAP_MSG_TO_SCALAR_AS_HASH_")
    context = hashed(one.context, API)
    header = hashlib.sha256(
        b"shoal token 1\0" + length(len(one.context)) + one.context + one.message
    ).digest()
    shown = (
        length(1)
        + length(0)
        + place.to_bytes(32, "big")
        + b"".join(parts[1:6])
        + parts[0]
        + encoded(context)
        + parts[6]
    )
    c = scalar(shown + domain.to_bytes(32, "big") + length(32) + header, b"H2S_")
    Bv = total((compression.decompress_G1(P1), 1), (Q1, domain), (H1, place))
    if not (
        ecc.eq(T1, total((Bbar, c), (Abar, e), (D, r1)))
        and ecc.eq(T2, total((Bv, c), (D, r3), (H2, blind), (H3, k)))
        and ecc.eq(U, total((context, k), (N, -c)))
    ):
        return False
    W = compression.decompress_G2(
        (int.from_bytes(issuer_key[:48], "big"), int.from_bytes(issuer_key[48:], "big"))
    )
    left, right = (
        ecc.pairing(W, Abar, final_exponentiate=False),
        ecc.pairing(ecc.G2, ecc.neg(Bbar), final_exponentiate=False),
    )
    return bool(ecc.final_exponentiate(left * right) == ecc.FQ12.one())


def test_token_is_valid() -> None:
    assert holds(presented(person("one")), ISSUER.key, SCOPE)


def test_token_for_other_message_is_not_valid() -> None:
    good = presented(person("one"))
    assert not holds(
        PresentedToken(good.token, good.context, b"another", good.partition), ISSUER.key, SCOPE
    )


@pytest.mark.soak
@pytest.mark.parametrize("place", [0, 7, (1 << 32) - 1])
def test_more_tokens_are_valid(place: int) -> None:
    assert holds(
        presented(registered(f"at {place}", place=place), b"context", bytes(1000)),
        ISSUER.key,
        SCOPE,
    )
