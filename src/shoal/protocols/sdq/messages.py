"""Messages.

The rounds that the aggregator (the miner) asks, the answers of peers, and the messages of a joint
computation; `MESSAGES` also contains those of a secure sum. Type names, fields and limits are the
wire format: a change breaks running studies.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from shoal.messages.base import Array, Message, Record, Registry
from shoal.protocols.mpc.party import JointFrame
from shoal.protocols.sdq.queries import FreeQuery
from shoal.protocols.sdq.script import SDQScriptState
from shoal.protocols.secagg.messages import SUM_MESSAGES

Natural = Annotated[int, Field(ge=0)]
Key = Annotated[bytes, Field(min_length=32, max_length=32)]
Signature = Annotated[bytes, Field(min_length=64, max_length=64)]
SealedShares = Annotated[bytes, Field(max_length=1 << 15)]
"""Space for the shares of 2,000 scores, the most features of a study."""

MAX_REASON = 500
"""Most characters of the reason for which a study ends."""

_MANY = 1 << 20
_MAX_BYTES = (1 << 23) + (1 << 10)


class SDQAsk(Message):
    """The next round: one of the script, or a free count query."""

    type_name: ClassVar[str] = "sdq.ask"
    max_bytes: ClassVar[int] = _MANY

    round: Natural
    course: SDQScriptState
    query: FreeQuery | None = None
    number: Natural = 0


class Counts(Message):
    """Trust local: the counts of one database, with all of their noise."""

    type_name: ClassVar[str] = "sdq.counts"
    spends: ClassVar[bool] = True
    report_fields: ClassVar[tuple[str, ...]] = ("counts",)
    max_bytes: ClassVar[int] = _MAX_BYTES

    round: Natural
    counts: Array

    @property
    def submission(self) -> bytes:
        return self.round.to_bytes(8, "big")


class JointKey(Message):
    """A fresh key for a joint computation, signed with the database's roster key."""

    type_name: ClassVar[str] = "sdq.joint-key"

    round: Natural
    box: Key
    signature: Signature

    @property
    def submission(self) -> bytes:
        return self.round.to_bytes(8, "big")


class PartyKey(Record):
    """The key of one party, as forwarded by the miner."""

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
    """Sealed shares of noisy scores; the sender's or the recipient's position on the roster."""

    member: Natural
    box: SealedShares
    signature: Signature


class SDQScores(Message):
    """The noisy scores of one database: one sealed share for each committee member."""

    type_name: ClassVar[str] = "sdq.scores"
    spends: ClassVar[bool] = True
    report_fields: ClassVar[tuple[str, ...]] = ("boxes",)
    max_bytes: ClassVar[int] = _MANY

    round: Natural
    boxes: tuple[SealedBox, ...]

    @property
    def submission(self) -> bytes:
        return self.round.to_bytes(8, "big")


class Contributions(Message):
    """All shares for one committee member, from all databases that sent scores in time."""

    type_name: ClassVar[str] = "sdq.contributions"
    max_bytes: ClassVar[int] = _MAX_BYTES

    round: Natural
    boxes: tuple[SealedBox, ...]


class ChoiceResult(Message):
    """From a committee member: the index of the chosen candidate."""

    type_name: ClassVar[str] = "sdq.settled"

    round: Natural
    position: Natural

    @property
    def submission(self) -> bytes:
        return self.round.to_bytes(8, "big")


class UnusableShares(Message):
    """From a committee member: a database's signed shares cannot be opened or are malformed."""

    type_name: ClassVar[str] = "sdq.unusable"

    round: Natural
    dealer: Natural

    @property
    def submission(self) -> bytes:
        return self.round.to_bytes(8, "big")


class ComputationFailure(Message):
    """From a party: its joint computation failed; with the party at fault, if known."""

    type_name: ClassVar[str] = "sdq.broken-off"

    round: Natural
    party: Natural | None = None

    @property
    def submission(self) -> bytes:
        return self.round.to_bytes(8, "big")


class SDQStudyEnd(Message):
    """The end of the study: the model is complete, or it failed for the given reason."""

    type_name: ClassVar[str] = "sdq.ended"

    reason: Annotated[str, Field(max_length=MAX_REASON)] | None = None


MESSAGES = Registry(
    SDQAsk,
    Counts,
    JointKey,
    JointKeys,
    SDQScores,
    Contributions,
    ChoiceResult,
    UnusableShares,
    ComputationFailure,
    SDQStudyEnd,
    JointFrame,
    *SUM_MESSAGES,
)
