"""The peer (one database).

It answers the rounds of its study, each once, at the price that it computes from the manifest.

========================  =========================================================================
input                     action
========================  =========================================================================
``SDQAsk``                check that its state belongs to the study's script; begin the round
sum, all contribute       take part in the secure sum; after the exchange of keys and shares, ask
                          the ledger
sum, two selected         first select jointly, once for each level; then as above
choice                    publish a key; when the committee's keys are there, ask the ledger
trust local               ask the ledger
granted                   count, add noise, and mask, share or send
``Contributions``         (committee) add up the received shares; compute the chosen candidate, or
                          report a bad dealer
joint computation failed  report the failure to the aggregator, with the party at fault if known
``SDQStudyEnd``           finish, or abort with the given reason; answer nothing more
========================  =========================================================================

The peer leaves an open round when another one is asked. An answered question stays answered, and is
not answered again. The state is saved, so secrets are erased from it as soon as possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import numpy as np
from pydantic import Field

from shoal.crypto.identity import MemberError
from shoal.crypto.secagg.context import RoundContext
from shoal.crypto.secagg.key_agreement import derive_public_key
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.privacy.events import Event
from shoal.privacy.private import Private
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    Abort,
    Broken,
    ComputationInput,
    Effects,
    Emitted,
    Finish,
    Peer,
    PeerState,
    Send,
    unpriced_question_error,
)
from shoal.protocols.mpc import party
from shoal.protocols.mpc.party import JointFrame
from shoal.protocols.sdq.committee import (
    check_contributions,
    check_sum_parameters,
    committee_context,
    compute_ask_digest,
    count_parties,
    encode_key_statement,
    find_selection_question,
    index_keys,
    read_keys,
    seal_scores,
    sum_shares,
)
from shoal.protocols.sdq.messages import (
    MAX_REASON,
    MESSAGES,
    ChoiceResult,
    ComputationFailure,
    Contributions,
    Counts,
    JointKey,
    JointKeys,
    Natural,
    SDQAsk,
    SDQScores,
    SDQStudyEnd,
    UnusableShares,
)
from shoal.protocols.sdq.noise import ADDS, SUBTRACTS, draw_noisy_counts
from shoal.protocols.sdq.params import CellTable, Ints
from shoal.protocols.sdq.queries import QueryRules, make_query_round, price_query
from shoal.protocols.sdq.script import SDQRound, SDQScript
from shoal.protocols.secagg.member import MemberState, SumMember
from shoal.protocols.secagg.messages import SumMasked, SumMessage
from shoal.text import escape_text


class SDQPeerState(PeerState):
    """The open round, and the peer's state in it.

    Parameters
    ----------
    asked_for
        The last question.
    sitting
        The secure sum.
    seat, box, keys
        The joint computation, this peer's private key in it, and the keys of its parties.
    selected
        Two selected: the levels for which a selection was begun, in order.
    role
        This database's role in the last of them (0 nothing, 1 add, 2 subtract); None if it is
        unknown or no longer needed.
    is_over
        Whether nothing more is answered.
    """

    asked_for: SDQAsk | None = None
    sitting: MemberState | None = None
    seat: party.PartyState | None = None
    box: Annotated[bytes, Field(repr=False)] = b""
    keys: JointKeys | None = None
    selected: tuple[str, ...] = ()
    role: Annotated[Natural | None, Field(repr=False)] = None
    is_over: bool = False

    def close_computation(self) -> SDQPeerState:
        """Return the state without the secrets of the joint computation."""
        return self.replace(
            seat=None if self.seat is None else party.leave(self.seat), box=b"", keys=None
        )

    def leave_round(self) -> SDQPeerState:
        """Return the state after leaving the round: all its secrets are erased.

        Later messages of the round are dropped.
        """
        return self.close_computation().replace(
            sitting=None if self.sitting is None else self.sitting.end()
        )


class SDQPeer(Peer[SDQPeerState]):
    """The peer of one database.

    Parameters
    ----------
    script
        The script of the study, by which this peer prices and checks every question.
    member
        Position on the roster, signing key, and the digest of the study.
    table
        The database's rows, with at most ``max_rows`` of one unit.
    query_rules
        The study's ``[queries]``, if any.

    Notes
    -----
    Ref: SDQ §V, Algorithms 1 to 3; errata S-01 to S-12.

    Privacy
    -------
    The scope of the study's parameters. Every question costs what the script says, whatever state
    the aggregator invents, and is answered once. All questions together cost at most the study's
    epsilon, and the free counts the study's price for them. The cost is due when the masked numbers
    leave, whether or not the sum is ever opened.
    """

    messages = MESSAGES

    def __init__(
        self,
        script: SDQScript,
        member: SumMember,
        table: CellTable,
        query_rules: QueryRules | None = None,
    ) -> None:
        check_sum_parameters(script.params, member.sum_params)
        self.study = member.sum_params.study
        self.script = script
        self.params = script.params
        self.member = member
        self.query_rules = query_rules
        self._table = Private(table)
        self._prices = self.compute_prices()

    def compute_prices(self) -> Mapping[str, Event]:
        """Return the price of every question."""
        if self.params.is_noiseless:
            raise LocalProtocolError(
                "PROTO-001",
                "A peer cannot answer without noise.",
                why="Such an answer has no price that a participant could agree to.",
                fix="Set a finite epsilon in the study; only simulations run without noise.",
            )
        if sum(grains_up(event.epsilon) for event in self.script.prices.values()) > grains_up(
            self.params.epsilon
        ):
            raise LocalProtocolError(
                "PROTO-001",
                "The questions of the script cost more together than the study's epsilon.",
                why="An aggregator may ask all of them.",
            )
        free = self.query_rules
        queries = (
            {}
            if free is None
            else {
                f"query/{number}": price_query(self.params, free)
                for number in range(free.n_queries)
            }
        )
        return {**self.script.prices, **queries}

    def initial_state(self) -> SDQPeerState:
        return SDQPeerState()

    def price(self, question: str) -> Event:
        if question not in self._prices:
            raise unpriced_question_error(question)
        return self._prices[question]

    def on_message(
        self, state: SDQPeerState, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[SDQPeerState, Effects]:
        if state.is_over:
            return state, ()
        match message:
            case SDQAsk():
                return self._handle_ask(state, message, entropy)
            case JointKeys():
                return self._handle_keys(state, message)
            case Contributions():
                return self._handle_contributions(state, message)
            case JointFrame():
                return self._handle_frame(state, message)
            case SumMessage():
                return self._handle_sum_message(state, message, entropy)
            case SDQStudyEnd(reason=reason):
                return state.leave_round().replace(role=None, is_over=True), (
                    _make_ending_effect(state, reason),
                )
        raise RemoteProtocolError(
            "PROTO-003", f"An aggregator does not send a {message.type_name}."
        )

    def _handle_ask(
        self, state: SDQPeerState, ask: SDQAsk, entropy: Entropy
    ) -> tuple[SDQPeerState, Effects]:
        before = state.asked_for
        if before is not None and ask.round <= before.round:
            if ask.round == before.round and ask != before:
                raise RemoteProtocolError(
                    "SDQ-003",
                    f"The aggregator changed the question of round {ask.round}.",
                )
            return state, ()
        asked = self._make_round(ask)
        self.price(asked.question)
        level = find_selection_question(asked.question)
        role = state.role if level != asked.question and state.selected[-1:] == (level,) else None
        state = state.leave_round().replace(asked_for=ask, role=role)
        if asked.question in state.asked:
            return state, ()
        if self.params.trust == "local":
            return self.ask(state, asked.question)
        if asked.is_choice:
            return self._send_key(state, entropy)
        if self.params.noise != "two-selected" or role is not None:
            return self._begin_sum(state, entropy)
        if level != asked.question:
            # This database does not know the level's selection, so it cannot take part.
            return state, ()
        if level in state.selected:
            raise RemoteProtocolError(
                "SDQ-003",
                f"Two databases have already been selected for {level}.",
                why="Repeated selections would let the aggregator wait until both collude with it.",
            )
        return self._send_key(state.replace(selected=(*state.selected, level)), entropy)

    def _send_key(self, state: SDQPeerState, entropy: Entropy) -> tuple[SDQPeerState, Effects]:
        """Publish a key, and wait for the list of parties."""
        ask = state.asked_for
        assert ask is not None
        state = state.replace(seat=party.PartyState(round=ask.round))
        private = entropy.bytes(32)
        box = derive_public_key(private)
        signature = self.member.identity.sign(
            encode_key_statement(self._make_context(ask), self.member.me, box)
        )
        return state.replace(box=private), (
            self._make_send(
                JointKey(study=self.study, round=ask.round, box=box, signature=signature)
            ),
        )

    def _handle_keys(self, state: SDQPeerState, message: JointKeys) -> tuple[SDQPeerState, Effects]:
        ask, seat = state.asked_for, state.seat
        if (
            ask is None
            or message.round != ask.round
            or seat is None
            or seat.is_over
            or state.keys is not None
        ):
            return state, ()
        asked, context = self._make_round(ask), self._make_context(ask)
        keys = read_keys(
            message,
            context,
            self.member.sum_params.roster,
            count_parties(self.params, asked.is_choice),
        )
        is_party = self.member.me in keys
        if is_party and keys[self.member.me].box != derive_public_key(state.box):
            raise RemoteProtocolError(
                "SDQ-003",
                f"The keys of round {ask.round} contain a wrong key of this database.",
            )
        state = state.replace(keys=message, box=state.box if is_party else b"")
        if asked.is_choice:
            return self.ask(state, asked.question)
        joint = party.ComputationParameters(context, "select", tuple(keys))
        seat, effects = party.begin(seat, joint, self.member.me, state.box, keys, ())
        return state.replace(seat=seat), effects

    def _handle_contributions(
        self, state: SDQPeerState, message: Contributions
    ) -> tuple[SDQPeerState, Effects]:
        ask, seat, me = state.asked_for, state.seat, self.member.me
        if (
            ask is None
            or message.round != ask.round
            or seat is None
            or state.keys is None
            or seat.links
        ):
            return state, ()
        asked, context = self._make_round(ask), self._make_context(ask)
        keys = index_keys(state.keys)
        if not asked.is_choice or me not in keys:
            raise RemoteProtocolError(
                "SDQ-003",
                f"Shares of scores were sent for round {ask.round}, in which this database is not "
                "on the committee.",
            )
        dealt_in = committee_context(context, state.keys.keys)
        dealers = check_contributions(
            message, dealt_in, self.member.sum_params.roster, me, keys[me].box, self.params.minimum
        )
        try:
            shares = sum_shares(message, dealt_in, me, state.box, asked.size)
        except MemberError as error:
            return state.close_computation(), (
                self._make_send(
                    UnusableShares(study=self.study, round=ask.round, dealer=error.member)
                ),
            )
        joint = party.ComputationParameters(context, "argmax", tuple(keys), dealers)
        seat, effects = party.begin(seat, joint, me, state.box, keys, shares)
        return state.replace(seat=seat), effects

    def _handle_frame(
        self, state: SDQPeerState, message: JointFrame
    ) -> tuple[SDQPeerState, Effects]:
        if state.seat is None:
            return state, ()
        seat, effects = party.handle_frame(state.seat, message)
        return state.replace(seat=seat), effects

    def _handle_sum_message(
        self, state: SDQPeerState, message: Message, entropy: Entropy
    ) -> tuple[SDQPeerState, Effects]:
        ask = state.asked_for
        if state.sitting is None or ask is None:
            return state, ()
        sitting, sends = self.member.handle_message(state.sitting, message, entropy)
        state = state.replace(sitting=sitting)
        if not sitting.is_ready:
            return state, sends
        state, effects = self.ask(state, self._make_round(ask).question)
        return state, (*sends, *effects)

    def on_computation(
        self, state: SDQPeerState, given: ComputationInput, now: datetime, entropy: Entropy
    ) -> tuple[SDQPeerState, Effects]:
        ask, seat = state.asked_for, state.seat
        if ask is None or seat is None or not seat.links or given.task != seat.task:
            return state, ()
        if isinstance(given, Emitted):
            seat, effects = party.send_frame(seat, given, self.study)
            return state.replace(seat=seat), effects
        assert state.keys is not None
        asked, keys, state = self._make_round(ask), state.keys.keys, state.close_computation()
        possible = range(asked.size) if asked.is_choice else (0, ADDS, SUBTRACTS)
        if isinstance(given, Broken) or len(given.result) != 1 or given.result[0] not in possible:
            blamed = given.party if isinstance(given, Broken) else None
            named = None if blamed is None else keys[blamed].party
            return state, (
                self._make_send(ComputationFailure(study=self.study, round=ask.round, party=named)),
            )
        (result,) = given.result
        if asked.is_choice:
            return state, (
                self._make_send(ChoiceResult(study=self.study, round=ask.round, position=result)),
            )
        return self._begin_sum(state.replace(role=result), entropy)

    def answer(self, state: SDQPeerState, question: str, entropy: Entropy) -> Message:
        ask = state.asked_for
        assert ask is not None
        asked = self._make_round(ask)
        values = self.draw_noisy_answer(asked, self._table.reveal(), state.role, entropy)
        if self.params.trust == "local":
            return Counts(study=self.study, round=ask.round, counts=Array.from_values(values))
        if asked.is_choice:
            assert state.keys is not None
            context, n = (
                committee_context(self._make_context(ask), state.keys.keys),
                self.params.n_databases,
            )
            boxes = seal_scores(
                values,
                context,
                self.member.me,
                self.member.identity,
                index_keys(state.keys),
                n,
                entropy,
            )
            return SDQScores(study=self.study, round=ask.round, boxes=boxes)
        assert state.sitting is not None
        return self.member.mask_values(state.sitting, values)

    def draw_noisy_answer(
        self, asked: SDQRound, table: CellTable, role: int | None, entropy: Entropy
    ) -> Ints:
        """Return this database's answer: its counts plus its part of the noise."""
        values = [
            draw_noisy_counts(self.params, part, table, asked.is_choice, role, entropy)
            for part in asked.parts
        ]
        return np.concatenate(values).astype(np.int64)

    def on_answer_stored(
        self, state: SDQPeerState, question: str, message: Message
    ) -> tuple[SDQPeerState, Effects]:
        if not isinstance(message, SumMasked):
            return state, ()
        assert state.sitting is not None
        # The answers of a level follow its sizes. After them the role is not needed, so it is
        # erased.
        role = state.role if question.startswith("sizes/") else None
        return state.replace(
            sitting=self.member.mark_released(state.sitting, message), role=role
        ), ()

    def _make_round(self, ask: SDQAsk) -> SDQRound:
        """Return the asked round; raise `RemoteProtocolError` if it is not part of the study."""
        if ask.query is not None:
            if self.query_rules is None:
                raise unpriced_question_error(f"query/{ask.number}")
            return make_query_round(self.params, self.query_rules, ask.query, ask.number)
        asked = self.script.make_round(ask.course)
        if asked is None:
            raise RemoteProtocolError(
                "SDQ-001", "The aggregator asks for a round after the last one of the study."
            )
        return asked

    def _begin_sum(self, state: SDQPeerState, entropy: Entropy) -> tuple[SDQPeerState, Effects]:
        ask = state.asked_for
        assert ask is not None
        sitting, sends = self.member.begin(
            state.sitting, ask.round, compute_ask_digest(ask), entropy
        )
        return state.replace(sitting=sitting), sends

    def _make_context(self, ask: SDQAsk) -> RoundContext:
        return self.member.sum_params.make_context(ask.round, compute_ask_digest(ask))

    def _make_send(self, message: Message) -> Send:
        return Send(AGGREGATOR, message)


def _make_ending_effect(state: SDQPeerState, reason: str | None) -> Finish | Abort:
    """Return the effect of the end of a study. The reason is untrusted text."""
    if reason is None:
        return Finish(len(state.answered))
    shown = escape_text(reason)[:MAX_REASON]
    what = f"The aggregator ended the study without a result. Its reason: {shown}"
    return Abort(RemoteProtocolError("SDQ-004", what, why="Answers already sent are charged."))
