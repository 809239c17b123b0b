"""A joint computation as the aggregator sees it: it passes on keys, sealed shares and frames, and hears what was chosen.

=========  =====================================  ====================================================================
phase      waits for                              then
=========  =====================================  ====================================================================
keys       a key of every database, for a choice  publishes those of the parties: for a choice of the first that make a committee,
           of enough when the time is up          and waits for scores; for a selection of all, which compute
scores     the scores of all, or of enough        passes its shares on to each party of the committee
computing  of a choice what every party computed  has the position, if all say the same; frames are passed on meanwhile, also of
                                                  a selection, whose parties go on by themselves
over       nothing                                has the position, or why there is none
=========  =====================================  ====================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from shoal.crypto.context import Context
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Digest, Message, Record
from shoal.protocols.base import EVERYONE, Effects, Moment, Send, WakeAt
from shoal.protocols.joint.messages import JointFrame
from shoal.protocols.joint.party import recipient
from shoal.protocols.sdq.joining import check_box, check_key, n_parties, seated
from shoal.protocols.sdq.messages import (
    BrokenOff,
    Contributions,
    JointKey,
    JointKeys,
    Natural,
    PartyKey,
    Scores,
    SealedBox,
    Settled,
    Unusable,
)
from shoal.protocols.sdq.params import Params
from shoal.protocols.sums.gathering import Failure
from shoal.protocols.sums.terms import Terms

FromParty = JointKey | JointFrame | Scores | Settled | Unusable | BrokenOff


class Dealt(Record):
    """The boxes of one database, in the order of the parties that they are for; empty once they are passed on."""

    member: Natural
    boxes: tuple[SealedBox, ...] = ()


class Said(Record):
    """What one party of the committee has computed."""

    member: Natural
    position: Natural


class Joint(Record):
    """A joint computation of the open round.

    Parameters
    ----------
    round, query
        Which round, and the digest of what is asked in it.
    n_candidates
        Among how many one is chosen; 0 where two databases are selected.
    phase, deadline
        How far it is, and until when it waits.
    keys
        The keys of all that sent one; once they are published, of the parties alone.
    dealt, said
        What else came: sealed scores, results.
    position, failed
        What was chosen, or why nothing was.
    """

    round: Natural
    query: Digest
    n_candidates: Natural
    deadline: Moment
    phase: Literal["keys", "scores", "computing", "over"] = "keys"
    keys: tuple[PartyKey, ...] = ()
    dealt: tuple[Dealt, ...] = ()
    said: tuple[Said, ...] = ()
    position: Natural | None = None
    failed: Failure | None = None

    @property
    def is_choice(self) -> bool:
        """Whether a candidate is chosen, rather than two databases selected."""
        return self.n_candidates > 0

    @property
    def parties(self) -> tuple[int, ...]:
        """Whose keys these are, in order once they are published."""
        return tuple(key.party for key in self.keys)


@dataclass(frozen=True)
class Committee:
    """The aggregator's part in joint computations.

    Parameters
    ----------
    params, terms
        The public figures of the study; its digest and roster.
    patience
        How long each phase waits.
    """

    params: Params
    terms: Terms
    patience: timedelta

    def begin(self, number: int, query: bytes, n_candidates: int, now: datetime) -> tuple[Joint, Effects]:
        """Wait for the parties' keys."""
        deadline = now + self.patience
        return Joint(round=number, query=query, n_candidates=n_candidates, deadline=deadline), (WakeAt(deadline),)

    def received(self, joint: Joint, sender: str, message: FromParty, now: datetime) -> tuple[Joint, Effects]:
        """Take what a party has sent, which may lie."""
        member, parties = self.terms.roster.position(sender), joint.parties
        is_late = isinstance(message, JointKey) and joint.phase != "keys"
        is_late |= isinstance(message, Scores) and joint.phase == "computing"
        if is_late or joint.phase == "over":
            return joint, ()
        if not isinstance(message, JointKey | Scores) and member not in parties:
            raise unexpected(sender, message)
        match message:
            case JointKey() if member not in parties:
                return self._key(joint, member, message, now)
            case Scores() if joint.phase == "scores" and member not in {dealt.member for dealt in joint.dealt}:
                return self._scores(joint, member, sender, message, now)
            case JointFrame() if joint.phase == "computing":
                to = parties[recipient(message, parties.index(member), len(parties))]
                return joint, (Send(self.terms.roster.names[to], message),)
            case Settled(position=position) if joint.phase == "computing" and position < joint.n_candidates:
                if member not in {said.member for said in joint.said}:
                    return self._said(joint, Said(member=member, position=position)), ()
            case Unusable(dealer=dealer) if joint.phase == "computing" and dealer in {dealt.member for dealt in joint.dealt}:
                return self._misdealt(joint, sender, self.terms.roster.names[dealer]), ()
            case BrokenOff(party=named) if joint.phase == "computing" and named in {None, *parties} - {member}:
                return self._broken(joint, sender, None if named is None else self.terms.roster.names[named]), ()
        raise unexpected(sender, message)

    def ticked(self, joint: Joint, now: datetime) -> tuple[Joint, Effects]:
        """The time of a phase may be up: scores, and keys for a choice, may then be fewer than all; results may not.

        Whether all have gone on from a selection is for the sum that follows to find out.
        """
        if joint.phase == "over" or now < joint.deadline:
            return joint, ()
        if joint.phase == "keys":
            least = n_parties(self.params, joint.is_choice)
            if len(joint.keys) < least:
                return self._too_few(joint, len(joint.keys), least, "keys for a joint computation"), ()
            return self._seated(joint, now)
        if joint.phase == "computing":
            return self._too_few(joint, len(joint.said), len(joint.keys), "what they chose"), ()
        if len(joint.dealt) < self.params.minimum:
            return self._too_few(joint, len(joint.dealt), self.params.minimum, "scores"), ()
        return self._passed_on(joint, now)

    def _key(self, joint: Joint, member: int, message: JointKey, now: datetime) -> tuple[Joint, Effects]:
        key = PartyKey(party=member, box=message.box, signature=message.signature)
        check_key(key, self._context(joint), self.terms.roster)
        joint = joint.replace(keys=(*joint.keys, key))
        return self._seated(joint, now) if len(joint.keys) == self.params.n_databases else (joint, ())

    def _seated(self, joint: Joint, now: datetime) -> tuple[Joint, Effects]:
        """Say who computes: the first of those that are there."""
        keys, deadline = tuple(sorted(joint.keys, key=lambda key: key.party)), now + self.patience
        keys = keys[: n_parties(self.params, joint.is_choice)]
        joint = joint.replace(phase="scores" if joint.is_choice else "computing", keys=keys, deadline=deadline)
        return joint, (Send(EVERYONE, JointKeys(study=self.terms.study, round=joint.round, keys=keys)), WakeAt(deadline))

    def _scores(self, joint: Joint, member: int, sender: str, message: Scores, now: datetime) -> tuple[Joint, Effects]:
        if tuple(box.member for box in message.boxes) != joint.parties:
            raise RemoteProtocolError("SDQ-003", f"{sender} has not dealt its scores to the parties of the committee.")
        context = seated(self._context(joint), joint.keys)
        for box, key in zip(message.boxes, joint.keys, strict=True):
            check_box(box, context, self.terms.roster, member, key.party, key.box)
        joint = joint.replace(dealt=(*joint.dealt, Dealt(member=member, boxes=message.boxes)))
        return self._passed_on(joint, now) if len(joint.dealt) == self.params.n_databases else (joint, ())

    def _passed_on(self, joint: Joint, now: datetime) -> tuple[Joint, Effects]:
        """To each party the boxes that all databases have dealt to it."""
        dealt, deadline = sorted(joint.dealt, key=lambda one: one.member), now + self.patience
        sends = []
        for i, party in enumerate(joint.parties):
            boxes = tuple(one.boxes[i].replace(member=one.member) for one in dealt)
            message = Contributions(study=self.terms.study, round=joint.round, boxes=boxes)
            sends.append(Send(self.terms.roster.names[party], message))
        joint = joint.replace(phase="computing", deadline=deadline, dealt=tuple(Dealt(member=one.member) for one in dealt))
        return joint, (*sends, WakeAt(deadline))

    def _said(self, joint: Joint, said: Said) -> Joint:
        joint, n = joint.replace(said=(*joint.said, said)), len(joint.keys)
        if len(joint.said) < n:
            return joint
        if len({one.position for one in joint.said}) == 1:
            return joint.replace(phase="over", position=said.position)
        what = f"The {n} databases that chose jointly say different things."
        return joint.replace(phase="over", failed=Failure(code="SDQ-003", what=what, why="Some of them did not follow the protocol."))

    def _misdealt(self, joint: Joint, sender: str, dealer: str) -> Joint:
        what = f"Round {joint.round} is given up: {sender} cannot use the scores that {dealer} has dealt to it."
        why = "One of the two does not follow the protocol. What was sent is spent."
        return joint.replace(phase="over", failed=Failure(code="SDQ-003", what=what, why=why))

    def _broken(self, joint: Joint, sender: str, named: str | None) -> Joint:
        what = f"Round {joint.round} is given up: the joint computation of {sender} broke off"
        what += "." if named is None else f", by what {named} sent, it says."
        why = (
            "Its process died, its machine went down, or it came to no possible result."
            if named is None
            else "One of the two does not follow the protocol."
        )
        return joint.replace(phase="over", failed=Failure(code="SDQ-004", what=what, why=f"{why} What was sent is spent."))

    def _too_few(self, joint: Joint, n: int, least: int, what: str) -> Joint:
        return joint.replace(phase="over", failed=too_few(joint.round, n, least, what))

    def _context(self, joint: Joint) -> Context:
        return self.terms.context(joint.round, joint.query)


def too_few(number: int, n: int, least: int, what: str) -> Failure:
    """Why a round is given up."""
    return Failure(
        code="SDQ-004",
        what=f"Round {number} is given up: {n} databases sent {what} in time; {least} are needed.",
        why="What was sent is spent, and the same is not asked again.",
    )


def unexpected(sender: str, message: Message) -> RemoteProtocolError:
    """The refusal of what is not due."""
    return RemoteProtocolError("SDQ-003", f"{sender} sends a {message.type_name} that is not due.")
