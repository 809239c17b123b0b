"""What travels in a round of a secure sum; a protocol that sums puts `SUM_MESSAGES` among its own.

What a member sends, it signs, and it sends each kind once in a round. Many things of one size travel as one row of bytes, in the order of
the members that they belong to.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import lt
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from shoal.crypto.roster import KEY_BYTES, SIGNATURE_BYTES
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Digest, Message

_LIST_BYTES = 1 << 20
"""A few hundred bytes for each of 1,000 members."""
_VECTOR_BYTES = (1 << 23) + (1 << 10)
"""2^20 numbers of eight bytes, and what is around them."""


def _rising(positions: tuple[int, ...]) -> tuple[int, ...]:
    if not all(map(lt, positions, positions[1:])):
        raise ValueError("positions must rise")
    return positions


Natural = Annotated[int, Field(ge=0)]
Key = Annotated[bytes, Field(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Signature = Annotated[bytes, Field(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
Members = Annotated[tuple[Natural, ...], AfterValidator(_rising)]
"""Positions on the roster, each at most once, in order."""


def cut(row: bytes, size: int, owners: Sequence[int], what: str) -> dict[int, bytes]:
    """The pieces of a row of bytes, by the member that each belongs to; otherwise the sender's error.

    Examples
    --------
    >>> cut(b"aabbcc", 2, (0, 3, 4), "keys")
    {0: b'aa', 3: b'bb', 4: b'cc'}
    """
    if len(row) != size * len(owners):
        raise RemoteProtocolError("MSG-005", f"{len(row)} bytes are not {what} of {len(owners)} members with {size} bytes each.")
    return {owner: row[size * i : size * (i + 1)] for i, owner in enumerate(owners)}


class SumMessage(Message):
    """A message of a round."""

    round: Natural


class _Signed(SumMessage):
    """A message of a member."""

    signature: Signature

    @property
    def submission(self) -> bytes:
        return str(self.round).encode()


class SumKeys(_Signed):
    """A member takes part: its public keys of this round, and a commitment to the seed of its own mask. The query is what it was asked."""

    type_name: ClassVar[str] = "sum.keys"

    query: Digest
    mask: Key
    box: Key
    commitment: Digest


class SumKeyList(SumMessage):
    """Who takes part, and for each its mask key, box key and commitment."""

    type_name: ClassVar[str] = "sum.key-list"
    max_bytes: ClassVar[int] = _LIST_BYTES

    members: Members
    entries: bytes


class SumShares(_Signed):
    """A member's secrets, shared: a box and its signature for every other member of the list, and a commitment for every member."""

    type_name: ClassVar[str] = "sum.shares"
    max_bytes: ClassVar[int] = _LIST_BYTES

    boxes: bytes
    commitments: bytes
    signatures: bytes


class SumBoxes(SumMessage):
    """What the other members have dealt to the one that this is sent to."""

    type_name: ClassVar[str] = "sum.boxes"
    max_bytes: ClassVar[int] = _LIST_BYTES

    dealers: Members
    boxes: bytes
    commitments: bytes
    signatures: bytes


class SumMasked(_Signed):
    """A member's vector under its masks."""

    type_name: ClassVar[str] = "sum.masked"
    spends: ClassVar[bool] = True
    max_bytes: ClassVar[int] = _VECTOR_BYTES

    vector: Array


class SumSurvivors(SumMessage):
    """The members whose vectors are in the sum."""

    type_name: ClassVar[str] = "sum.survivors"

    survivors: Members


class SumAgreed(_Signed):
    """A survivor has seen the list of survivors; its signature says which list."""

    type_name: ClassVar[str] = "sum.agreed"


class SumAgreement(SumMessage):
    """The list of survivors once more, and enough signatures under it."""

    type_name: ClassVar[str] = "sum.agreement"
    max_bytes: ClassVar[int] = _LIST_BYTES

    survivors: Members
    signers: Members
    signatures: bytes


class SumUnmask(_Signed):
    """The shares that a survivor holds, one for each dealer: of its own seed if that survived, of its mask key if it did not."""

    type_name: ClassVar[str] = "sum.unmask"
    max_bytes: ClassVar[int] = _LIST_BYTES

    shares: bytes


SUM_MESSAGES = (SumKeys, SumKeyList, SumShares, SumBoxes, SumMasked, SumSurvivors, SumAgreed, SumAgreement, SumUnmask)
