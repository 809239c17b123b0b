"""Peers of variant `plus`: local, secure-sum, read-only.

Drivers run them (`shoal.protocols.base`). All three listen for the published model:

- ``SharedModel``: check it; fit the personal model from it and the holder's rows; finish with it.
  A model is accepted once.
- ``PFDSStudyEnd``: answer nothing more; if it gives a reason, abort with this reason.

The two messages may arrive in either order.

`LocalPeer` asks its ledger when it starts and publishes its tables once. No question has to arrive:
its tables follow from the study.

`SecureSumPeer` answers each question of the script once:

- ``PFDSAsk``: check the script state; begin the round, unless its question was put to the ledger
  before.
- ``Sum...``: take part in the secure sum; after the exchange of keys and shares, put the question
  to the ledger.
- granted: count the rows, add a share of the noise, mask.
- ``SharedModel``, ``PFDSStudyEnd``: as above.

Round numbers only increase, and round i asks question i. A peer leaves an open round when a later
one is asked.

Its handling of rounds resembles that of `SDQPeer`, but the rules for repeated and late questions
differ, so the two share only `SumMember`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Self, TypeVar

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.privacy.events import Event
from shoal.privacy.private import Private
from shoal.protocols.base import Abort, Effects, Finish, Peer, PeerState, unpriced_question_error
from shoal.protocols.pfds.aggregator import read_shared_model
from shoal.protocols.pfds.messages import (
    MAX_REASON,
    MESSAGES,
    HolderTables,
    PFDSAsk,
    PFDSScriptState,
    PFDSStudyEnd,
    SharedModel,
    compute_ask_digest,
)
from shoal.protocols.pfds.params import (
    Ints,
    PFDSParams,
    PFDSRows,
    check_prices,
    check_sum_parameters,
)
from shoal.protocols.pfds.personal_model import fit_personal_model
from shoal.protocols.pfds.script import SecureSumScript
from shoal.protocols.pfds.tables import TABLES, assign_attributes, draw_tables, price_tables
from shoal.protocols.secagg.member import MemberState, SumMember
from shoal.protocols.secagg.messages import (
    SumAgreement,
    SumKeyList,
    SumMasked,
    SumMessage,
    SumSurvivors,
)
from shoal.text import escape_text

SHARER_MESSAGES = PFDSAsk | SumKeyList | SumSurvivors | SumAgreement
"""Messages that are sent to everyone and concern only holders that share."""


class PFDSPeerState(PeerState):
    """State of a peer of variant plus.

    Parameters
    ----------
    published
        The published model; the personal model can be fitted again from it and the rows.
    is_over
        Whether the peer answers nothing more.
    """

    published: SharedModel | None = None
    is_over: bool = False

    def end(self) -> Self:
        """Return the state after the end of the study."""
        return self.replace(is_over=True)


H = TypeVar("H", bound=PFDSPeerState)


class ListeningPeer(Peer[H]):
    """Base class of peers that finish with the published model.

    Parameters
    ----------
    study
        Digest of the manifest.
    rows
        The peer's rows; a peer with None finishes with the pooled model.

    Privacy
    -------
    The personal model contains the rows without noise. It is the peer's result, in its own process;
    no message or state contains it.
    """

    messages = MESSAGES

    def __init__(self, params: PFDSParams, study: bytes, rows: PFDSRows | None) -> None:
        self.params = params
        self.study = study
        self._rows = None if rows is None else Private(rows)

    def on_message(
        self, state: H, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[H, Effects]:
        match message:
            case SharedModel():
                return self._handle_model(state, message, entropy)
            case PFDSStudyEnd():
                return (state, ()) if state.is_over else (state.end(), make_ending_effects(message))
        return self.handle_other(state, message, entropy)

    def handle_other(self, state: H, message: Message, entropy: Entropy) -> tuple[H, Effects]:
        """Handle a message that neither publishes the model nor ends the study."""
        raise RemoteProtocolError(
            "PROTO-003", f"An aggregator does not send a {message.type_name}."
        )

    def _handle_model(self, state: H, message: SharedModel, entropy: Entropy) -> tuple[H, Effects]:
        if state.published is not None:
            if message != state.published:
                raise RemoteProtocolError(
                    "PFDS-003", "The aggregator published a second, different model."
                )
            return state, ()
        model = read_shared_model(self.params, message)
        result = (
            model if self._rows is None else fit_personal_model(model, self._rows.reveal(), entropy)
        )
        return state.end().replace(published=message), (Finish(result),)


def make_ending_effects(ended: PFDSStudyEnd) -> Effects:
    """Return the effects of the study's end on a peer: wait for the model, or abort.

    The aggregator is not trusted, so the reason is escaped and cut.
    """
    if ended.reason is None:
        return ()
    what = (
        "The aggregator ended the study without a result. Its reason: "
        f"{escape_text(ended.reason)[:MAX_REASON]}"
    )
    return (Abort(RemoteProtocolError("PFDS-004", what, why="Answers already sent are charged.")),)


class ReadOnlyPeer(ListeningPeer[PFDSPeerState]):
    """Peer that shares nothing and fits its personal model to the release.

    It never asks its ledger.
    """

    def initial_state(self) -> PFDSPeerState:
        return PFDSPeerState()

    def price(self, question: str) -> Event:
        raise unpriced_question_error(question)

    def answer(self, state: PFDSPeerState, question: str, entropy: Entropy) -> Message:
        raise unpriced_question_error(question)

    def handle_other(
        self, state: PFDSPeerState, message: Message, entropy: Entropy
    ) -> tuple[PFDSPeerState, Effects]:
        return (
            (state, ())
            if isinstance(message, SHARER_MESSAGES)
            else super().handle_other(state, message, entropy)
        )


class LocalPeer(ListeningPeer[PFDSPeerState]):
    """Peer of one holder with trust local.

    Parameters
    ----------
    study
        Digest of the manifest.
    holder
        Position on the roster, counted from 0.
    rows
        The holder's rows, with at most ``max_rows`` of one unit.

    Notes
    -----
    Ref: errata P-03.

    Privacy
    -------
    The scope of the study's parameters. The tables cost the study's epsilon, and are sent once.
    They contain all of their noise.
    """

    def __init__(self, params: PFDSParams, study: bytes, holder: int, rows: PFDSRows) -> None:
        super().__init__(params, study, rows)
        self.attributes = assign_attributes(params, study, holder)
        self._prices = self.compute_prices()

    def compute_prices(self) -> Mapping[str, Event]:
        """Return the price of every question."""
        return check_prices(
            self.params, {} if self.params.is_noiseless else {TABLES: price_tables(self.params)}
        )

    def initial_state(self) -> PFDSPeerState:
        return PFDSPeerState()

    def price(self, question: str) -> Event:
        if question not in self._prices:
            raise unpriced_question_error(question)
        return self._prices[question]

    def on_start(
        self, state: PFDSPeerState, now: datetime, entropy: Entropy
    ) -> tuple[PFDSPeerState, Effects]:
        return (state, ()) if state.is_over else self.ask(state, TABLES)

    def answer(self, state: PFDSPeerState, question: str, entropy: Entropy) -> Message:
        assert self._rows is not None
        return HolderTables(
            study=self.study,
            counts=Array.from_values(
                draw_tables(self.params, self._rows.reveal(), self.attributes, entropy)
            ),
        )


class PFDSSecureSumPeerState(PFDSPeerState):
    """State of a secure-sum peer: the open round.

    Parameters
    ----------
    asked_for
        The last question.
    sitting
        The secure sum.
    """

    asked_for: PFDSAsk | None = None
    sitting: MemberState | None = None

    def leave_round(self) -> Self:
        """Return the state after leaving the round: all its secrets are erased.

        Later messages of the round are dropped.
        """
        return self.replace(sitting=None if self.sitting is None else self.sitting.end())

    def end(self) -> Self:
        return super().end().leave_round()


class SecureSumPeer(ListeningPeer[PFDSSecureSumPeerState]):
    """Peer of one holder with secure sums.

    Parameters
    ----------
    script
        The script of the study, by which this peer prices and checks every question.
    member
        Position on the roster, signing key, and the digest of the study.
    rows
        The holder's rows, with at most ``max_rows`` of one unit.

    Notes
    -----
    Ref: errata P-03; the secure sum is that of SDQ, errata S-12.

    Privacy
    -------
    The scope of the study's parameters. Every question costs what the script says, for any weights
    the aggregator invents, and is answered once. All questions together cost at most the study's
    epsilon, or its epsilon and delta. The cost is due when the masked numbers leave, whether or not
    the sum is ever opened.
    """

    def __init__(self, script: SecureSumScript, member: SumMember, rows: PFDSRows) -> None:
        check_sum_parameters(script.params, member.sum_params)
        super().__init__(script.params, member.sum_params.study, rows)
        self.script = script
        self.member = member
        self._prices = self.compute_prices()

    def compute_prices(self) -> Mapping[str, Event]:
        """Return the price of every question."""
        return check_prices(self.params, self.script.prices)

    def initial_state(self) -> PFDSSecureSumPeerState:
        return PFDSSecureSumPeerState()

    def price(self, question: str) -> Event:
        if question not in self._prices:
            raise unpriced_question_error(question)
        return self._prices[question]

    def handle_other(
        self, state: PFDSSecureSumPeerState, message: Message, entropy: Entropy
    ) -> tuple[PFDSSecureSumPeerState, Effects]:
        if not isinstance(message, PFDSAsk | SumMessage):
            return super().handle_other(state, message, entropy)
        if state.is_over:
            return state, ()
        return (
            self._handle_ask(state, message, entropy)
            if isinstance(message, PFDSAsk)
            else self._handle_sum_message(state, message, entropy)
        )

    def _handle_ask(
        self, state: PFDSSecureSumPeerState, ask: PFDSAsk, entropy: Entropy
    ) -> tuple[PFDSSecureSumPeerState, Effects]:
        before = state.asked_for
        if before is not None and ask.round <= before.round:
            if ask.round == before.round and ask != before:
                raise _unexpected_error(f"The aggregator changed the question of round {ask.round}")
            return state, ()
        question = self._find_question(ask.course)
        if ask.round != ask.course.step:
            raise _unexpected_error(
                f"Round {ask.round} has the script state of round {ask.course.step}"
            )
        self.price(question)
        state = state.leave_round().replace(asked_for=ask)
        if question in state.asked:
            return state, ()
        sitting, sends = self.member.begin(
            state.sitting, ask.round, compute_ask_digest(ask), entropy
        )
        return state.replace(sitting=sitting), sends

    def _handle_sum_message(
        self, state: PFDSSecureSumPeerState, message: Message, entropy: Entropy
    ) -> tuple[PFDSSecureSumPeerState, Effects]:
        ask = state.asked_for
        if state.sitting is None or ask is None:
            return state, ()
        sitting, sends = self.member.handle_message(state.sitting, message, entropy)
        state = state.replace(sitting=sitting)
        if not sitting.is_ready:
            return state, sends
        state, effects = self.ask(state, self._find_question(ask.course))
        return state, (*sends, *effects)

    def answer(self, state: PFDSSecureSumPeerState, question: str, entropy: Entropy) -> Message:
        assert state.asked_for is not None and state.sitting is not None and self._rows is not None
        return self.member.mask_values(
            state.sitting,
            self.draw_noisy_answer(state.asked_for.course, self._rows.reveal(), entropy),
        )

    def draw_noisy_answer(
        self, script_state: PFDSScriptState, rows: PFDSRows, entropy: Entropy
    ) -> Ints:
        """Return this holder's counts with its share of the noise."""
        counts, mechanism = (
            self.script.count(script_state, rows),
            self.script.find_mechanism(self._find_question(script_state)),
        )
        assert mechanism is not None, "a question with a price has noise"
        return counts + mechanism.draw_share(len(counts), entropy)

    def on_answer_stored(
        self, state: PFDSSecureSumPeerState, question: str, message: Message
    ) -> tuple[PFDSSecureSumPeerState, Effects]:
        assert state.sitting is not None and isinstance(message, SumMasked)
        return state.replace(sitting=self.member.mark_released(state.sitting, message)), ()

    def _find_question(self, script_state: PFDSScriptState) -> str:
        """Return the study's question; raise `RemoteProtocolError` after the last one."""
        question = self.script.find_question(script_state)
        if question is None:
            raise RemoteProtocolError(
                "PFDS-002", "The aggregator asks for a round after the last question."
            )
        return question


def _unexpected_error(what: str) -> RemoteProtocolError:
    return RemoteProtocolError("PFDS-003", f"{what}.")
