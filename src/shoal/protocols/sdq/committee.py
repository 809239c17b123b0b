"""Joint choice of an attribute: keys, sealed scores, the aggregator's part.

The functions on top define what the parties of a joint computation sign and seal; peers and the
aggregator call them. `Committee` is the aggregator's state machine. It forwards keys, sealed shares
and frames, and learns the chosen candidate only.

=========  =====================================  ==============================================
phase      waits for                              then
=========  =====================================  ==============================================
keys       a key of every database; for a choice  publishes the keys of the parties. Choice: the
           of enough at the deadline              first that make a committee; waits for scores.
                                                  Selection: all databases, which compute.
scores     the scores of all, or of enough        forwards to each committee member its shares
computing  a choice: the result of every party    has the position, if all results are equal.
                                                  Frames are forwarded in this phase, also those
                                                  of a selection, for which nothing is collected.
over       nothing                                has the position, or the failure
=========  =====================================  ==============================================

Every signature and every sealed box must be bound to the round, the committee and the recipient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from shoal.crypto.hpke import open_box, seal
from shoal.crypto.identity import Identity, Roster, member_error
from shoal.crypto.secagg.context import MemberPublicKeys, RoundContext
from shoal.crypto.secagg.key_shares import check_public_keys
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Digest, Message, Record
from shoal.messages.codec import encode
from shoal.protocols.base import EVERYONE, Effects, Moment, Send, WakeAt
from shoal.protocols.mpc import shares as dealing
from shoal.protocols.mpc.party import JointFrame, find_recipient
from shoal.protocols.sdq.messages import (
    ChoiceResult,
    ComputationFailure,
    Contributions,
    JointKey,
    JointKeys,
    Natural,
    PartyKey,
    SDQAsk,
    SDQScores,
    SealedBox,
    UnusableShares,
)
from shoal.protocols.sdq.params import Ints, SDQParams, compute_committee_size
from shoal.protocols.secagg.collector import RoundFailure
from shoal.protocols.secagg.messages import SumParameters


def check_sum_parameters(params: SDQParams, sum_params: SumParameters) -> None:
    """Raise if the roster and the threshold cannot keep the study's guarantee.

    Notes
    -----
    Ref: errata S-02, S-05, S-06. If a selected database drops out, its noise is missing, so none
    may drop out. If colluders are half of a committee, they know what it computes, and opened
    scores reveal more than the choice that is paid for. Two lists of survivors must have an honest
    signer in common.
    """
    n, c, is_local = len(sum_params.roster), params.max_colluders, params.trust == "local"
    is_possible = n == params.n_databases
    is_possible &= is_local or (
        sum_params.threshold == params.minimum and 2 * params.minimum > n + c
    )
    is_possible &= not has_choices(params) or (not is_local and compute_committee_size(c) <= n)
    if params.noise == "two-selected":
        is_possible &= (
            not is_local and params.variant == "paper" and params.minimum == n and 2 * c < n
        )
    if not is_possible:
        raise LocalProtocolError(
            "PROTO-001",
            f"{n} databases, of which {sum_params.threshold} make a sum, cannot keep what a study "
            f"of {params.n_databases} promises.",
            why="Its roster, minimum and colluders do not fit together.",
        )


def has_choices(params: SDQParams) -> bool:
    """Return whether a committee chooses splits in some rounds."""
    return params.variant == "plus" and params.learner == "tree" and params.choice == "mpc"


def count_parties(params: SDQParams, is_choice: bool) -> int:
    """Return the number of parties: a committee for a choice, all databases for a selection."""
    return compute_committee_size(params.max_colluders) if is_choice else params.n_databases


def find_selection_question(question: str) -> str:
    """Two selected: return the question with which two databases are selected.

    It is the question itself, but the answers of a level use the selection of its sizes.
    """
    return question.replace("answers/", "sizes/")


def compute_ask_digest(ask: SDQAsk) -> bytes:
    """Return the digest of a question: every party computes it from the message it received."""
    return hashlib.sha256(encode(ask)).digest()


def encode_key_statement(context: RoundContext, member: int, box: bytes) -> bytes:
    """Return the statement that a party signs with its key of a round."""
    return context.bind("party's key", member, box)


def check_key(key: PartyKey, context: RoundContext, roster: Roster) -> None:
    """Raise if the party did not sign the key for this round, or the key is weak.

    With a weak key no secret can be agreed.
    """
    roster.check_signature(
        key.party, key.signature, encode_key_statement(context, key.party, key.box)
    )
    check_public_keys(MemberPublicKeys(key.box, key.box, b""), key.party)


def read_keys(
    message: JointKeys, context: RoundContext, roster: Roster, n: int
) -> dict[int, MemberPublicKeys]:
    """Return the keys of ``n`` parties.

    Raises `RemoteProtocolError` against the sender of the message if a key is missing or not
    theirs.

    Notes
    -----
    The coordinator chooses the members of a committee, because only it knows which databases are
    online; it is not trusted. At most C databases collude, so at most C are on any committee of 2C
    + 1, and C shares reveal nothing of a dealer's scores. Showing different committees to different
    databases does not help the coordinator: shares for one committee cannot be used by another
    (`committee_context`), parties with different lists cannot read each other's frames, and a
    database sends its scores once.
    """
    parties = [key.party for key in message.keys]
    if len(parties) != n or parties != sorted(set(parties)):
        raise RemoteProtocolError(
            "SDQ-003",
            f"The keys of round {message.round} are not those of {n} parties, each once and in "
            "order.",
        )
    for key in message.keys:
        check_key(key, context, roster)
    return index_keys(message)


def committee_context(context: RoundContext, keys: Sequence[PartyKey]) -> RoundContext:
    """Return the context of a committee, for which scores are shared.

    Notes
    -----
    Ref: errata S-06. A share is useful at one evaluation point only. If it could be passed on to
    another committee, in which the same party has another point, colluders would have something
    computed that the price does not cover.
    """
    seats = (part for key in keys for part in (key.party, key.box))
    return replace(context, query=hashlib.sha256(context.bind("committee", *seats)).digest())


def index_keys(message: JointKeys) -> dict[int, MemberPublicKeys]:
    """Return verified keys by party."""
    return {key.party: MemberPublicKeys(b"", key.box, b"") for key in message.keys}


def seal_scores(
    scores: Ints,
    context: RoundContext,
    me: int,
    identity: Identity,
    keys: Mapping[int, MemberPublicKeys],
    n_dealers: int,
    entropy: Entropy,
) -> tuple[SealedBox, ...]:
    """Return a database's noisy scores as threshold shares, each sealed for one party and signed.

    Here and below the context is `committee_context`.
    """
    dealt = dealing.split(scores.tolist(), len(keys), entropy, n_dealers)
    boxes = []
    for (party, theirs), shares in zip(keys.items(), dealt, strict=True):
        box = seal(theirs.box, dealing.pack(shares), _encode_box_info(context, me, party))
        boxes.append(
            SealedBox(
                member=party,
                box=box,
                signature=identity.sign(_encode_box_statement(context, me, party, theirs.box, box)),
            )
        )
    return tuple(boxes)


def check_box(
    box: SealedBox, context: RoundContext, roster: Roster, dealer: int, party: int, public: bytes
) -> None:
    """Raise if the dealer did not sign the box for this party and its key of this round."""
    roster.check_signature(
        dealer, box.signature, _encode_box_statement(context, dealer, party, public, box.box)
    )


def check_contributions(
    message: Contributions,
    context: RoundContext,
    roster: Roster,
    party: int,
    public: bytes,
    minimum: int,
) -> tuple[int, ...]:
    """Return the databases with valid contributions.

    Raises `RemoteProtocolError` against the sender of the message if they are too few or not
    theirs.
    """
    dealers = tuple(box.member for box in message.boxes)
    if len(dealers) < minimum or list(dealers) != sorted(set(dealers)):
        raise RemoteProtocolError(
            "SDQ-003",
            f"The scores of {len(dealers)} databases came for round {message.round}; {minimum} "
            "are needed, each once and in order.",
            why="Fewer scores contain less noise than the study promises.",
        )
    for box in message.boxes:
        check_box(box, context, roster, box.member, party, public)
    return dealers


def sum_shares(
    message: Contributions, context: RoundContext, party: int, private: bytes, n_scores: int
) -> tuple[int, ...]:
    """Return a party's shares of the sums of all scores.

    Raises `MemberError` with the dealer of a signed box that cannot be used.
    """
    dealt = []
    for box in message.boxes:
        try:
            dealt.append(
                dealing.unpack(
                    open_box(private, box.box, _encode_box_info(context, box.member, party)),
                    n_scores,
                )
            )
        except RemoteProtocolError as error:
            raise member_error(
                box.member,
                f"The scores that member {box.member} has dealt cannot be used.",
                error.what,
            ) from None
    return dealing.add(dealt)


def _encode_box_info(context: RoundContext, dealer: int, party: int) -> bytes:
    return context.bind("scores", dealer, party)


def _encode_box_statement(
    context: RoundContext, dealer: int, party: int, public: bytes, box: bytes
) -> bytes:
    return context.bind("sealed scores", dealer, party, public, box)


PartyMessage = (
    JointKey | JointFrame | SDQScores | ChoiceResult | UnusableShares | ComputationFailure
)


class DealtScores(Record):
    """The boxes of one database, in the order of the parties; empty after they are forwarded."""

    member: Natural
    boxes: tuple[SealedBox, ...] = ()


class PartyResult(Record):
    """The result of one committee member."""

    member: Natural
    position: Natural


class CommitteeState(Record):
    """A joint computation of the open round.

    Parameters
    ----------
    round, query
        The round, and the digest of its question.
    n_candidates
        Number of candidates; 0 if two databases are selected.
    phase, deadline
        The phase, and its end.
    keys
        The keys of all databases that sent one; after publication, of the parties alone.
    dealt, said
        The received sealed scores and results.
    forwarded
        Bytes of the frames of each party that were forwarded, by its number.
    position, failed
        The chosen candidate, or the failure.
    """

    round: Natural
    query: Digest
    n_candidates: Natural
    deadline: Moment
    phase: Literal["keys", "scores", "computing", "over"] = "keys"
    keys: tuple[PartyKey, ...] = ()
    dealt: tuple[DealtScores, ...] = ()
    said: tuple[PartyResult, ...] = ()
    forwarded: tuple[Natural, ...] = ()
    position: Natural | None = None
    failed: RoundFailure | None = None

    @property
    def is_choice(self) -> bool:
        """Whether a candidate is chosen; otherwise two databases are selected."""
        return self.n_candidates > 0

    @property
    def parties(self) -> tuple[int, ...]:
        """The databases of the keys, in order once they are published."""
        return tuple(key.party for key in self.keys)


def _count_forwarded(state: CommitteeState, number: int, frame: JointFrame) -> CommitteeState:
    """Count the bytes of a frame; raise ``JOINT-002`` if its sender sends too many."""
    forwarded = list(state.forwarded or (0,) * len(state.parties))
    forwarded[number] += len(frame.sealed)
    if forwarded[number] > dealing.MAX_PAIR_BYTES * (len(state.parties) - 1):
        raise RemoteProtocolError(
            "JOINT-002",
            f"Party {number} of round {state.round} sent {forwarded[number]:,} bytes.",
            why=f"A party accepts at most {dealing.MAX_PAIR_BYTES:,} bytes of another.",
        )
    return state.replace(forwarded=tuple(forwarded))


@dataclass(frozen=True)
class Committee:
    """The aggregator's part in joint computations.

    Parameters
    ----------
    sum_params
        The study's digest and roster.
    phase_timeout
        Waiting time of each phase.
    """

    params: SDQParams
    sum_params: SumParameters
    phase_timeout: timedelta

    def begin(
        self, number: int, query: bytes, n_candidates: int, now: datetime
    ) -> tuple[CommitteeState, Effects]:
        """Start a computation, and wait for the parties' keys."""
        deadline = now + self.phase_timeout
        return CommitteeState(
            round=number, query=query, n_candidates=n_candidates, deadline=deadline
        ), (WakeAt(deadline),)

    def handle_message(
        self, state: CommitteeState, sender: str, message: PartyMessage, now: datetime
    ) -> tuple[CommitteeState, Effects]:
        """Process an untrusted message of a party."""
        member, parties = self.sum_params.roster.find_position(sender), state.parties
        is_late = isinstance(message, JointKey) and state.phase != "keys"
        is_late |= isinstance(message, SDQScores) and state.phase == "computing"
        if is_late or state.phase == "over":
            return state, ()
        if not isinstance(message, JointKey | SDQScores) and member not in parties:
            raise unexpected_message_error(sender, message)
        match message:
            case JointKey() if member not in parties:
                return self._add_key(state, member, message, now)
            case SDQScores() if state.phase == "scores" and member not in {
                dealt.member for dealt in state.dealt
            }:
                return self._add_scores(state, member, sender, message, now)
            case JointFrame() if state.phase == "computing":
                number = parties.index(member)
                to = parties[find_recipient(message, number, len(parties))]
                state = _count_forwarded(state, number, message)
                return state, (Send(self.sum_params.roster.names[to], message),)
            case ChoiceResult(position=position) if (
                state.phase == "computing" and position < state.n_candidates
            ):
                if member not in {said.member for said in state.said}:
                    return self._add_result(
                        state, PartyResult(member=member, position=position)
                    ), ()
            case UnusableShares(dealer=dealer) if state.phase == "computing" and dealer in {
                dealt.member for dealt in state.dealt
            }:
                return self._fail_bad_shares(
                    state, sender, self.sum_params.roster.names[dealer]
                ), ()
            case ComputationFailure(party=named) if state.phase == "computing" and named in {
                None,
                *parties,
            } - {member}:
                return self._fail_computation(
                    state, sender, None if named is None else self.sum_params.roster.names[named]
                ), ()
        raise unexpected_message_error(sender, message)

    def handle_tick(self, state: CommitteeState, now: datetime) -> tuple[CommitteeState, Effects]:
        """End a phase at its deadline.

        Scores, and keys for a choice, may then be incomplete; results may not. Whether all
        databases have continued after a selection shows in the sum that follows.
        """
        if state.phase == "over" or now < state.deadline:
            return state, ()
        if state.phase == "keys":
            minimum = count_parties(self.params, state.is_choice)
            if len(state.keys) < minimum:
                return self._fail_too_few(
                    state, len(state.keys), minimum, "keys for a joint computation"
                ), ()
            return self._publish_keys(state, now)
        if state.phase == "computing":
            return self._fail_too_few(state, len(state.said), len(state.keys), "their results"), ()
        if len(state.dealt) < self.params.minimum:
            return self._fail_too_few(state, len(state.dealt), self.params.minimum, "scores"), ()
        return self._forward_scores(state, now)

    def _add_key(
        self, state: CommitteeState, member: int, message: JointKey, now: datetime
    ) -> tuple[CommitteeState, Effects]:
        key = PartyKey(party=member, box=message.box, signature=message.signature)
        check_key(key, self._make_context(state), self.sum_params.roster)
        state = state.replace(keys=(*state.keys, key))
        return (
            self._publish_keys(state, now)
            if len(state.keys) == self.params.n_databases
            else (state, ())
        )

    def _publish_keys(self, state: CommitteeState, now: datetime) -> tuple[CommitteeState, Effects]:
        """Publish the parties: the first databases that sent a key."""
        keys, deadline = (
            tuple(sorted(state.keys, key=lambda key: key.party)),
            now + self.phase_timeout,
        )
        keys = keys[: count_parties(self.params, state.is_choice)]
        state = state.replace(
            phase="scores" if state.is_choice else "computing", keys=keys, deadline=deadline
        )
        return state, (
            Send(EVERYONE, JointKeys(study=self.sum_params.study, round=state.round, keys=keys)),
            WakeAt(deadline),
        )

    def _add_scores(
        self, state: CommitteeState, member: int, sender: str, message: SDQScores, now: datetime
    ) -> tuple[CommitteeState, Effects]:
        if tuple(box.member for box in message.boxes) != state.parties:
            raise RemoteProtocolError(
                "SDQ-003",
                f"{sender} did not send one share of its scores to each committee member.",
            )
        context = committee_context(self._make_context(state), state.keys)
        for box, key in zip(message.boxes, state.keys, strict=True):
            check_box(box, context, self.sum_params.roster, member, key.party, key.box)
        state = state.replace(dealt=(*state.dealt, DealtScores(member=member, boxes=message.boxes)))
        return (
            self._forward_scores(state, now)
            if len(state.dealt) == self.params.n_databases
            else (state, ())
        )

    def _forward_scores(
        self, state: CommitteeState, now: datetime
    ) -> tuple[CommitteeState, Effects]:
        """Send to each party the boxes that all databases have sealed for it."""
        dealt, deadline = (
            sorted(state.dealt, key=lambda scores: scores.member),
            now + self.phase_timeout,
        )
        sends = []
        for i, party in enumerate(state.parties):
            boxes = tuple(scores.boxes[i].replace(member=scores.member) for scores in dealt)
            message = Contributions(study=self.sum_params.study, round=state.round, boxes=boxes)
            sends.append(Send(self.sum_params.roster.names[party], message))
        state = state.replace(
            phase="computing",
            deadline=deadline,
            dealt=tuple(DealtScores(member=scores.member) for scores in dealt),
        )
        return state, (*sends, WakeAt(deadline))

    def _add_result(self, state: CommitteeState, said: PartyResult) -> CommitteeState:
        state, n = state.replace(said=(*state.said, said)), len(state.keys)
        if len(state.said) < n:
            return state
        if len({result.position for result in state.said}) == 1:
            return state.replace(phase="over", position=said.position)
        what = f"The {n} committee members report different results."
        return state.replace(
            phase="over",
            failed=RoundFailure(
                code="SDQ-003", what=what, why="At least one of them did not follow the protocol."
            ),
        )

    def _fail_bad_shares(self, state: CommitteeState, sender: str, dealer: str) -> CommitteeState:
        what = (
            f"Round {state.round} failed: {sender} cannot use the scores that {dealer} sent to it."
        )
        why = "One of the two does not follow the protocol. Answers already sent are charged."
        return state.replace(phase="over", failed=RoundFailure(code="SDQ-003", what=what, why=why))

    def _fail_computation(
        self, state: CommitteeState, sender: str, named: str | None
    ) -> CommitteeState:
        what = f"Round {state.round} failed: the joint computation of {sender} failed"
        what += "." if named is None else f"; it reports an unusable message of {named}."
        why = (
            "Its process died, its machine went down, or its result was impossible."
            if named is None
            else "One of the two does not follow the protocol."
        )
        return state.replace(
            phase="over",
            failed=RoundFailure(
                code="SDQ-004", what=what, why=f"{why} Answers already sent are charged."
            ),
        )

    def _fail_too_few(
        self, state: CommitteeState, n: int, minimum: int, what: str
    ) -> CommitteeState:
        return state.replace(phase="over", failed=too_few_failure(state.round, n, minimum, what))

    def _make_context(self, state: CommitteeState) -> RoundContext:
        return self.sum_params.make_context(state.round, state.query)


def too_few_failure(number: int, n: int, minimum: int, what: str) -> RoundFailure:
    """Return the failure of a round with too few answers."""
    return RoundFailure(
        code="SDQ-004",
        what=f"Round {number} failed: {n} databases sent {what} in time; {minimum} are needed.",
        why="Answers already sent are charged, and the same question is not asked again.",
    )


def unexpected_message_error(sender: str, message: Message) -> RemoteProtocolError:
    """Return the error for a message that does not belong to the current phase."""
    return RemoteProtocolError(
        "SDQ-003", f"{sender} sent a {message.type_name} that is not expected now."
    )
