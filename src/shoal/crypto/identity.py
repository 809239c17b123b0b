"""Ed25519 identities and the roster of a study.

Participants and coordinators sign with an `Identity`. A `Roster` fixes the order of the members;
positions on it number the members in secure sums. A change must keep: a roster rejects keys of
small order, which would accept forged signatures.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from shoal.errors import RemoteProtocolError, SpecError

KEY_BYTES = 32
SIGNATURE_BYTES = 64

_DOMAIN = b"shoal roster 1\x00"
_PRIME = 2**255 - 19
# The y of Ed25519's points of order 1, 2, 4 and 8: such a key verifies forged signatures.
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        _PRIME - 1,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    }
)


def is_usable_key(key: bytes) -> bool:
    """Return whether 32 bytes can be an Ed25519 public key: reduced, and not of small order."""
    y = int.from_bytes(key, "little") & (2**255 - 1)
    return y < _PRIME and y not in _SMALL_ORDER


class MemberError(RemoteProtocolError):
    """An error in data from a member, or sent in its name.

    ``member`` is its position on the roster.
    """

    def __init__(
        self, code: str, member: int, what: str, *, why: str | None = None, fix: str | None = None
    ) -> None:
        super().__init__(code, what, why=why, fix=fix)
        self.member = member


def member_error(member: int, what: str, why: str | None = None) -> MemberError:
    """Return the error for a member's key, box or share that does not verify."""
    return MemberError("CRYPTO-001", member, what, why=why)


@dataclass(frozen=True)
class Identity:
    """A member's Ed25519 signing key.

    Examples
    --------
    >>> identity = Identity.from_seed(bytes(32))
    >>> Roster(("north",), (identity.public_key,)).check_signature(0, identity.sign(b"yes"), b"yes")
    """

    _key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """Return the identity with a private key of 32 secret bytes."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def public_key(self) -> bytes:
        """The key that verifies signatures of this identity."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Return a signature of 64 bytes."""
        return self._key.sign(message)


@dataclass(frozen=True)
class Roster:
    """The members of a study, in the order that all parties agree on.

    Parameters
    ----------
    names, keys
        A unique name and a unique Ed25519 public key for each member.
    """

    names: tuple[str, ...]
    keys: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not len(self.names) == len(set(self.names)) == len(self.keys) == len(set(self.keys)):
            raise SpecError(
                "MANIFEST-002",
                "The names or the keys of a roster are not unique.",
            )
        for name, key in zip(self.names, self.keys, strict=True):
            if len(key) != KEY_BYTES or not is_usable_key(key):
                raise SpecError("MANIFEST-002", f"The key of {name} is not a valid Ed25519 key.")

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all names and keys in their order; it identifies the roster."""
        parts = [
            part
            for name, key in zip(self.names, self.keys, strict=True)
            for part in (name.encode(), key)
        ]
        return hashlib.sha256(
            _DOMAIN + b"".join(len(part).to_bytes(8, "big") + part for part in parts)
        ).digest()

    @cached_property
    def _public_keys(self) -> tuple[Ed25519PublicKey, ...]:
        return tuple(map(Ed25519PublicKey.from_public_bytes, self.keys))

    def find_position(self, name: str) -> int:
        """Return a member's position on the roster, counted from 0."""
        try:
            return self.names.index(name)
        except ValueError:
            raise RemoteProtocolError("PROTO-003", f"{name!a:.60} is not on the roster.") from None

    def check_signature(self, position: int, signature: bytes, message: bytes) -> None:
        """Raise ``CRYPTO-001`` unless the member at a position has signed exactly these bytes."""
        if not 0 <= position < len(self):
            raise RemoteProtocolError(
                "PROTO-003", f"A roster of {len(self)} has no position {position}."
            )
        try:
            self._public_keys[position].verify(signature, message)
        except InvalidSignature:
            raise member_error(
                position,
                f"A signature in the name of member {position} does not verify.",
                "The member did not sign this, or it was changed on the way.",
            ) from None
