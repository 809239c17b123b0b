"""Messages of a secure-sum round, the agreed parameters, and what members sign.

A protocol that uses secure sums registers `SUM_MESSAGES` with its own messages. A member signs all
that it sends, and sends each kind of message once in a round. Items of equal size travel as one row
of bytes, in the order of the members that they belong to. Type names, fields and signed statements
are the wire format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from operator import lt
from typing import Annotated, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from shoal.crypto.identity import KEY_BYTES, SIGNATURE_BYTES, Roster
from shoal.crypto.secagg.context import DIGEST_BYTES, MemberPublicKeys, RoundContext
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Array, Digest, Message

_LIST_BYTES = 1 << 20
"""A few hundred bytes for each of 1,000 members."""
_VECTOR_BYTES = (1 << 23) + (1 << 10)
"""2^20 numbers of eight bytes, and the other fields."""


def _check_rising(positions: tuple[int, ...]) -> tuple[int, ...]:
    if not all(map(lt, positions, positions[1:])):
        raise ValueError("positions must increase")
    return positions


Natural = Annotated[int, Field(ge=0)]
Key = Annotated[bytes, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Signature = Annotated[bytes, Field(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
Members = Annotated[tuple[Natural, ...], AfterValidator(_check_rising)]
"""Positions on the roster, each at most once, in order."""


def split_row(row: bytes, size: int, owners: Sequence[int], what: str) -> dict[int, bytes]:
    """Split a row of bytes by member; raise `RemoteProtocolError` if its length is wrong.

    Examples
    --------
    >>> split_row(b"aabbcc", 2, (0, 3, 4), "keys")
    {0: b'aa', 3: b'bb', 4: b'cc'}
    """
    if len(row) != size * len(owners):
        raise RemoteProtocolError(
            "MSG-005",
            f"{len(row)} bytes are not {what} of {len(owners)} members with {size} bytes each.",
        )
    return {owner: row[size * i : size * (i + 1)] for i, owner in enumerate(owners)}


class SumMessage(Message):
    """A message of a round."""

    round: Natural


class _SignedSumMessage(SumMessage):
    """A message of a member."""

    signature: Signature

    @property
    def submission(self) -> bytes:
        return str(self.round).encode()


class SumKeys(_SignedSumMessage):
    """A member's public keys of this round, and a commitment to its own mask seed.

    The query is the digest of the question that the member received.
    """

    type_name: ClassVar[str] = "sum.keys"

    query: Digest
    mask: Key
    box: Key
    commitment: Digest


class SumKeyList(SumMessage):
    """The participating members with their mask keys, box keys and commitments."""

    type_name: ClassVar[str] = "sum.key-list"
    max_bytes: ClassVar[int] = _LIST_BYTES

    members: Members
    entries: bytes


class SumShares(_SignedSumMessage):
    """Shares of a member's secrets.

    A signed box for every other member of the list, and a commitment for every member.
    """

    type_name: ClassVar[str] = "sum.shares"
    sealed_fields: ClassVar[tuple[str, ...]] = ("boxes", "signatures", "signature")
    max_bytes: ClassVar[int] = _LIST_BYTES

    boxes: bytes
    commitments: bytes
    signatures: bytes


class SumBoxes(SumMessage):
    """The shares of all other dealers for the recipient."""

    type_name: ClassVar[str] = "sum.boxes"
    max_bytes: ClassVar[int] = _LIST_BYTES

    dealers: Members
    boxes: bytes
    commitments: bytes
    signatures: bytes


class SumMasked(_SignedSumMessage):
    """A member's masked vector."""

    type_name: ClassVar[str] = "sum.masked"
    spends: ClassVar[bool] = True
    report_fields: ClassVar[tuple[str, ...]] = ("vector", "signature")
    max_bytes: ClassVar[int] = _VECTOR_BYTES

    vector: Array


class SumSurvivors(SumMessage):
    """The members with vectors in the sum."""

    type_name: ClassVar[str] = "sum.survivors"

    survivors: Members


class SumAgreed(_SignedSumMessage):
    """A survivor's signature under the list of survivors."""

    type_name: ClassVar[str] = "sum.agreed"


class SumAgreement(SumMessage):
    """The list of survivors again, with enough signatures under it."""

    type_name: ClassVar[str] = "sum.agreement"
    max_bytes: ClassVar[int] = _LIST_BYTES

    survivors: Members
    signers: Members
    signatures: bytes


class SumUnmask(_SignedSumMessage):
    """A survivor's shares, one for each dealer.

    The share is of the dealer's own seed if the dealer survived, otherwise of its mask key.
    """

    type_name: ClassVar[str] = "sum.unmask"
    max_bytes: ClassVar[int] = _LIST_BYTES

    shares: bytes


SUM_MESSAGES = (
    SumKeys,
    SumKeyList,
    SumShares,
    SumBoxes,
    SumMasked,
    SumSurvivors,
    SumAgreed,
    SumAgreement,
    SumUnmask,
)


_ENTRY_BYTES = 2 * KEY_BYTES + DIGEST_BYTES


@dataclass(frozen=True)
class SumParameters:
    """Parameters that all parties agree on.

    Parameters
    ----------
    study
        Digest of the manifest.
    roster
        All members, in order.
    threshold
        t: the fewest vectors in a sum, and the fewest members that must help to open it. It is more
        than half of the members; otherwise two lists of survivors could both have enough
        signatures. A study that expects C colluders has 2 t > N + C.

    Examples
    --------
    >>> from shoal.crypto.identity import Identity
    >>> keys = tuple(Identity.from_seed(bytes([i]) * 32).public_key for i in range(3))
    >>> params = SumParameters(bytes(32), Roster(("north", "south", "west"), keys), threshold=2)
    >>> params.make_context(1, bytes(32)).round
    1
    """

    study: bytes
    roster: Roster
    threshold: int

    def __post_init__(self) -> None:
        if not len(self.roster) < 2 * self.threshold <= 2 * len(self.roster):
            raise SpecError(
                "SUM-001",
                f"threshold = {self.threshold} does not suit a roster of {len(self.roster)} "
                "members.",
                fix="Choose a threshold of more than half of the members, and at most all.",
            )

    def make_context(self, number: int, query: bytes) -> RoundContext:
        """Return the context of a round; all keys and signatures of the round are bound to it."""
        return RoundContext(self.study, self.roster.digest, number, query)


def read_keys(listed: SumKeyList) -> dict[int, MemberPublicKeys]:
    """Return the keys of a list by member; raise `RemoteProtocolError` if they are malformed."""
    entries = split_row(listed.entries, _ENTRY_BYTES, listed.members, "keys")
    return {
        member: MemberPublicKeys(
            entry[:KEY_BYTES], entry[KEY_BYTES : 2 * KEY_BYTES], entry[2 * KEY_BYTES :]
        )
        for member, entry in entries.items()
    }


def keys_statement(context: RoundContext, member: int, keys: MemberPublicKeys) -> bytes:
    """Return the statement that a member signs with its keys."""
    return context.bind("member's keys", member, *keys)


def shares_statement(context: RoundContext, dealer: int, digest: bytes, *rows: bytes) -> bytes:
    """Return the statement that a dealer signs with its boxes.

    ``digest`` is the digest of the key list.
    """
    return context.bind("all boxes", dealer, digest, *map(_hash, rows))


def masked_statement(
    context: RoundContext, member: int, digest: bytes, dealers: Sequence[int], vector: bytes
) -> bytes:
    """Return the statement that a member signs with its masked vector.

    It contains the members with which the vector's masks are agreed.
    """
    return context.bind("masked", member, digest, np.array(dealers, ">u4").tobytes(), _hash(vector))


def unmask_statement(context: RoundContext, member: int, shares: bytes) -> bytes:
    """Return the statement that a survivor signs with the shares that it reveals."""
    return context.bind("revealed", member, _hash(shares))


def _hash(row: bytes) -> bytes:
    return hashlib.sha256(row).digest()
