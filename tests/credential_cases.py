"""A world of credentials, and what somebody can mint who has one and does not keep to the rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from py_arkworks_bls12381 import G1Point, Scalar

from shoal.crypto.bbs_proofs import challenge
from shoal.crypto.bls import ORDER, scalar_bytes
from shoal.crypto.credentials import Credential, Issuer, Registration
from shoal.crypto.tokens import Presented, Verifier, header_of, place_message, scheme_of
from shoal.entropy import SeededEntropy

FIELD = 0x1A0111EA397FE69A4B1BA7B6434BACD764774B84F38512BF6730D2A0F6B0F6241EABFFFEB153FFFFB9FEFFFFFFFFAAAB
SCOPE, OTHER_SCOPE = b"s" * 32, b"o" * 32
CONTEXT, MESSAGE, PLACE = b"study one, slot 3", b"an answer", 5
ISSUER, OTHER_ISSUER = Issuer.from_seed(bytes(range(32))), Issuer.from_seed(bytes(range(1, 33)))
NAMES = ("N", "Abar", "Bbar", "D", "T1", "T2", "U")
RESPONSES = ("e", "r1", "r3", "blind", "k")

THIRD = b"\x80" + bytes(47)
"""A point of the curve with x = 0, which has order 3."""


def registered(name: str, issuer: Issuer = ISSUER, scope: bytes = SCOPE, place: int = PLACE) -> Credential:
    """Somebody with a credential."""
    entropy = SeededEntropy(name)
    registration = Registration.draw(entropy)
    issued = issuer.issue(scope, registration.commitment(issuer.key, scope), place, entropy)
    return registration.accept(issuer.key, scope, issued)


@cache
def person(name: str) -> Credential:
    return registered(name)


@cache
def verifier() -> Verifier:
    return Verifier(ISSUER.key, SCOPE)


def presented(credential: Credential, context: bytes = CONTEXT, message: bytes = MESSAGE, seed: str = "mint") -> Presented:
    """A good token with all that it fits."""
    return Presented(credential.mint(context, message, SeededEntropy(seed)), context, message, credential.place)


def multiple(point: Any, scalar: int) -> Any:
    """A point times a whole number by doubling and adding, which is right also outside the subgroup."""
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
    """A point of the curve that is not of the subgroup, in its one form."""
    encoded = b"\x80" + bytes(46) + b"\x04"
    assert not G1Point.from_compressed_bytes_unchecked(encoded).is_in_subgroup()
    return encoded


@cache
def torsion() -> Any:
    """A point of the curve without any part in the subgroup, of an order that is no small number."""
    point = multiple(G1Point.from_compressed_bytes_unchecked(outside()), ORDER)
    assert all(multiple(point, small) != G1Point.identity() for small in (1, 3, 11, 33))
    return point


def mint(credential: Credential, change: Callable[[dict[str, Any]], None] = lambda points: None) -> Presented:
    """A token made by other code than ours, and on arkworks; its points can be changed before they are hashed.

    With ``k`` or any other part of the credential replaced it is what somebody mints whose credential does not say that.
    """
    scheme = scheme_of(credential.issuer_key, credential.scope)
    base, *bases = [G1Point.from_compressed_bytes(bytes(point.compress())) for point in (scheme.start, *scheme.bases)]
    place = scheme.scalars([place_message(credential.place)])[0]
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
    of_pseudonym = (encoded["N"], bytes(context.to_compressed_bytes()), encoded["U"])
    c = challenge(scheme, [(0, place)], shown, of_pseudonym, header_of(CONTEXT, MESSAGE))
    responses = (e_ + e * c, r1_ - r1 * c, r3_ - pow(r2, -1, ORDER) * c, blind_ + credential.blind * c, k_ + credential.k * c)
    token = b"".join(encoded.values()) + b"".join(map(scalar_bytes, responses))
    return Presented(token, CONTEXT, MESSAGE, credential.place)


def _where(name: str) -> tuple[int, int]:
    if name in NAMES:
        return 48 * NAMES.index(name), 48 * NAMES.index(name) + 48
    return 336 + 32 * RESPONSES.index(name), 368 + 32 * RESPONSES.index(name)


def part(one: Presented, name: str) -> bytes:
    """A point or a response of a token, by its name."""
    start, end = _where(name)
    return one.token[start:end]


def with_part(one: Presented, name: str, data: bytes) -> Presented:
    """The same with one point or response replaced."""
    start, end = _where(name)
    return replace(one, token=one.token[:start] + data + one.token[end:])
