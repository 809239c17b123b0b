"""BBS signatures, blind issuance, and proofs of possession.

Signatures on BLS12-381 with SHA-256. `shoal.crypto.credentials.issuance` and
`shoal.crypto.credentials.tokens` call it. Each value that contains a secret is computed on blst;
see `shoal.crypto.credentials.bls`.

A signature covers a header and some messages. With pseudonyms, the signer also signs two secret
scalars without seeing them: a blind factor, and the pseudonym's secret, which is the sum of the
prover's and the signer's part.

1. Prover: `commit` to its secrets, with a proof that it knows them.
2. Signer: `blind_sign` the commitment, the messages and its part of the pseudonym's secret.
3. Prover: `is_valid_signature`, before it uses the signature.
4. Prover: `prove` possession. Some messages are disclosed, the others stay hidden.

A proof is bound to a presentation header (its purpose), and with a pseudonym also to a context. A
credential has the same pseudonym in the same context; pseudonyms in different contexts cannot be
linked to one credential while decisional Diffie-Hellman is hard.

The draft's form of a proof contains the challenge, from which the points T1, T2 and U follow; it is
verified alone. Tokens contain these points, from which the challenge follows; many are verified
together (`shoal.crypto.credentials.tokens`).

Notes
-----
Ref: IETF drafts "The BBS Signature Scheme", "Blind BBS Signatures" and "BBS per Verifier
Linkability" (versions 00 and 01). The letters of proofs are those of section 3.7 of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from shoal.crypto.credentials.bls import (
    ORDER,
    POINT_BYTES,
    SCALAR_BYTES,
    MalformedError,
    Point,
    decode_key_point,
    decode_point,
    decode_scalars,
    encode_scalar,
    expand_message,
    get_key_generator,
    hash_to_point,
    hash_to_scalar,
    is_pairing_equal,
    multi_scalar_mul,
)

SUITE = b"BBS_BLS12381G1_XMD:SHA-256_SSWU_RO_"
PLAIN_API = SUITE + b"H2G_HM2S_"
PSEUDONYM_API = SUITE + b"H2G_HM2S_PSEUDONYM_"
SIGNATURE_BYTES = POINT_BYTES + SCALAR_BYTES
COMMITMENT_BYTES = POINT_BYTES + 3 * SCALAR_BYTES

_P1 = bytes.fromhex(
    "a8ce256102840821a3e94ea9025e4662b205762f9776b3a766c872b948f1fd225e7c59698588e70d11406d161b4e28c9"
)


def encode_number(n: int) -> bytes:
    """Return a length or an index as the drafts encode it."""
    return n.to_bytes(8, "big")


def make_secret_key(material: bytes, info: bytes) -> int:
    """Derive a secret key from at least 32 random bytes, for a purpose."""
    return hash_to_scalar(
        material + len(info).to_bytes(2, "big") + info, PLAIN_API + b"KEYGEN_DST_"
    )


def make_public_key(secret: int) -> bytes:
    """Return the public key, 96 bytes, of a secret key."""
    return bytes(get_key_generator().scalar_mul(secret).compress())


@cache
def make_generators(n: int, api: bytes) -> tuple[bytes, ...]:
    """Return the first ``n`` generators of an interface, with unknown mutual logarithms."""
    seed_tag, tag = api + b"SIG_GENERATOR_SEED_", api + b"SIG_GENERATOR_DST_"
    generators: list[bytes] = []
    state = expand_message(api + b"MESSAGE_GENERATOR_SEED", seed_tag, 48)
    for index in range(1, n + 1):
        state = expand_message(state + encode_number(index), seed_tag, 48)
        generators.append(bytes(hash_to_point(state, tag).compress()))
    return tuple(generators)


class BBSScheme:
    """The parameters of signatures: the signer's key, a header, the messages, and pseudonyms.

    Parameters
    ----------
    key
        The signer's key, 96 bytes; `MalformedError` if it is invalid.
    header
        Bound to each signature under this scheme.
    n_messages
        Number of messages that the signer sees and signs.
    has_pseudonyms
        Whether a blind factor and a pseudonym's secret are signed after the messages.

    Attributes
    ----------
    base_bytes
        The generators in canonical form: Q1, one for each message, and with pseudonyms those of the
        two secrets.
    """

    def __init__(
        self, key: bytes, header: bytes, n_messages: int, *, has_pseudonyms: bool = False
    ) -> None:
        self.key_point = decode_key_point(key)
        self.n_messages = n_messages
        self.has_pseudonyms = has_pseudonyms
        self.api = PSEUDONYM_API if has_pseudonyms else PLAIN_API
        self.tag = self.api + b"H2S_"
        secrets = make_generators(2, b"BLIND_" + self.api) if has_pseudonyms else ()
        self.base_bytes = make_generators(n_messages + 1, self.api) + secrets
        self.n_scalars = len(self.base_bytes) - 1
        hashed = (
            key
            + encode_number(self.n_scalars)
            + b"".join(self.base_bytes)
            + self.api
            + encode_number(len(header))
            + header
        )
        self.domain = self.hash_scalar(hashed)

    def hash_scalar(self, data: bytes) -> int:
        """Return the hash of bytes as a scalar, as for challenges and domains."""
        return hash_to_scalar(data, self.tag)

    def messages_to_scalars(self, messages: Iterable[bytes]) -> list[int]:
        """Return the scalars of messages."""
        return [
            hash_to_scalar(message, self.api + b"MAP_MSG_TO_SCALAR_AS_HASH_")
            for message in messages
        ]

    def hash_context(self, context: bytes) -> Point:
        """Return the point of a context; its pseudonyms are multiples of this point."""
        return hash_to_point(context, self.api)

    @cached_property
    def bases(self) -> tuple[Point, ...]:
        """The generators of all signed scalars, for blst."""
        return tuple(map(decode_point, self.base_bytes[1:]))

    @cached_property
    def domain_point(self) -> Point:
        """The first term of each signed point: P1 + domain Q1."""
        return decode_point(_P1) + multi_scalar_mul((decode_point(self.base_bytes[0]), self.domain))

    def compute_signed_point(self, scalars: Sequence[int]) -> Point:
        """Return the point B of signed scalars; scalars that are missing at the end count as 0."""
        total = self.domain_point
        for base, scalar in zip(self.bases[: len(scalars)], scalars, strict=True):
            total += multi_scalar_mul((base, scalar))
        return total


def is_valid_signature(scheme: BBSScheme, signature: bytes, scalars: Sequence[int]) -> bool:
    """Return whether a signature covers these scalars, which must be all of the scheme's."""
    if len(scalars) != scheme.n_scalars:
        return False
    try:
        A, e = parse_signature(signature)
    except MalformedError:
        return False
    return is_pairing_equal(
        A,
        scheme.key_point + get_key_generator().scalar_mul(e),
        scheme.compute_signed_point(scalars),
    )


def parse_signature(signature: bytes) -> tuple[Point, int]:
    """Return A and e of a signature; raise `MalformedError` for malformed bytes."""
    (e,) = decode_scalars(signature[POINT_BYTES:], 1)
    return decode_point(signature[:POINT_BYTES]), e


def commit(scheme: BBSScheme, blind: int, own: int, randoms: Sequence[int]) -> bytes:
    """Return a commitment to the prover's secrets, with a proof that the prover knows them.

    The secrets are a blind factor and the prover's part of the pseudonym's secret.

    Parameters
    ----------
    randoms
        Two scalars that are used for these secrets only.

    Privacy
    -------
    The commitment hides the prover's part perfectly, even from an adversary that can compute
    logarithms.
    """
    factor_base, base = scheme.bases[-2:]
    C, hidden = (
        bytes(multi_scalar_mul((factor_base, a), (base, b)).compress())
        for a, b in ((blind, own), randoms)
    )
    c = _compute_commitment_challenge(scheme, C, hidden)
    return C + b"".join(map(encode_scalar, (randoms[0] + c * blind, randoms[1] + c * own, c)))


def blind_sign(
    scheme: BBSScheme,
    secret: int,
    commitment: bytes,
    messages: Sequence[bytes],
    added: int,
    mask: int,
) -> bytes:
    """Return a signature on messages and on the secrets of a commitment.

    Raise `MalformedError` if the proof of the commitment is not valid.

    Parameters
    ----------
    added
        The signer's part of the pseudonym's secret, so that the prover cannot choose its
        pseudonyms.
    mask
        A random scalar that hides the secret key from an observer of the time of an inversion.
    """
    factor_base, base = scheme.bases[-2:]
    C = decode_point(commitment[:POINT_BYTES])
    factor, own, c = decode_scalars(commitment[POINT_BYTES:], 3)
    hidden = multi_scalar_mul((factor_base, factor), (base, own), (C, -c))
    if (
        _compute_commitment_challenge(scheme, commitment[:POINT_BYTES], bytes(hidden.compress()))
        != c
    ):
        raise MalformedError("the proof of a commitment is not valid")
    B = (
        scheme.compute_signed_point(scheme.messages_to_scalars(messages))
        + C
        + multi_scalar_mul((base, added))
    )
    e = scheme.hash_scalar(encode_scalar(secret) + bytes(B.compress()))
    return _make_signature(B, secret, e, mask)


def _compute_commitment_challenge(scheme: BBSScheme, C: bytes, hidden: bytes) -> int:
    return scheme.hash_scalar(encode_number(1) + b"".join(scheme.base_bytes[-2:]) + C + hidden)


def _make_signature(B: Point, secret: int, e: int, mask: int) -> bytes:
    inverse = pow((secret + e) * mask % ORDER, -1, ORDER) * mask
    return bytes(multi_scalar_mul((B, inverse)).compress()) + encode_scalar(e)


N_RANDOMS = 5
"""Random scalars of a proof, in addition to one for each hidden scalar."""


@dataclass(frozen=True)
class ParsedSignature:
    """A signature and the scalars it covers, parsed once for many proofs.

    Parameters
    ----------
    A, e
        The signature.
    scalars
        All signed scalars; with pseudonyms, the pseudonym's secret is the last.
    B
        The point of these scalars.
    """

    scheme: BBSScheme
    A: Point
    e: int
    scalars: tuple[int, ...]
    B: Point

    @classmethod
    def parse(cls, scheme: BBSScheme, signature: bytes, scalars: Sequence[int]) -> ParsedSignature:
        """Parse a signature without verifying it."""
        A, e = parse_signature(signature)
        return cls(scheme, A, e, tuple(scalars), scheme.compute_signed_point(scalars))


@dataclass(frozen=True)
class Proof:
    """A proof with all values of both of its forms.

    Parameters
    ----------
    points
        Abar, Bbar, D, T1 and T2, each in canonical form.
    pseudonym, U
        The pseudonym and the point that links it to this credential; empty without a context.
    responses, challenge
        Scalars.
    """

    points: tuple[bytes, ...]
    pseudonym: bytes
    U: bytes
    responses: tuple[int, ...]
    challenge: int


def compute_challenge(
    scheme: BBSScheme,
    disclosed: Sequence[tuple[int, int]],
    points: Sequence[bytes],
    pseudonym: Sequence[bytes],
    header: bytes,
) -> int:
    """Return the challenge of a proof.

    Parameters
    ----------
    disclosed
        Index and scalar of each disclosed message.
    points, pseudonym
        Abar, Bbar, D, T1, T2; and the pseudonym, the context's point and U, or nothing.
    """
    return scheme.hash_scalar(encode_challenge(scheme, disclosed, points, pseudonym, header))


def encode_challenge(
    scheme: BBSScheme,
    disclosed: Sequence[tuple[int, int]],
    points: Sequence[bytes],
    pseudonym: Sequence[bytes],
    header: bytes,
) -> bytes:
    """Return the bytes that are hashed to the challenge."""
    shown = encode_number(len(disclosed)) + b"".join(
        encode_number(index) + encode_scalar(scalar) for index, scalar in disclosed
    )
    return b"".join(
        (
            shown,
            *points,
            *pseudonym,
            encode_scalar(scheme.domain),
            encode_number(len(header)),
            header,
        )
    )


def prove(
    signature: ParsedSignature,
    disclosed: Sequence[int],
    header: bytes,
    randoms: Sequence[int],
    context: bytes | None = None,
) -> Proof:
    """Return a proof of possession of a signature.

    Parameters
    ----------
    disclosed
        Indices of the disclosed messages, rising.
    header
        The presentation header: the purpose of the proof.
    randoms
        `N_RANDOMS` scalars and one for each hidden scalar. Reuse reveals all secrets.
    context
        Of the pseudonym, if there is one.
    """
    scheme, scalars = signature.scheme, signature.scalars
    hidden = [index for index in range(len(scalars)) if index not in disclosed]
    r1, r2, e_tilde, r1_tilde, r3_tilde, *tildes = randoms
    D = multi_scalar_mul((signature.B, r2))
    Abar = multi_scalar_mul((signature.A, r1 * r2))
    Bbar = multi_scalar_mul((D, r1), (Abar, -signature.e))
    T1 = multi_scalar_mul((Abar, e_tilde), (D, r1_tilde))
    T2 = multi_scalar_mul(
        (D, r3_tilde),
        *((scheme.bases[index], tilde) for index, tilde in zip(hidden, tildes, strict=True)),
    )
    points = tuple(bytes(point.compress()) for point in (Abar, Bbar, D, T1, T2))
    pseudonym_points: tuple[bytes, ...] = ()
    if context is not None:
        base = scheme.hash_context(context)
        pseudonym_points = tuple(
            bytes(p.compress())
            for p in (
                multi_scalar_mul((base, scalars[-1])),
                base,
                multi_scalar_mul((base, tildes[-1])),
            )
        )
    c = compute_challenge(
        scheme, [(index, scalars[index]) for index in disclosed], points, pseudonym_points, header
    )
    head = (e_tilde + signature.e * c, r1_tilde - r1 * c, r3_tilde - pow(r2, -1, ORDER) * c)
    rest = (tilde + scalars[index] * c for index, tilde in zip(hidden, tildes, strict=True))
    responses = tuple(response % ORDER for response in (*head, *rest))
    pseudonym, U = (pseudonym_points[0], pseudonym_points[2]) if pseudonym_points else (b"", b"")
    return Proof(points, pseudonym, U, responses, c)
