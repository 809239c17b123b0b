"""Who takes part: names and Ed25519 keys in a fixed order, the identity of one member, and whom an error is about."""

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
# The y of Ed25519's points of order 1, 2, 4 and 8: a key among them verifies signatures that nobody made.
_SMALL_ORDER = frozenset(
    {
        0,
        1,
        _PRIME - 1,
        0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
        0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
    }
)


def is_usable(key: bytes) -> bool:
    """Whether 32 bytes can be the public key of an Ed25519 key pair: reduced, and not of small order."""
    y = int.from_bytes(key, "little") & (2**255 - 1)
    return y < _PRIME and y not in _SMALL_ORDER


class MemberError(RemoteProtocolError):
    """What a member sent, or what was sent in its name, does not fit: ``member`` is its position on the roster."""

    def __init__(self, code: str, member: int, what: str, *, why: str | None = None, fix: str | None = None) -> None:
        super().__init__(code, what, why=why, fix=fix)
        self.member = member


def misfit(member: int, what: str, why: str | None = None) -> MemberError:
    """The error for a member's key, box or share that does not verify."""
    return MemberError("CRYPTO-001", member, what, why=why)


@dataclass(frozen=True)
class Identity:
    """A member's own Ed25519 key, with which it signs.

    Examples
    --------
    >>> identity = Identity.from_seed(bytes(32))
    >>> Roster(("north",), (identity.public,)).check(0, identity.sign(b"yes"), b"yes")
    """

    _key: Ed25519PrivateKey = field(repr=False)

    @classmethod
    def from_seed(cls, seed: bytes) -> Identity:
        """The identity that 32 secret bytes stand for."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @property
    def public(self) -> bytes:
        """The key that verifies what is signed here."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, what: bytes) -> bytes:
        """A signature of 64 bytes."""
        return self._key.sign(what)


@dataclass(frozen=True)
class Roster:
    """The members of a study, in the order that all parties agree on.

    Parameters
    ----------
    names, keys
        A name and an Ed25519 public key of its own for every member.
    """

    names: tuple[str, ...]
    keys: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not len(self.names) == len(set(self.names)) == len(self.keys) == len(set(self.keys)):
            raise SpecError("MANIFEST-002", "The members of a roster do not each have one name and one key of their own.")
        for name, key in zip(self.names, self.keys, strict=True):
            if len(key) != KEY_BYTES or not is_usable(key):
                raise SpecError("MANIFEST-002", f"The key of {name} is not one that an Ed25519 key pair has.")

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all names and keys in their order; no two rosters have the same."""
        parts = [part for name, key in zip(self.names, self.keys, strict=True) for part in (name.encode(), key)]
        return hashlib.sha256(_DOMAIN + b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()

    @cached_property
    def _public_keys(self) -> tuple[Ed25519PublicKey, ...]:
        return tuple(map(Ed25519PublicKey.from_public_bytes, self.keys))

    def position(self, name: str) -> int:
        """Where a member stands on the roster, counted from 0."""
        try:
            return self.names.index(name)
        except ValueError:
            raise RemoteProtocolError("PROTO-003", f"{name!a:.60} is not on the roster.") from None

    def check(self, position: int, signature: bytes, what: bytes) -> None:
        """Refuse a signature that the member at a position did not make for exactly these bytes."""
        if not 0 <= position < len(self):
            raise RemoteProtocolError("PROTO-003", f"Nobody has the position {position} on a roster of {len(self)}.")
        try:
            self._public_keys[position].verify(signature, what)
        except InvalidSignature:
            fault = f"A signature in the name of member {position} does not verify."
            raise misfit(position, fault, "The member did not sign this, or somebody on the way has changed it.") from None
