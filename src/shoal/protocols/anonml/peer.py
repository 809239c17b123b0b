"""The peer: holds a person's row, and answers the questions of the person's ticket only.

``AnonMLAsk`` of a phase
    Check it; ask the ledger for each question of this ticket in this phase.
``Granted``
    Draw the answer, once.
All answers of the last phase are stored
    Finish.

A change must keep that prices come from the script and that `answer` alone reads the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Message
from shoal.privacy.events import Event
from shoal.privacy.private import Private
from shoal.protocols.anonml.assignment import ticket_words
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAnswer, AnonMLAsk
from shoal.protocols.anonml.questions import AssignedRows
from shoal.protocols.anonml.script import AnonMLScript
from shoal.protocols.base import Effects, Finish, Peer, PeerState, unpriced_question_error


def _check_row(
    script: AnonMLScript, columns: Mapping[str, npt.NDArray[Any]], label: npt.NDArray[np.int64]
) -> None:
    """Raise `LocalProtocolError` for a row that is not encoded by the schema.

    It is called before the first question: a later failure would reveal something about the row.
    """
    schema = script.params.schema
    for feature in schema.features:
        column = columns[feature.name]
        is_known = column >= 0 if isinstance(feature, Categorical) else ~np.isnan(column)
        high = len(feature.values) - 1 if isinstance(feature, Categorical) else feature.high
        low = 0 if isinstance(feature, Categorical) else feature.low
        inside = np.where(is_known, (column >= low) & (column <= high), feature.missing)
        if column.shape != (1,) or not inside.all():
            raise _bad_row_error(feature.name)
    if label.shape != (1,) or not 0 <= int(label[0]) < script.params.n_labels:
        raise _bad_row_error(script.params.columns[-1])


def _bad_row_error(name: str) -> LocalProtocolError:
    return LocalProtocolError(
        "PROTO-001",
        f"A peer's {name} is not one value as the schema encodes it.",
        fix="Encode one row with the study's schema, without clipping.",
    )


class AnonMLPeerState(PeerState):
    """The opened phases in which this peer has questions."""

    heard: tuple[AnonMLAsk, ...] = ()


class AnonMLPeer(Peer[AnonMLPeerState]):
    """One person's side.

    Parameters
    ----------
    study
        Digest of the manifest.
    script
        The peer's own copy, by which it prices and checks.
    ticket
        Determines the person's questions.
    columns, label
        The person's row as the schema encodes it: arrays of one element each.

    Privacy
    -------
    Unit person, replace, against everyone. In ``plus`` a person answers one question; in ``paper``
    one table for each subset and one bit for each number without public bins. The price of each is
    the script's, never a message's.
    """

    messages = MESSAGES

    def __init__(
        self,
        study: bytes,
        script: AnonMLScript,
        ticket: bytes,
        columns: Mapping[str, npt.NDArray[Any]],
        label: npt.NDArray[np.int64],
    ) -> None:
        if script.params.is_noiseless:
            raise LocalProtocolError(
                "PROTO-001",
                "A peer was created for a study without perturbation.",
                why="An answer without noise has no price, and no participant can agree to it.",
                fix="Set a finite epsilon in the study; only a simulation can run without noise.",
            )
        _check_row(script, columns, label)
        self.study = study
        self.script = script
        self.ticket = ticket
        words = ticket_words(study, ticket)
        self._row = Private(AssignedRows(columns, label, words))
        position = script.assign_positions(words)
        groups = [int(script.find_groups(phase, position)[0]) for phase in range(script.n_phases)]
        self.own_questions = {
            script.question_name(phase, question): (phase, question)
            for phase, group in enumerate(groups)
            for question in script.list_question_numbers(phase, group)
        }

    def initial_state(self) -> AnonMLPeerState:
        return AnonMLPeerState()

    def price(self, question: str) -> Event:
        if question not in self.own_questions:
            raise unpriced_question_error(question)
        return self.script.prices[question]

    def on_message(
        self, state: AnonMLPeerState, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[AnonMLPeerState, Effects]:
        if not isinstance(message, AnonMLAsk):
            raise RemoteProtocolError("PROTO-003", "The aggregator sent an answer.")
        self.script.check_publication(message.phase, message.publication)
        names = [name for name, (phase, _) in self.own_questions.items() if phase == message.phase]
        if not names or any(ask.phase == message.phase for ask in state.heard):
            return state, ()
        state = state.replace(heard=(*state.heard, message))
        effects: Effects = ()
        for name in names:
            state, more = self.ask(state, name)
            effects += more
        return state, effects

    def answer(self, state: AnonMLPeerState, question: str, entropy: Entropy) -> Message:
        phase, number = self.own_questions[question]
        ask = next(ask for ask in state.heard if ask.phase == phase)
        own_question = self.script.questions(phase, ask.publication)[number]
        mechanism = own_question.mechanism
        assert mechanism is not None
        cell = int(own_question.find_cells(self._row.reveal())[0])
        report = mechanism.encode(mechanism.report(cell, entropy))
        return AnonMLAnswer(
            study=self.study, ticket=self.ticket, phase=phase, question=number, report=report
        )

    def on_answer_stored(
        self, state: AnonMLPeerState, question: str, message: Message
    ) -> tuple[AnonMLPeerState, Effects]:
        last = max(phase for phase, _ in self.own_questions.values())
        is_done = all(
            state.has_answered(name)
            for name, (phase, _) in self.own_questions.items()
            if phase == last
        )
        return state, (Finish(len(self.own_questions)),) if is_done else ()
