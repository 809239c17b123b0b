"""Issuer, registration and credential.

A participant registers once. Afterwards it mints a token for any context without contacting
anyone. The participant's session and the coordinator's enrolment call this module:

1. Participant: draws a `Registration`, stores it, and sends its commitment, which hides the secret.
2. Issuer: `Issuer.issue` signs the commitment and a partition. It adds to the secret, so that the
   participant cannot choose it.
3. Participant: `Registration.accept` verifies the answer and returns a `Credential`.
4. Participant: `Credential.mint` makes a token that is bound to a context and a message
   (`shoal.crypto.credentials.tokens`).

Privacy
-------
A token proves that its holder has some credential of the issuer's key, scope and partition, and
reveals nothing else about which. The anonymity set is everyone who registered for that scope and
was given that partition. An issuer that gives one person a separate partition, scope or key can
recognise this person. So a participant takes key and scope from the manifest, and rejects a
partition that the study does not have. Issuance is hidden unconditionally. All pseudonyms of a
credential come from one secret: a single one hides its owner unconditionally; two or more, in
different contexts, can be linked by an adversary that solves decisional Diffie-Hellman in the first
group (decision 13).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from shoal.crypto.credentials import bbs
from shoal.crypto.credentials.bbs import N_RANDOMS, ParsedSignature, prove
from shoal.crypto.credentials.bls import (
    KEY_BYTES,
    ORDER,
    POINT_BYTES,
    SCALAR_BYTES,
    MalformedError,
    decode_scalars,
    draw_scalar,
    encode_scalar,
    hash_to_scalars,
    multi_scalar_mul,
)
from shoal.crypto.credentials.tokens import (
    PARTITION_BYTES,
    encode_partition,
    make_proof_header,
    make_scheme,
)
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError

ISSUER_KEY_BYTES = KEY_BYTES
COMMITMENT_BYTES = bbs.COMMITMENT_BYTES
PSEUDONYM_BYTES = POINT_BYTES
SCOPE_BYTES = 32
SEED_BYTES = 32
ISSUED_BYTES = bbs.SIGNATURE_BYTES + SCALAR_BYTES + PARTITION_BYTES

_VERSION = b"\x01"
_REGISTRATION, _PROOF = b"shoal registration 1", b"shoal token's randomness 1"
_N_HIDDEN = 2


class Issuer:
    """The party that registers people: it decides who may take part.

    It learns nothing about what they send.

    Parameters
    ----------
    secret
        The secret key; `from_seed` makes one.

    Attributes
    ----------
    key
        The public key, 96 bytes, which is in the manifest and the same for everyone.

    Examples
    --------
    >>> from shoal.crypto.credentials.tokens import PresentedToken, TokenVerifier
    >>> from shoal.entropy import SystemEntropy
    >>> issuer, scope, entropy = Issuer.from_seed(bytes(32)), bytes(32), SystemEntropy()
    >>> mine = Registration.draw(entropy)
    >>> issued = issuer.issue(scope, mine.make_commitment(issuer.key, scope), 0, entropy)
    >>> token = mine.accept(issuer.key, scope, issued).mint(b"a study", b"an answer", entropy)
    >>> TokenVerifier(issuer.key, scope).verify_many(
    ...     [PresentedToken(token, b"a study", text, 0) for text in (b"an answer", b"another")]
    ... )
    [True, False]
    """

    def __init__(self, secret: int) -> None:
        self._secret = secret
        self.key = bbs.make_public_key(secret)

    @classmethod
    def from_seed(cls, seed: bytes) -> Issuer:
        """Return the issuer with a key derived from 32 random bytes."""
        if len(seed) != SEED_BYTES:
            raise ValueError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
        return cls(bbs.make_secret_key(seed, b""))

    def issue(self, scope: bytes, commitment: bytes, partition: int, entropy: Entropy) -> bytes:
        """Sign a registration.

        Parameters
        ----------
        scope
            In which the credential is valid.
        commitment
            From the registration; ``TOKEN-002`` if it is malformed or its proof is not valid.
        partition
            Disclosed by each token of this credential.
        entropy
            For the issuer's part of the pseudonym's secret. The same registration must get the same
            answer, so store the answer.

        Returns
        -------
        bytes
            For the participant alone: the signature, the issuer's part and the partition.
        """
        message, added = encode_partition(partition), draw_scalar(entropy)
        try:
            signature = bbs.blind_sign(
                make_scheme(self.key, scope),
                self._secret,
                commitment,
                [message],
                added,
                draw_scalar(entropy),
            )
        except MalformedError:
            raise RemoteProtocolError(
                "TOKEN-002",
                f"A registration's commitment of {len(commitment)} bytes is malformed, or its "
                "proof is not valid.",
            ) from None
        return signature + encode_scalar(added) + message


@dataclass(frozen=True)
class Registration:
    """The secret of a participant from before it registers until it has a credential.

    Parameters
    ----------
    seed
        32 random bytes, from which its secrets for each issuer and scope are derived: a repeated
        registration is the same.
    """

    seed: bytes = field(repr=False)

    @classmethod
    def draw(cls, entropy: Entropy) -> Registration:
        """Draw a new registration; store it before anything is sent.

        A real participant draws it from the operating system.
        """
        return cls(entropy.bytes(SEED_BYTES))

    def to_bytes(self) -> bytes:
        """Return the registration as bytes to store; they are secret."""
        return _VERSION + self.seed

    @classmethod
    def from_bytes(cls, data: bytes) -> Registration:
        """Return the registration of `to_bytes`; raise ``TOKEN-003`` for any other bytes."""
        if data[:1] != _VERSION or len(data) != 1 + SEED_BYTES:
            raise _stored_secret_error("registration")
        return cls(data[1:])

    def make_commitment(self, issuer_key: bytes, scope: bytes) -> bytes:
        """Return the 144 bytes to send to the issuer, which are the same every time.

        Raise ``TOKEN-003`` if the key is invalid.
        """
        blind, own, *randoms = self._derive_secrets(issuer_key, scope)
        return bbs.commit(_make_issuer_scheme(issuer_key, scope), blind, own, randoms)

    def accept(self, issuer_key: bytes, scope: bytes, issued: bytes) -> Credential:
        """Return the credential in an issuer's answer.

        Raise ``TOKEN-003`` if it is not of this key, scope and registration.

        Notes
        -----
        The caller checks that the study has the credential's partition.
        """
        scheme = _make_issuer_scheme(issuer_key, scope)
        blind, own, *_ = self._derive_secrets(issuer_key, scope)
        signature, rest = issued[: bbs.SIGNATURE_BYTES], issued[bbs.SIGNATURE_BYTES :]
        try:
            (added,) = decode_scalars(rest[:SCALAR_BYTES], 1)
        except MalformedError:
            raise _credential_error() from None
        k, partition = (own + added) % ORDER, int.from_bytes(rest[SCALAR_BYTES:], "big")
        scalars = (*scheme.messages_to_scalars([rest[SCALAR_BYTES:]]), blind, k)
        if (
            len(issued) != ISSUED_BYTES
            or k == 0
            or not bbs.is_valid_signature(scheme, signature, scalars)
        ):
            raise _credential_error()
        return Credential(issuer_key, scope, partition, signature, blind, k)

    def _derive_secrets(self, issuer_key: bytes, scope: bytes) -> list[int]:
        """Return the blind factor, our part of the pseudonym's secret, and two randoms."""
        return hash_to_scalars(b"".join(_frame(self.seed, issuer_key, scope)), _REGISTRATION, 4)


@dataclass(frozen=True)
class Credential:
    """The secret with which a participant mints tokens.

    Only the first three fields are public.

    Parameters
    ----------
    issuer_key, scope, partition
        Disclosed by each token.
    signature, blind, k
        The issuer's signature, and the two secrets that it covers: the blind factor and the
        pseudonym's secret.
    """

    issuer_key: bytes
    scope: bytes
    partition: int
    signature: bytes = field(repr=False)
    blind: int = field(repr=False)
    k: int = field(repr=False)

    def to_bytes(self) -> bytes:
        """Return the credential as bytes to store; they are secret."""
        head = _VERSION + self.issuer_key + self.scope + encode_partition(self.partition)
        return head + self.signature + encode_scalar(self.blind) + encode_scalar(self.k)

    @classmethod
    def from_bytes(cls, data: bytes) -> Credential:
        """Return the credential of `to_bytes`; raise ``TOKEN-003`` for any other bytes."""
        secrets = data[-2 * SCALAR_BYTES :]
        parts, start = [], 1
        for size in (ISSUER_KEY_BYTES, SCOPE_BYTES, PARTITION_BYTES, bbs.SIGNATURE_BYTES):
            parts.append(data[start : start + size])
            start += size
        if data[:1] != _VERSION or len(data) != start + len(secrets):
            raise _stored_secret_error("credential")
        try:
            blind, k = decode_scalars(secrets, _N_HIDDEN)
        except MalformedError:
            raise _stored_secret_error("credential") from None
        issuer_key, scope, partition, signature = parts
        return cls(issuer_key, scope, int.from_bytes(partition, "big"), signature, blind, k)

    @cached_property
    def _parsed_signature(self) -> ParsedSignature:
        scheme = _make_issuer_scheme(self.issuer_key, self.scope)
        try:
            return ParsedSignature.parse(
                scheme,
                self.signature,
                (
                    *scheme.messages_to_scalars([encode_partition(self.partition)]),
                    self.blind,
                    self.k,
                ),
            )
        except MalformedError:
            raise _stored_secret_error("credential") from None

    def compute_pseudonym(self, context: bytes) -> bytes:
        """Return the pseudonym, 48 bytes, of this credential's tokens for a context."""
        base = self._parsed_signature.scheme.hash_context(context)
        return bytes(multi_scalar_mul((base, self.k)).compress())

    def mint(self, context: bytes, message: bytes, entropy: Entropy) -> bytes:
        """Mint a token for a message in a context.

        Parameters
        ----------
        entropy
            For the proof. A real participant uses the operating system's.

        Privacy
        -------
        Two tokens for one context have the same pseudonym, so the second can be linked to the
        first. Two with the same randomness and different challenges reveal the secret. So the
        randomness is a hash of the secret, the context, the message and fresh bytes; it repeats
        only if the whole token does.
        """
        hedged = b"".join(_frame(self.to_bytes(), context, message, entropy.bytes(SEED_BYTES)))
        randoms = hash_to_scalars(hedged, _PROOF, N_RANDOMS + _N_HIDDEN)
        proof = prove(
            self._parsed_signature, [0], make_proof_header(context, message), randoms, context
        )
        return b"".join(
            (proof.pseudonym, *proof.points, proof.U, *map(encode_scalar, proof.responses))
        )


def _frame(*parts: bytes) -> Iterator[bytes]:
    """Yield each part after its length."""
    for part in parts:
        yield bbs.encode_number(len(part))
        yield part


def _make_issuer_scheme(issuer_key: bytes, scope: bytes) -> bbs.BBSScheme:
    try:
        return make_scheme(issuer_key, scope)
    except MalformedError:
        raise RemoteProtocolError(
            "TOKEN-003", f"An issuer key of {len(issuer_key)} bytes is not valid."
        ) from None


def _credential_error() -> RemoteProtocolError:
    return RemoteProtocolError(
        "TOKEN-003",
        "The issuer's answer to a registration is not a credential of its key and this study.",
        why="The issuer signed other data or with another key, or the answer was altered.",
    )


def _stored_secret_error(what: str) -> LocalProtocolError:
    return LocalProtocolError("TOKEN-003", f"The stored {what} is damaged.")
