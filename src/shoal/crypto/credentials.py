"""Credentials: a person registers once, and afterwards mints a token for any context without talking to anyone.

====================  =====================================================================================================
participant           draws a `Registration`, keeps it, and sends its commitment, which says nothing about the secret in it
issuer                `Issuer.issue`: signs what is committed to, with a place; it adds to the secret, so that nobody chooses it
participant           `Registration.accept`: checks all of it, and has a `Credential`
participant           `Credential.mint`: a token that is bound to a context and a message (`shoal.crypto.tokens`)
====================  =====================================================================================================

Privacy
-------
A token says that its holder has some credential of the issuer's key, scope and place, and nothing else about which. Who is in question is
everyone who registered for that scope and was given that place: an issuer that gives somebody a place, a scope or a key of its own knows
this person again. So a participant takes key and scope from the manifest, and refuses a place that the study does not have.
Pseudonyms of one person in two contexts cannot be told to belong together by anyone who cannot solve decisional Diffie-Hellman in the
first group; issuance stays hidden from everyone, forever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from shoal.crypto import bbs
from shoal.crypto.bbs_proofs import N_RANDOMS, Signed, prove
from shoal.crypto.bls import (
    KEY_BYTES,
    ORDER,
    POINT_BYTES,
    SCALAR_BYTES,
    MalformedError,
    draw_scalar,
    hash_to_scalars,
    scalar_bytes,
    scalars_of,
    weighted,
)
from shoal.crypto.tokens import PLACE_BYTES, header_of, place_message, scheme_of
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError

ISSUER_KEY_BYTES = KEY_BYTES
COMMITMENT_BYTES = bbs.COMMITMENT_BYTES
PSEUDONYM_BYTES = POINT_BYTES
SCOPE_BYTES = 32
SEED_BYTES = 32
ISSUED_BYTES = bbs.SIGNATURE_BYTES + SCALAR_BYTES + PLACE_BYTES

_VERSION = b"\x01"
_REGISTRATION, _PROOF = b"shoal registration 1", b"shoal token's randomness 1"
_HIDDEN = 2


class Issuer:
    """Who registers people: the one that says who may take part, and learns nothing of what they send.

    Parameters
    ----------
    secret
        The secret key; `from_seed` makes one.

    Attributes
    ----------
    key
        96 bytes that go into the manifest, the same for everyone.

    Examples
    --------
    >>> from shoal.crypto.tokens import Presented, Verifier
    >>> from shoal.entropy import SystemEntropy
    >>> issuer, scope, entropy = Issuer.from_seed(bytes(32)), bytes(32), SystemEntropy()
    >>> mine = Registration.draw(entropy)
    >>> issued = issuer.issue(scope, mine.commitment(issuer.key, scope), 0, entropy)
    >>> token = mine.accept(issuer.key, scope, issued).mint(b"a study", b"an answer", entropy)
    >>> Verifier(issuer.key, scope).verify_many([Presented(token, b"a study", text, 0) for text in (b"an answer", b"another")])
    [True, False]
    """

    def __init__(self, secret: int) -> None:
        self._secret = secret
        self.key = bbs.public_key(secret)

    @classmethod
    def from_seed(cls, seed: bytes) -> Issuer:
        """The issuer that 32 random bytes make."""
        if len(seed) != SEED_BYTES:
            raise ValueError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
        return cls(bbs.secret_key(seed, b""))

    def issue(self, scope: bytes, commitment: bytes, place: int, entropy: Entropy) -> bytes:
        """Sign a registration.

        Parameters
        ----------
        scope
            In which the credential counts.
        commitment
            What came with the registration; ``TOKEN-002`` where it is none, or its proof does not hold.
        place
            What every token of this credential will disclose.
        entropy
            For the issuer's part of the pseudonym's secret: the same registration must be given the same answer, so keep it.

        Returns
        -------
        bytes
            For the participant alone: the signature, the issuer's part and the place.
        """
        message, added = place_message(place), draw_scalar(entropy)
        try:
            signature = bbs.blind_sign(scheme_of(self.key, scope), self._secret, commitment, [message], added, draw_scalar(entropy))
        except MalformedError:
            raise RemoteProtocolError(
                "TOKEN-002", f"A registration's commitment of {len(commitment)} bytes is not one, or its proof does not hold."
            ) from None
        return signature + scalar_bytes(added) + message


@dataclass(frozen=True)
class Registration:
    """What a participant keeps secret from before it registers until it has a credential.

    Parameters
    ----------
    seed
        32 random bytes, from which its secrets for every issuer and scope follow: sent again, a registration is the same.
    """

    seed: bytes = field(repr=False)

    @classmethod
    def draw(cls, entropy: Entropy) -> Registration:
        """A new one; keep it before anything is sent. A real participant draws it from the operating system."""
        return cls(entropy.bytes(SEED_BYTES))

    def to_bytes(self) -> bytes:
        """To keep; secret."""
        return _VERSION + self.seed

    @classmethod
    def from_bytes(cls, data: bytes) -> Registration:
        """What `to_bytes` gave; ``TOKEN-003`` for anything else."""
        if data[:1] != _VERSION or len(data) != 1 + SEED_BYTES:
            raise _not_kept("registration")
        return cls(data[1:])

    def commitment(self, issuer_key: bytes, scope: bytes) -> bytes:
        """What is sent to the issuer: 144 bytes, the same every time; ``TOKEN-003`` where the key is none."""
        blind, own, *randoms = self._secrets(issuer_key, scope)
        return bbs.commit(_scheme(issuer_key, scope), blind, own, randoms)

    def accept(self, issuer_key: bytes, scope: bytes, issued: bytes) -> Credential:
        """The credential that an issuer has answered with; ``TOKEN-003`` where it is not of this key, scope and registration.

        Notes
        -----
        The caller checks that the study has the place of the credential.
        """
        scheme = _scheme(issuer_key, scope)
        blind, own, *_ = self._secrets(issuer_key, scope)
        signature, rest = issued[: bbs.SIGNATURE_BYTES], issued[bbs.SIGNATURE_BYTES :]
        try:
            (added,) = scalars_of(rest[:SCALAR_BYTES], 1)
        except MalformedError:
            raise _not_issued() from None
        k, place = (own + added) % ORDER, int.from_bytes(rest[SCALAR_BYTES:], "big")
        scalars = (*scheme.scalars([rest[SCALAR_BYTES:]]), blind, k)
        if len(issued) != ISSUED_BYTES or k == 0 or not bbs.is_signed(scheme, signature, scalars):
            raise _not_issued()
        return Credential(issuer_key, scope, place, signature, blind, k)

    def _secrets(self, issuer_key: bytes, scope: bytes) -> list[int]:
        """The blind factor, the participant's part of the pseudonym's secret, and the randomness of their proof."""
        return hash_to_scalars(b"".join(_framed(self.seed, issuer_key, scope)), _REGISTRATION, 4)


@dataclass(frozen=True)
class Credential:
    """What a participant mints tokens with; secret but for the first three.

    Parameters
    ----------
    issuer_key, scope, place
        What every token of it shows.
    signature, blind, k
        The issuer's signature, and the two secrets that it is on: the blind factor, and the pseudonym's secret.
    """

    issuer_key: bytes
    scope: bytes
    place: int
    signature: bytes = field(repr=False)
    blind: int = field(repr=False)
    k: int = field(repr=False)

    def to_bytes(self) -> bytes:
        """To keep; secret."""
        head = _VERSION + self.issuer_key + self.scope + place_message(self.place)
        return head + self.signature + scalar_bytes(self.blind) + scalar_bytes(self.k)

    @classmethod
    def from_bytes(cls, data: bytes) -> Credential:
        """What `to_bytes` gave; ``TOKEN-003`` for anything else."""
        secrets = data[-2 * SCALAR_BYTES :]
        parts, start = [], 1
        for size in (ISSUER_KEY_BYTES, SCOPE_BYTES, PLACE_BYTES, bbs.SIGNATURE_BYTES):
            parts.append(data[start : start + size])
            start += size
        if data[:1] != _VERSION or len(data) != start + len(secrets):
            raise _not_kept("credential")
        try:
            blind, k = scalars_of(secrets, _HIDDEN)
        except MalformedError:
            raise _not_kept("credential") from None
        issuer_key, scope, place, signature = parts
        return cls(issuer_key, scope, int.from_bytes(place, "big"), signature, blind, k)

    @cached_property
    def _signed(self) -> Signed:
        scheme = _scheme(self.issuer_key, self.scope)
        try:
            return Signed.of(scheme, self.signature, (*scheme.scalars([place_message(self.place)]), self.blind, self.k))
        except MalformedError:
            raise _not_kept("credential") from None

    def pseudonym(self, context: bytes) -> bytes:
        """The 48 bytes under which tokens for a context are shown."""
        base = self._signed.scheme.point_of_context(context)
        return bytes(weighted((base, self.k)).compress())

    def mint(self, context: bytes, message: bytes, entropy: Entropy) -> bytes:
        """A token for a message in a context.

        Parameters
        ----------
        entropy
            For the proof. A real participant's is the operating system's.

        Privacy
        -------
        Two tokens of one context have the same pseudonym, so the second is seen to be of the same person. Two with the same randomness
        and different challenges give the secret away; so the randomness is a hash of the secret, the context, the message and fresh
        bytes, and repeats only where all of the token does.
        """
        hedged = b"".join(_framed(self.to_bytes(), context, message, entropy.bytes(SEED_BYTES)))
        randoms = hash_to_scalars(hedged, _PROOF, N_RANDOMS + _HIDDEN)
        proof = prove(self._signed, [0], header_of(context, message), randoms, context)
        return b"".join((proof.pseudonym, *proof.points, proof.U, *map(scalar_bytes, proof.responses)))


def _framed(*parts: bytes) -> Iterator[bytes]:
    """Parts with their lengths before them."""
    for part in parts:
        yield bbs.number(len(part))
        yield part


def _scheme(issuer_key: bytes, scope: bytes) -> bbs.Scheme:
    try:
        return scheme_of(issuer_key, scope)
    except MalformedError:
        raise RemoteProtocolError("TOKEN-003", f"{len(issuer_key)} bytes are not the key of an issuer.") from None


def _not_issued() -> RemoteProtocolError:
    return RemoteProtocolError(
        "TOKEN-003",
        "The issuer's answer to a registration is not a credential of its key and this study.",
        why="It has signed something else, with another key, or its answer was altered.",
    )


def _not_kept(what: str) -> LocalProtocolError:
    return LocalProtocolError("TOKEN-003", f"What was kept as a {what} is not one.")
