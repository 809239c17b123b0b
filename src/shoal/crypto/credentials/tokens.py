"""Mint one-time tokens and verify them in batches.

A token proves that its holder has a credential (`shoal.crypto.credentials.issuance`) without
revealing which. The coordinator's packet intake and DDML's admission verify tokens. A token has:

- 48 bytes: the pseudonym N, the same for one credential in one context with any message.
- 6 x 48 bytes: Abar, Bbar, D, T1, T2 and U of the proof.
- 5 x 32 bytes: its responses, for e, r1, r3, the blind factor and the pseudonym's secret.

It is bound to the issuer's key and the scope (the header that the credential is signed with), to
the partition (the one disclosed message), to the context and to the message.

Notes
-----
With the challenge c, a token is valid if ::

    T1 = c Bbar + e^ Abar + r1^ D
    T2 = c (P1 + domain Q1 + partition H1) + r3^ D + blind^ H2 + k^ H3
    U  = k^ H(context) - c N
    e(Abar, W) = e(Bbar, P2)

All equations of all tokens of a batch, each multiplied by a fresh random weight of 128 bits, become
one equation of two pairings. If one of them is false, that one equation is true with a probability
of at most 2^-128. All points must be in the subgroup of prime order. This is checked for each point
first: otherwise points of order 3 would pass in one of three cases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from shoal.crypto.credentials.bbs import BBSScheme, encode_challenge, encode_number
from shoal.crypto.credentials.bls import (
    POINT_BYTES,
    SCALAR_BYTES,
    MalformedError,
    Point,
    expand_message,
    load_arkworks,
)
from shoal.entropy import SystemEntropy
from shoal.errors import RemoteProtocolError

N_POINTS, N_RESPONSES = 7, 5
TOKEN_BYTES = N_POINTS * POINT_BYTES + N_RESPONSES * SCALAR_BYTES
PARTITION_BYTES = 4
BATCH_SIZE = 256
"""Largest number of tokens that are verified together."""

_POINTS_END = N_POINTS * POINT_BYTES
_HEADER = b"shoal token 1\x00"
_INFINITY = 0x40
_WEIGHT_BYTES = 16
_MAX_UNBISECTED_SIZE = 4
"""Tokens of a group up to which it is not bisected: each of them is verified alone."""
_FLOOD_GROUPS = 16
"""Number of groups from which on none is bisected if all of them have an invalid token.

Such a batch is a flood of invalid tokens.
"""


def read_pseudonym(token: bytes) -> bytes:
    """Return the pseudonym in a token."""
    return token[:POINT_BYTES]


def encode_partition(partition: int) -> bytes:
    """Return the one message that an issuer sees and signs: the partition."""
    return partition.to_bytes(PARTITION_BYTES, "big")


def make_proof_header(context: bytes, message: bytes) -> bytes:
    """Return the presentation header of a token's proof."""
    return hashlib.sha256(_HEADER + encode_number(len(context)) + context + message).digest()


@lru_cache(maxsize=64)
def make_scheme(issuer_key: bytes, scope: bytes) -> BBSScheme:
    """Return the signature scheme of a scope; raise `MalformedError` for an invalid key."""
    return BBSScheme(issuer_key, scope, 1, has_pseudonyms=True)


@dataclass(frozen=True, slots=True)
class PresentedToken:
    """A token and the values it must be valid for.

    Parameters
    ----------
    context, message
        For which it must have been minted.
    partition
        Which it must disclose.
    """

    token: bytes
    context: bytes
    message: bytes
    partition: int


@dataclass(frozen=True, slots=True)
class _TokenClaim:
    """A parsed token: the points and scalars of its equations, for arkworks."""

    index: int
    context: Point
    partition: Any
    points: list[Point] = field(repr=False)
    responses: list[Any] = field(repr=False)
    challenge: Any = field(repr=False)


class TokenVerifier:
    """Verifier of tokens of one issuer and scope.

    Parameters
    ----------
    issuer_key
        96 bytes; ``TOKEN-001`` if the key is not valid.
    scope
        Of the accepted credentials.
    """

    def __init__(self, issuer_key: bytes, scope: bytes) -> None:
        try:
            self._scheme = make_scheme(issuer_key, scope)
        except MalformedError:
            raise RemoteProtocolError(
                "TOKEN-001", f"An issuer key of {len(issuer_key)} bytes is not valid."
            ) from None
        library = load_arkworks()
        self._group, self._scalar, self._check_pairing = (
            library.G1Point,
            library.Scalar,
            library.GT.pairing_check,
        )
        self._keys = [library.G2Point.from_compressed_bytes(issuer_key), library.G2Point()]
        self._bases = [
            self._group.from_compressed_bytes(bytes(p.compress()))
            for p in (self._scheme.domain_point, *self._scheme.bases)
        ]
        self._entropy = SystemEntropy()
        self._cached_context_point = lru_cache(maxsize=4096)(self._hash_context)
        self._cached_partition_scalar = lru_cache(maxsize=4096)(self._map_partition)

    def verify(self, presented: PresentedToken) -> None:
        """Raise ``TOKEN-001`` if a token is not valid for its context, message and partition.

        The error does not say what is wrong with the token.
        """
        if not all(self.verify_many([presented])):
            raise RemoteProtocolError(
                "TOKEN-001",
                f"A token of {len(presented.token)} bytes is not valid for this packet.",
                why="It is of another issuer, study, slot, partition or packet, or malformed.",
            )

    def verify_many(self, many: Sequence[PresentedToken]) -> list[bool]:
        """Return whether each token is valid; the verdict on each is as if it came alone."""
        verdicts = [False] * len(many)
        for start in range(0, len(many), BATCH_SIZE):
            claims = []
            for index in range(start, min(start + BATCH_SIZE, len(many))):
                try:
                    claims.append(self._parse_token(index, many[index]))
                except MalformedError:
                    continue
            for claim in self._find_valid(claims):
                verdicts[claim.index] = True
        return verdicts

    def _parse_token(self, index: int, presented: PresentedToken) -> _TokenClaim:
        """Return a token's points, each in the subgroup, its scalars and its challenge.

        Raise `MalformedError` for any other bytes.
        """
        token = presented.token
        if len(token) != TOKEN_BYTES or not 0 <= presented.partition < 1 << 8 * PARTITION_BYTES:
            raise MalformedError("length")
        try:
            responses = [
                self._scalar.from_be_bytes(token[i : i + SCALAR_BYTES])
                for i in range(_POINTS_END, TOKEN_BYTES, SCALAR_BYTES)
            ]
        except ValueError:
            raise MalformedError("scalar") from None
        if any(response.is_zero() for response in responses):
            raise MalformedError("zero")
        encoded = [token[i : i + POINT_BYTES] for i in range(0, _POINTS_END, POINT_BYTES)]
        points = [self._decode_point(data) for data in encoded]
        base, base_bytes = self._cached_context_point(presented.context)
        scalar = self._cached_partition_scalar(presented.partition)
        N, *shown, U = encoded
        hashed = encode_challenge(
            self._scheme,
            [(0, int(scalar))],
            shown,
            (N, base_bytes, U),
            make_proof_header(presented.context, presented.message),
        )
        c = self._scalar.from_be_bytes_mod_order(expand_message(hashed, self._scheme.tag, 48))
        return _TokenClaim(index, base, scalar, points, responses, c)

    def _decode_point(self, data: bytes) -> Point:
        """Return a point in canonical form, in the subgroup and not the identity."""
        if data[0] & _INFINITY:
            raise MalformedError("identity")
        try:
            return self._group.from_compressed_bytes(data)
        except ValueError:
            raise MalformedError("point") from None

    def _find_valid(self, claims: list[_TokenClaim]) -> Iterator[_TokenClaim]:
        """Yield the valid claims: check all together, and on failure bisect.

        Small groups are not bisected, but checked one by one.
        """
        groups = [claims] if claims else []
        while groups:
            failing = []
            for group in groups:
                if self._are_valid(group):
                    yield from group
                elif len(group) > 1:
                    failing.append(group)
            is_flood = len(groups) >= _FLOOD_GROUPS and len(failing) == len(groups)
            groups = [part for group in failing for part in _split_group(group, is_flood)]

    def _are_valid(self, group: list[_TokenClaim]) -> bool:
        """Return whether all claims are valid, by one equation with random weights."""
        zero = self._scalar(0)
        base_weights = [zero] * 4
        contexts: dict[Point, Any] = {}
        points: list[Point] = []
        weights: list[Any] = []
        left: list[Any] = []
        for claim, (a, b, g, d) in zip(group, self._draw_weights(len(group)), strict=True):
            e, r1, r3, blind, k = claim.responses
            c = claim.challenge
            bc, gk = b * c, g * k
            points += claim.points
            # In the order N, Abar, Bbar, D, T1, T2, U. The last three weights stay short, which
            # halves their cost.
            weights += (g * c, -(a * e), -(a * c + d), -(a * r1 + b * r3), a, b, g)
            left.append(d)
            for i, term in enumerate((bc, bc * claim.partition, b * blind, b * k)):
                base_weights[i] = base_weights[i] + term
            contexts[claim.context] = contexts.get(claim.context, zero) + gk
        points += (*self._bases, *contexts)
        weights += (-weight for weight in (*base_weights, *contexts.values()))
        sums = [self._group.multiexp_unchecked(points[1 : N_POINTS * len(group) : N_POINTS], left)]
        sums.append(self._group.multiexp_unchecked(points, weights))
        return bool(self._check_pairing(sums, self._keys))

    def _draw_weights(self, n: int) -> Iterator[tuple[Any, Any, Any, Any]]:
        """Yield four fresh weights of 128 bits for each of ``n`` tokens."""
        drawn = self._entropy.bytes(4 * n * _WEIGHT_BYTES)
        zeros = bytes(SCALAR_BYTES - _WEIGHT_BYTES)
        scalars = (
            self._scalar.from_be_bytes(zeros + drawn[i : i + _WEIGHT_BYTES])
            for i in range(0, len(drawn), _WEIGHT_BYTES)
        )
        return zip(scalars, scalars, scalars, scalars, strict=True)

    def _hash_context(self, context: bytes) -> tuple[Point, bytes]:
        point = self._group.hash_to_curve(context, self._scheme.api)
        return point, bytes(point.to_compressed_bytes())

    def _map_partition(self, partition: int) -> Any:
        (scalar,) = self._scheme.messages_to_scalars([encode_partition(partition)])
        return self._scalar(scalar)


def _split_group(group: list[_TokenClaim], is_flood: bool) -> list[list[_TokenClaim]]:
    if is_flood or len(group) <= _MAX_UNBISECTED_SIZE:
        return [[claim] for claim in group]
    half = len(group) // 2
    return [group[:half], group[half:]]
