"""Tokens: whoever has a credential shows so, once for every context, without showing which credential it is.

A token is a proof about a credential (`shoal.crypto.credentials`) in the form that is checked in batches:

=================  ==========================================================================================
bytes              what
=================  ==========================================================================================
48                 the pseudonym N: the same for one credential in one context, whatever the message
6 x 48             Abar, Bbar, D, T1, T2 and U of the proof
5 x 32             its responses, for e, r1, r3, the blind factor and the pseudonym's secret
=================  ==========================================================================================

It is bound to the issuer's key and the scope (the header that the credential is signed with), to the place (the one message that is
disclosed), to the context and to the message.

Notes
-----
With the challenge c, a token holds where ::

    T1 = c Bbar + e^ Abar + r1^ D
    T2 = c (P1 + domain Q1 + place H1) + r3^ D + blind^ H2 + k^ H3
    U  = k^ H(context) - c N
    e(Abar, W) = e(Bbar, P2)

All equations of all tokens of a batch, each times a fresh random weight of 128 bits, become one equation of two pairings. Where one of
them does not hold, that one holds with a probability of at most 2^-128. All points are of the subgroup of prime order, which is checked
one by one before: otherwise points of order 3 would pass every third time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from shoal.crypto.bbs import Scheme, number
from shoal.crypto.bbs_proofs import challenge_bytes
from shoal.crypto.bls import POINT_BYTES, SCALAR_BYTES, MalformedError, Point, arkworks, expand_message
from shoal.entropy import SystemEntropy
from shoal.errors import RemoteProtocolError

N_POINTS, N_RESPONSES = 7, 5
TOKEN_BYTES = N_POINTS * POINT_BYTES + N_RESPONSES * SCALAR_BYTES
PLACE_BYTES = 4
BATCH = 256
"""Tokens that are checked at once, at most."""

_POINTS_END = N_POINTS * POINT_BYTES
_HEADER = b"shoal token 1\x00"
_INFINITY = 0x40
_WEIGHT_BYTES = 16
_FEW, _MANY = 4, 16
"""So few are not bisected any more; where so many parts all have a bad one, neither is anything else."""


def pseudonym_of(token: bytes) -> bytes:
    """The pseudonym under which a token is shown."""
    return token[:POINT_BYTES]


def place_message(place: int) -> bytes:
    """The one message that an issuer signs and sees: the place."""
    return place.to_bytes(PLACE_BYTES, "big")


def header_of(context: bytes, message: bytes) -> bytes:
    """What a token's proof is shown for."""
    return hashlib.sha256(_HEADER + number(len(context)) + context + message).digest()


@lru_cache(maxsize=64)
def scheme_of(issuer_key: bytes, scope: bytes) -> Scheme:
    """How credentials of a scope are signed; `MalformedError` where the key is none."""
    return Scheme(issuer_key, scope, 1, has_pseudonyms=True)


@dataclass(frozen=True, slots=True)
class Presented:
    """A token with all that it must fit.

    Parameters
    ----------
    context, message
        What it must have been minted for.
    place
        What it must disclose.
    """

    token: bytes
    context: bytes
    message: bytes
    place: int


@dataclass(frozen=True, slots=True)
class _Claim:
    """A token that can be read: what must hold, in points and scalars of arkworks."""

    index: int
    context: Point
    place: Any
    points: list[Point] = field(repr=False)
    responses: list[Any] = field(repr=False)
    challenge: Any = field(repr=False)


class Verifier:
    """Checks tokens of one issuer and scope.

    Parameters
    ----------
    issuer_key
        96 bytes; ``TOKEN-001`` where they are no key.
    scope
        Of the credentials that count.
    """

    def __init__(self, issuer_key: bytes, scope: bytes) -> None:
        try:
            self._scheme = scheme_of(issuer_key, scope)
        except MalformedError:
            raise RemoteProtocolError("TOKEN-001", f"{len(issuer_key)} bytes are not the key of an issuer.") from None
        library = arkworks()
        self._group, self._scalar, self._pairs = library.G1Point, library.Scalar, library.GT.pairing_check
        self._keys = [library.G2Point.from_compressed_bytes(issuer_key), library.G2Point()]
        self._bases = [self._group.from_compressed_bytes(bytes(p.compress())) for p in (self._scheme.start, *self._scheme.bases)]
        self._entropy = SystemEntropy()
        self._point_of_context = lru_cache(maxsize=4096)(self._hashed)
        self._scalar_of_place = lru_cache(maxsize=4096)(self._mapped)

    def verify(self, one: Presented) -> None:
        """Refuse a token that is not valid for what it came with, by ``TOKEN-001``. The error does not say what is wrong with it."""
        if not all(self.verify_many([one])):
            raise RemoteProtocolError(
                "TOKEN-001",
                f"A token of {len(one.token)} bytes is not valid for what it came with.",
                why="It is of another issuer, study, slot, place or packet, or not a token.",
            )

    def verify_many(self, many: Sequence[Presented]) -> list[bool]:
        """Which tokens are valid; the verdict on each is the same as if it came alone."""
        verdicts = [False] * len(many)
        for start in range(0, len(many), BATCH):
            claims = []
            for index in range(start, min(start + BATCH, len(many))):
                try:
                    claims.append(self._read(index, many[index]))
                except MalformedError:
                    continue
            for claim in self._good(claims):
                verdicts[claim.index] = True
        return verdicts

    def _read(self, index: int, one: Presented) -> _Claim:
        """A token's points, each in the subgroup, its scalars and its challenge; `MalformedError` for anything else."""
        token = one.token
        if len(token) != TOKEN_BYTES or not 0 <= one.place < 1 << 8 * PLACE_BYTES:
            raise MalformedError("length")
        try:
            responses = [self._scalar.from_be_bytes(token[i : i + SCALAR_BYTES]) for i in range(_POINTS_END, TOKEN_BYTES, SCALAR_BYTES)]
        except ValueError:
            raise MalformedError("scalar") from None
        if any(response.is_zero() for response in responses):
            raise MalformedError("zero")
        encoded = [token[i : i + POINT_BYTES] for i in range(0, _POINTS_END, POINT_BYTES)]
        points = [self._point(data) for data in encoded]
        base, base_bytes = self._point_of_context(one.context)
        scalar = self._scalar_of_place(one.place)
        N, *shown, U = encoded
        hashed = challenge_bytes(self._scheme, [(0, int(scalar))], shown, (N, base_bytes, U), header_of(one.context, one.message))
        c = self._scalar.from_be_bytes_mod_order(expand_message(hashed, self._scheme.tag, 48))
        return _Claim(index, base, scalar, points, responses, c)

    def _point(self, data: bytes) -> Point:
        """A point in its one form, of the subgroup and not the identity."""
        if data[0] & _INFINITY:
            raise MalformedError("identity")
        try:
            return self._group.from_compressed_bytes(data)
        except ValueError:
            raise MalformedError("point") from None

    def _good(self, claims: list[_Claim]) -> Iterator[_Claim]:
        """Those that hold: all at once, and where that fails in halves, until none or a few are left."""
        groups = [claims] if claims else []
        while groups:
            failing = []
            for group in groups:
                if self._holds(group):
                    yield from group
                elif len(group) > 1:
                    failing.append(group)
            is_flood = len(groups) >= _MANY and len(failing) == len(groups)
            groups = [part for group in failing for part in _parts(group, is_flood)]

    def _holds(self, group: list[_Claim]) -> bool:
        """Whether all equations of all claims hold, by one equation with random weights."""
        zero = self._scalar(0)
        of_bases = [zero] * 4
        contexts: dict[Point, Any] = {}
        points: list[Point] = []
        weights: list[Any] = []
        left: list[Any] = []
        for claim, (a, b, g, d) in zip(group, self._weights(len(group)), strict=True):
            e, r1, r3, blind, k = claim.responses
            c = claim.challenge
            bc, gk = b * c, g * k
            points += claim.points
            # In the order N, Abar, Bbar, D, T1, T2, U. The last three stay short, which halves their cost.
            weights += (g * c, -(a * e), -(a * c + d), -(a * r1 + b * r3), a, b, g)
            left.append(d)
            for i, term in enumerate((bc, bc * claim.place, b * blind, b * k)):
                of_bases[i] = of_bases[i] + term
            contexts[claim.context] = contexts.get(claim.context, zero) + gk
        points += (*self._bases, *contexts)
        weights += (-weight for weight in (*of_bases, *contexts.values()))
        sums = [self._group.multiexp_unchecked(points[1 : N_POINTS * len(group) : N_POINTS], left)]
        sums.append(self._group.multiexp_unchecked(points, weights))
        return bool(self._pairs(sums, self._keys))

    def _weights(self, n: int) -> Iterator[tuple[Any, Any, Any, Any]]:
        """Four fresh weights of 128 bits for each of ``n`` tokens."""
        drawn = self._entropy.bytes(4 * n * _WEIGHT_BYTES)
        zeros = bytes(SCALAR_BYTES - _WEIGHT_BYTES)
        scalars = (self._scalar.from_be_bytes(zeros + drawn[i : i + _WEIGHT_BYTES]) for i in range(0, len(drawn), _WEIGHT_BYTES))
        return zip(scalars, scalars, scalars, scalars, strict=True)

    def _hashed(self, context: bytes) -> tuple[Point, bytes]:
        point = self._group.hash_to_curve(context, self._scheme.api)
        return point, bytes(point.to_compressed_bytes())

    def _mapped(self, place: int) -> Any:
        (scalar,) = self._scheme.scalars([place_message(place)])
        return self._scalar(scalar)


def _parts(group: list[_Claim], is_flood: bool) -> list[list[_Claim]]:
    if is_flood or len(group) <= _FEW:
        return [[claim] for claim in group]
    half = len(group) // 2
    return [group[:half], group[half:]]
