"""Credentials and tokens: valid ones, and ones that only a cheating holder would mint.

Only `shoal.crypto` and arkworks are needed here; `tests.support.credentials` has studies with
tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from py_arkworks_bls12381 import G1Point, Scalar

from shoal.crypto.credentials.bbs import compute_challenge
from shoal.crypto.credentials.bls import ORDER, encode_scalar
from shoal.crypto.credentials.issuance import Credential, Issuer, Registration
from shoal.crypto.credentials.tokens import (
    PresentedToken,
    TokenVerifier,
    encode_partition,
    make_proof_header,
    make_scheme,
)
from shoal.entropy import SeededEntropy

FIELD = int(
    "1A0111EA397FE69A4B1BA7B6434BACD764774B84F38512BF6730D2A0F6B0F624"
    "1EABFFFEB153FFFFB9FEFFFFFFFFAAAB",
    16,
)
SCOPE, OTHER_SCOPE = b"s" * 32, b"o" * 32
CONTEXT, MESSAGE, PLACE = b"study one, slot 3", b"an answer", 5
ISSUER, OTHER_ISSUER = Issuer.from_seed(bytes(range(32))), Issuer.from_seed(bytes(range(1, 33)))
NAMES = ("N", "Abar", "Bbar", "D", "T1", "T2", "U")
RESPONSES = ("e", "r1", "r3", "blind", "k")

THIRD = b"\x80" + bytes(47)
"""A point of the curve with x = 0, which has order 3."""


def registered(
    name: str, issuer: Issuer = ISSUER, scope: bytes = SCOPE, place: int = PLACE
) -> Credential:
    """Return the credential of a registered person."""
    entropy = SeededEntropy(name)
    registration = Registration.draw(entropy)
    issued = issuer.issue(scope, registration.make_commitment(issuer.key, scope), place, entropy)
    return registration.accept(issuer.key, scope, issued)


@cache
def person(name: str) -> Credential:
    return registered(name)


@cache
def verifier() -> TokenVerifier:
    return TokenVerifier(ISSUER.key, SCOPE)


def presented(
    credential: Credential, context: bytes = CONTEXT, message: bytes = MESSAGE, seed: str = "mint"
) -> PresentedToken:
    """Return a valid token with its context, message and partition."""
    return PresentedToken(
        credential.mint(context, message, SeededEntropy(seed)),
        context,
        message,
        credential.partition,
    )


def multiple(point: Any, scalar: int) -> Any:
    """Return a point times an integer by doubling and adding.

    It is also right outside the subgroup.
    """
    total = G1Point.identity()
    for bit in bin(scalar)[2:]:
        total = total + total
        if bit == "1":
            total = total + point
    return total


def third() -> Any:
    return G1Point.from_compressed_bytes_unchecked(THIRD)


@cache
def outside() -> bytes:
    """Return a point of the curve outside the subgroup, in canonical form."""
    encoded = b"\x80" + bytes(46) + b"\x04"
    assert not G1Point.from_compressed_bytes_unchecked(encoded).is_in_subgroup()
    return encoded


@cache
def torsion() -> Any:
    """Return a point without a component in the subgroup, of large order."""
    point = multiple(G1Point.from_compressed_bytes_unchecked(outside()), ORDER)
    assert all(multiple(point, small) != G1Point.identity() for small in (1, 3, 11, 33))
    return point


def mint(
    credential: Credential, change: Callable[[dict[str, Any]], None] = lambda points: None
) -> PresentedToken:
    """Mint a token with other code than the source's, on arkworks.

    ``change`` may change its points before they are hashed. With ``k`` or another part of the
    credential replaced, it is the token of a holder with another credential than it claims.
    """
    scheme = make_scheme(credential.issuer_key, credential.scope)
    base, *bases = [
        G1Point.from_compressed_bytes(bytes(point.compress()))
        for point in (scheme.domain_point, *scheme.bases)
    ]
    place = scheme.messages_to_scalars([encode_partition(credential.partition)])[0]
    signed = (place, credential.blind, credential.k)
    A = G1Point.from_compressed_bytes(credential.signature[:48])
    e = int.from_bytes(credential.signature[48:], "big")
    entropy = SeededEntropy("minted otherwise")
    r1, r2, e_, r1_, r3_, blind_, k_ = (1 + entropy.below(ORDER - 1) for _ in range(7))

    def times(*terms: tuple[Any, int]) -> Any:
        total = G1Point.identity()
        for point, scalar in terms:
            total = total + point * Scalar(scalar % ORDER)
        return total

    D = times((times(*zip(bases, signed, strict=True)) + base, r2))
    Abar = times((A, r1 * r2))
    context = G1Point.hash_to_curve(CONTEXT, scheme.api)
    points = {
        "N": times((context, credential.k)),
        "Abar": Abar,
        "Bbar": times((D, r1), (Abar, -e)),
        "D": D,
        "T1": times((Abar, e_), (D, r1_)),
        "T2": times((D, r3_), (bases[1], blind_), (bases[2], k_)),
        "U": times((context, k_)),
    }
    change(points)
    encoded = {name: bytes(points[name].to_compressed_bytes()) for name in NAMES}
    shown = [encoded[name] for name in NAMES[1:6]]
    pseudonym_points = (encoded["N"], bytes(context.to_compressed_bytes()), encoded["U"])
    c = compute_challenge(
        scheme, [(0, place)], shown, pseudonym_points, make_proof_header(CONTEXT, MESSAGE)
    )
    responses = (
        e_ + e * c,
        r1_ - r1 * c,
        r3_ - pow(r2, -1, ORDER) * c,
        blind_ + credential.blind * c,
        k_ + credential.k * c,
    )
    token = b"".join(encoded.values()) + b"".join(map(encode_scalar, responses))
    return PresentedToken(token, CONTEXT, MESSAGE, credential.partition)


def _where(name: str) -> tuple[int, int]:
    if name in NAMES:
        return 48 * NAMES.index(name), 48 * NAMES.index(name) + 48
    return 336 + 32 * RESPONSES.index(name), 368 + 32 * RESPONSES.index(name)


def part(one: PresentedToken, name: str) -> bytes:
    """Return a point or a response of a token by its name."""
    start, end = _where(name)
    return one.token[start:end]


def with_part(one: PresentedToken, name: str, data: bytes) -> PresentedToken:
    """Return the token with one point or response replaced."""
    start, end = _where(name)
    return replace(one, token=one.token[:start] + data + one.token[end:])
