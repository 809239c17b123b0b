"""BBS signatures on BLS12-381 with SHA-256: keys, generators, signing openly and blindly. `shoal.crypto.bbs_proofs` shows them.

A signature is on a header and some messages. With pseudonyms, two secret scalars are signed after the messages without the signer seeing
them: a blind factor, and the pseudonym's secret, which is what the prover chose plus what the signer added.

==================  ==================================================================================================
prover              `commit` to its secrets, with a proof that it knows them
signer              `blind_sign` what was committed to, the messages, and the signer's part of the pseudonym's secret
prover              `is_signed`, before it uses the signature
==================  ==================================================================================================

Notes
-----
Ref: IETF drafts "The BBS Signature Scheme", "Blind BBS Signatures" and "BBS per Verifier Linkability" (versions 00 and 01). Every value
with a secret in it is computed on blst; see `shoal.crypto.bls`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, cached_property

from shoal.crypto.bls import (
    ORDER,
    POINT_BYTES,
    SCALAR_BYTES,
    MalformedError,
    Point,
    expand_message,
    hash_to_point,
    hash_to_scalar,
    is_paired,
    key_generator,
    key_point_of,
    point_of,
    scalar_bytes,
    scalars_of,
    weighted,
)

SUITE = b"BBS_BLS12381G1_XMD:SHA-256_SSWU_RO_"
PLAIN = SUITE + b"H2G_HM2S_"
PSEUDONYMS = SUITE + b"H2G_HM2S_PSEUDONYM_"
SIGNATURE_BYTES = POINT_BYTES + SCALAR_BYTES
COMMITMENT_BYTES = POINT_BYTES + 3 * SCALAR_BYTES

_P1 = bytes.fromhex("a8ce256102840821a3e94ea9025e4662b205762f9776b3a766c872b948f1fd225e7c59698588e70d11406d161b4e28c9")


def number(n: int) -> bytes:
    """A length or an index, as the drafts write them."""
    return n.to_bytes(8, "big")


def secret_key(material: bytes, info: bytes) -> int:
    """The secret key of at least 32 random bytes, for a purpose."""
    return hash_to_scalar(material + len(info).to_bytes(2, "big") + info, PLAIN + b"KEYGEN_DST_")


def public_key(secret: int) -> bytes:
    """The 96 bytes with which anyone checks what a key signs."""
    return bytes(key_generator().scalar_mul(secret).compress())


@cache
def generators(n: int, api: bytes) -> tuple[bytes, ...]:
    """The first ``n`` generators of an interface: points of which nobody knows how they relate."""
    seed_tag, tag = api + b"SIG_GENERATOR_SEED_", api + b"SIG_GENERATOR_DST_"
    found: list[bytes] = []
    state = expand_message(api + b"MESSAGE_GENERATOR_SEED", seed_tag, 48)
    for index in range(1, n + 1):
        state = expand_message(state + number(index), seed_tag, 48)
        found.append(bytes(hash_to_point(state, tag).compress()))
    return tuple(found)


class Scheme:
    """What a signature is made under: a signer's key, a header, a number of messages, and whether there are pseudonyms.

    Parameters
    ----------
    key
        The signer's, 96 bytes; `MalformedError` where it is none.
    header
        What every signature under this scheme is bound to.
    n_messages
        How many messages the signer sees and signs.
    has_pseudonyms
        Whether a blind factor and a pseudonym's secret are signed after the messages.

    Attributes
    ----------
    base_bytes
        The generators in their one form: Q1, one for each message, and with pseudonyms those of the two secrets.
    """

    def __init__(self, key: bytes, header: bytes, n_messages: int, *, has_pseudonyms: bool = False) -> None:
        self.key_point = key_point_of(key)
        self.n_messages = n_messages
        self.has_pseudonyms = has_pseudonyms
        self.api = PSEUDONYMS if has_pseudonyms else PLAIN
        self.tag = self.api + b"H2S_"
        secrets = generators(2, b"BLIND_" + self.api) if has_pseudonyms else ()
        self.base_bytes = generators(n_messages + 1, self.api) + secrets
        self.n_scalars = len(self.base_bytes) - 1
        hashed = key + number(self.n_scalars) + b"".join(self.base_bytes) + self.api + number(len(header)) + header
        self.domain = self.hashed(hashed)

    def hashed(self, data: bytes) -> int:
        """A scalar of some bytes, as challenges and domains are made."""
        return hash_to_scalar(data, self.tag)

    def scalars(self, messages: Iterable[bytes]) -> list[int]:
        """The scalars that stand for messages."""
        return [hash_to_scalar(message, self.api + b"MAP_MSG_TO_SCALAR_AS_HASH_") for message in messages]

    def point_of_context(self, context: bytes) -> Point:
        """The point of which a pseudonym for a context is a multiple."""
        return hash_to_point(context, self.api)

    @cached_property
    def bases(self) -> tuple[Point, ...]:
        """The generators of all signed scalars, for blst."""
        return tuple(map(point_of, self.base_bytes[1:]))

    @cached_property
    def start(self) -> Point:
        """What every signed point begins with: P1 + domain Q1."""
        return point_of(_P1) + weighted((point_of(self.base_bytes[0]), self.domain))

    def signed_point(self, scalars: Sequence[int]) -> Point:
        """The point B of signed scalars; those that are left out at the end count nothing."""
        total = self.start
        for base, scalar in zip(self.bases[: len(scalars)], scalars, strict=True):
            total += weighted((base, scalar))
        return total


def sign(scheme: Scheme, secret: int, messages: Sequence[bytes]) -> bytes:
    """A signature on messages that the signer sees."""
    scalars = scheme.scalars(messages)
    e = scheme.hashed(b"".join(map(scalar_bytes, (secret, *scalars, scheme.domain))))
    return _signature(scheme.signed_point(scalars), secret, e)


def is_signed(scheme: Scheme, signature: bytes, scalars: Sequence[int]) -> bool:
    """Whether a signature is on these scalars, as many as the scheme has."""
    if len(scalars) != scheme.n_scalars:
        return False
    try:
        A, e = parts_of(signature)
    except MalformedError:
        return False
    return is_paired(A, scheme.key_point + key_generator().scalar_mul(e), scheme.signed_point(scalars))


def parts_of(signature: bytes) -> tuple[Point, int]:
    """A and e of a signature; `MalformedError` for bytes of another form."""
    (e,) = scalars_of(signature[POINT_BYTES:], 1)
    return point_of(signature[:POINT_BYTES]), e


def commit(scheme: Scheme, blind: int, own: int, randoms: Sequence[int]) -> bytes:
    """A commitment to a blind factor and the prover's own part of the pseudonym's secret, with a proof that the prover knows both.

    Parameters
    ----------
    randoms
        Two scalars that are used for these secrets only.

    Privacy
    -------
    The commitment says nothing about the prover's own part, not even to somebody who can compute logarithms.
    """
    factor_base, base = scheme.bases[-2:]
    C, hidden = (bytes(weighted((factor_base, a), (base, b)).compress()) for a, b in ((blind, own), randoms))
    c = _commitment_challenge(scheme, C, hidden)
    return C + b"".join(map(scalar_bytes, (randoms[0] + c * blind, randoms[1] + c * own, c)))


def blind_sign(scheme: Scheme, secret: int, commitment: bytes, messages: Sequence[bytes], added: int, mask: int) -> bytes:
    """A signature on messages and on what a commitment hides; `MalformedError` for a commitment whose proof does not hold.

    Parameters
    ----------
    added
        The signer's part of the pseudonym's secret, so that the prover cannot choose its pseudonyms.
    mask
        A random scalar that hides the secret key from whoever watches the time of an inversion.
    """
    factor_base, base = scheme.bases[-2:]
    C = point_of(commitment[:POINT_BYTES])
    factor, own, c = scalars_of(commitment[POINT_BYTES:], 3)
    hidden = weighted((factor_base, factor), (base, own), (C, -c))
    if _commitment_challenge(scheme, commitment[:POINT_BYTES], bytes(hidden.compress())) != c:
        raise MalformedError("the proof of a commitment does not hold")
    B = scheme.signed_point(scheme.scalars(messages)) + C + weighted((base, added))
    e = scheme.hashed(scalar_bytes(secret) + bytes(B.compress()))
    return _signature(B, secret, e, mask)


def _commitment_challenge(scheme: Scheme, C: bytes, hidden: bytes) -> int:
    return scheme.hashed(number(1) + b"".join(scheme.base_bytes[-2:]) + C + hidden)


def _signature(B: Point, secret: int, e: int, mask: int = 1) -> bytes:
    inverse = pow((secret + e) * mask % ORDER, -1, ORDER) * mask
    return bytes(weighted((B, inverse)).compress()) + scalar_bytes(e)
