"""What travels in SDQ besides the messages of a secure sum: what is asked, and what belongs to a joint computation."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from shoal.messages.base import Array, Message, Record, Registry
from shoal.protocols.joint.messages import JointFrame
from shoal.protocols.sdq.queries import FreeQuery
from shoal.protocols.sdq.script import Course
from shoal.protocols.sums.messages import SUM_MESSAGES

Natural = Annotated[int, Field(ge=0)]
Key = Annotated[bytes, Field(min_length=32, max_length=32)]
Signature = Annotated[bytes, Field(min_length=64, max_length=64)]
SealedShares = Annotated[bytes, Field(max_length=1 << 15)]
"""Room for the shares of 2,000 scores, the most features that a study has."""

MAX_REASON = 500
"""Most characters of the reason for which a study ends."""

_MANY = 1 << 20
_MOST = (1 << 23) + (1 << 10)


class Ask(Message):
    """The miner asks the next round: that of a course, or a free count."""

    type_name: ClassVar[str] = "sdq.ask"
    max_bytes: ClassVar[int] = _MANY

    round: Natural
    course: Course
    query: FreeQuery | None = None
    number: Natural = 0


class Counts(Message):
    """Trust local: the counts of one database, with all of their noise."""

    type_name: ClassVar[str] = "sdq.counts"
    spends: ClassVar[bool] = True
    max_bytes: ClassVar[int] = _MOST

    round: Natural
    counts: Array

    @property
    def submission(self) -> bytes:
        return self.round.to_bytes(8, "big")


class JointKey(Message):
    """A fresh key for a joint computation, signed with the database's key of the roster."""

    type_name: ClassVar[str] = "sdq.joint-key"

    round: Natural
    box: Key
    signature: Signature

    @property
    def submission(self) -> bytes:
        return self.round.to_bytes(8, "big")


class PartyKey(Record):
    """The key of a party, as the coordinator passes it on."""

    party: Natural
    box: Key
    signature: Signature


class JointKeys(Message):
    """The keys of all parties of a joint computation."""

    type_name: ClassVar[str] = "sdq.joint-keys"
    max_bytes: ClassVar[int] = _MANY

    round: Natural
    keys: tuple[PartyKey, ...]


class SealedBox(Record):
    """Shares of noisy scores for one party; from whom, or to whom, by the position in the roster."""

    member: Natural
    box: SealedShares
    signature: Signature


class Scores(Message):
    """The noisy scores of one database, in threshold shares for the committee, each sealed for one of its parties."""

    type_name: ClassVar[str] = "sdq.scores"
    spends: ClassVar[bool] = True
    max_bytes: ClassVar[int] = _MANY

    round: Natural
    boxes: tuple[SealedBox, ...]

    @property
    def submission(self) -> bytes:
        return self.round.to_bytes(8, "big")


class Contributions(Message):
    """To one party of the committee: the shares that it was dealt by all whose scores count."""

    type_name: ClassVar[str] = "sdq.contributions"
    max_bytes: ClassVar[int] = _MOST

    round: Natural
    boxes: tuple[SealedBox, ...]


class Settled(Message):
    """A party of the committee: the position of the candidate that was chosen."""

    type_name: ClassVar[str] = "sdq.settled"

    round: Natural
    position: Natural

    @property
    def submission(self) -> bytes:
        return self.round.to_bytes(8, "big")


class Unusable(Message):
    """A party of the committee: the scores that a database has dealt to it, and has signed, do not open or are none."""

    type_name: ClassVar[str] = "sdq.unusable"

    round: Natural
    dealer: Natural

    @property
    def submission(self) -> bytes:
        return self.round.to_bytes(8, "big")


class BrokenOff(Message):
    """A party: its joint computation broke off; and by whose fault, where it knows."""

    type_name: ClassVar[str] = "sdq.broken-off"

    round: Natural
    party: Natural | None = None

    @property
    def submission(self) -> bytes:
        return self.round.to_bytes(8, "big")


class Ended(Message):
    """The miner asks no more: it has learned all, or has given up for a reason."""

    type_name: ClassVar[str] = "sdq.ended"

    reason: Annotated[str, Field(max_length=MAX_REASON)] | None = None


MESSAGES = Registry(Ask, Counts, JointKey, JointKeys, Scores, Contributions, Settled, Unusable, BrokenOff, Ended, JointFrame, *SUM_MESSAGES)
