"""Showing a BBS signature without showing it: some messages are disclosed, the rest stays hidden, and a pseudonym may go with it.

A proof is bound to a header of its own (what it is shown for), and with a pseudonym also to a context: the same credential has the same
pseudonym in a context, and pseudonyms in different contexts cannot be told to be of one credential.

The same proof has two forms. The draft's has the challenge, from which the points T1, T2 and U follow, so that it is checked by itself.
The other has these points, from which the challenge follows, so that many are checked at once (`shoal.crypto.tokens`).

Notes
-----
Ref: IETF drafts "The BBS Signature Scheme", section 3.7, and "BBS per Verifier Linkability"; letters as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.crypto.bbs import Scheme, number, parts_of
from shoal.crypto.bls import (
    ORDER,
    POINT_BYTES,
    MalformedError,
    Point,
    is_paired,
    point_of,
    scalar_bytes,
    scalars_of,
    weighted,
)

N_RANDOMS = 5
"""Random scalars of a proof, beside one for every scalar that stays hidden."""


@dataclass(frozen=True)
class Signed:
    """A signature with all that it is on, taken apart once for many proofs.

    Parameters
    ----------
    A, e
        The signature.
    scalars
        All that were signed, with pseudonyms the pseudonym's secret last.
    B
        The point of these scalars.
    """

    scheme: Scheme
    A: Point
    e: int
    scalars: tuple[int, ...]
    B: Point

    @classmethod
    def of(cls, scheme: Scheme, signature: bytes, scalars: Sequence[int]) -> Signed:
        """Take a signature apart; it is not checked here."""
        A, e = parts_of(signature)
        return cls(scheme, A, e, tuple(scalars), scheme.signed_point(scalars))


@dataclass(frozen=True)
class Proof:
    """A proof with all that either of its forms has.

    Parameters
    ----------
    points
        Abar, Bbar, D, T1 and T2, each in its one form.
    pseudonym, U
        The pseudonym and the point that shows it to be of this credential; empty without a context.
    responses, challenge
        Scalars.
    """

    points: tuple[bytes, ...]
    pseudonym: bytes
    U: bytes
    responses: tuple[int, ...]
    challenge: int

    def to_draft(self) -> bytes:
        """The form of the draft."""
        return b"".join(self.points[:3]) + b"".join(map(scalar_bytes, (*self.responses, self.challenge)))


def challenge(
    scheme: Scheme, disclosed: Sequence[tuple[int, int]], points: Sequence[bytes], pseudonym: Sequence[bytes], header: bytes
) -> int:
    """The challenge of a proof.

    Parameters
    ----------
    disclosed
        Index and scalar of every message that is disclosed.
    points, pseudonym
        Abar, Bbar, D, T1, T2; and the pseudonym, the context's point and U, or nothing.
    """
    return scheme.hashed(challenge_bytes(scheme, disclosed, points, pseudonym, header))


def challenge_bytes(
    scheme: Scheme, disclosed: Sequence[tuple[int, int]], points: Sequence[bytes], pseudonym: Sequence[bytes], header: bytes
) -> bytes:
    """What a challenge is the hash of."""
    shown = number(len(disclosed)) + b"".join(number(index) + scalar_bytes(scalar) for index, scalar in disclosed)
    return b"".join((shown, *points, *pseudonym, scalar_bytes(scheme.domain), number(len(header)), header))


def prove(signed: Signed, disclosed: Sequence[int], header: bytes, randoms: Sequence[int], context: bytes | None = None) -> Proof:
    """Show a signature.

    Parameters
    ----------
    disclosed
        Indices of the messages that are shown, rising.
    header
        What the proof is for.
    randoms
        `N_RANDOMS` scalars and one for every scalar that stays hidden. Using them twice gives everything away.
    context
        Of the pseudonym, if there is to be one.
    """
    scheme, scalars = signed.scheme, signed.scalars
    hidden = [index for index in range(len(scalars)) if index not in disclosed]
    r1, r2, e_tilde, r1_tilde, r3_tilde, *tildes = randoms
    D = weighted((signed.B, r2))
    Abar = weighted((signed.A, r1 * r2))
    Bbar = weighted((D, r1), (Abar, -signed.e))
    T1 = weighted((Abar, e_tilde), (D, r1_tilde))
    T2 = weighted((D, r3_tilde), *((scheme.bases[index], tilde) for index, tilde in zip(hidden, tildes, strict=True)))
    points = tuple(bytes(point.compress()) for point in (Abar, Bbar, D, T1, T2))
    of_pseudonym: tuple[bytes, ...] = ()
    if context is not None:
        base = scheme.point_of_context(context)
        of_pseudonym = tuple(bytes(p.compress()) for p in (weighted((base, scalars[-1])), base, weighted((base, tildes[-1]))))
    c = challenge(scheme, [(index, scalars[index]) for index in disclosed], points, of_pseudonym, header)
    head = (e_tilde + signed.e * c, r1_tilde - r1 * c, r3_tilde - pow(r2, -1, ORDER) * c)
    rest = (tilde + scalars[index] * c for index, tilde in zip(hidden, tildes, strict=True))
    responses = tuple(response % ORDER for response in (*head, *rest))
    pseudonym, U = (of_pseudonym[0], of_pseudonym[2]) if of_pseudonym else (b"", b"")
    return Proof(points, pseudonym, U, responses, c)


def is_proof(
    scheme: Scheme, proof: bytes, disclosed: Sequence[tuple[int, int]], header: bytes, context: bytes | None = None, pseudonym: bytes = b""
) -> bool:
    """Whether a proof in the draft's form holds.

    Parameters
    ----------
    disclosed
        Index and scalar of every message that is disclosed, rising. Secrets are never disclosed.
    """
    shown = {index for index, _ in disclosed if 0 <= index < scheme.n_messages}
    if len(shown) != len(disclosed):
        return False
    hidden = [index for index in range(scheme.n_scalars) if index not in shown]
    head = 3 * POINT_BYTES
    try:
        Abar, Bbar, D = (point_of(proof[i : i + POINT_BYTES]) for i in range(0, head, POINT_BYTES))
        e_hat, r1_hat, r3_hat, *hats, c = scalars_of(proof[head:], 4 + len(hidden))
        N = None if context is None else point_of(pseudonym)
    except MalformedError:
        return False
    T1 = weighted((Bbar, c), (Abar, e_hat), (D, r1_hat))
    Bv = scheme.start
    for index, scalar in disclosed:
        Bv += weighted((scheme.bases[index], scalar))
    T2 = weighted((Bv, c), (D, r3_hat), *((scheme.bases[index], hat) for index, hat in zip(hidden, hats, strict=True)))
    of_pseudonym: tuple[bytes, ...] = ()
    if context is not None:
        base = scheme.point_of_context(context)
        of_pseudonym = (pseudonym, bytes(base.compress()), bytes(weighted((base, hats[-1]), (N, -c)).compress()))
    points = (*(proof[i : i + POINT_BYTES] for i in range(0, head, POINT_BYTES)), bytes(T1.compress()), bytes(T2.compress()))
    return challenge(scheme, disclosed, points, of_pseudonym, header) == c and is_paired(Abar, scheme.key_point, Bbar)
