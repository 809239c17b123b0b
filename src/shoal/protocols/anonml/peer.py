"""The peer of AnonML: a person's row, which answers what the person's ticket says, and nothing else.

==========================  ==================================================================================
given                       done
==========================  ==================================================================================
``Ask`` of a phase          check it; put each question of this ticket in this phase to the ledger
granted                     draw the answer, once
all of the last phase sent  finish
==========================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Message
from shoal.privacy.events import Event
from shoal.privacy.private import Private
from shoal.protocols.anonml.assignment import words_of
from shoal.protocols.anonml.messages import MESSAGES, Answer, Ask
from shoal.protocols.anonml.questions import Rows
from shoal.protocols.anonml.script import Script
from shoal.protocols.base import Effects, Finish, Peer, PeerState, unpriced


def _check_row(script: Script, columns: Mapping[str, npt.NDArray[Any]], label: npt.NDArray[np.int64]) -> None:
    """Refuse a row that is not as the schema encodes it, before anything is asked: later its failure would tell of it."""
    schema = script.params.schema
    for feature in schema.features:
        column = columns[feature.name]
        is_known = column >= 0 if isinstance(feature, Categorical) else ~np.isnan(column)
        most = len(feature.values) - 1 if isinstance(feature, Categorical) else feature.high
        least = 0 if isinstance(feature, Categorical) else feature.low
        inside = np.where(is_known, (column >= least) & (column <= most), feature.missing)
        if column.shape != (1,) or not inside.all():
            raise _strange(feature.name)
    if label.shape != (1,) or not 0 <= int(label[0]) < script.params.n_labels:
        raise _strange(script.params.columns[-1])


def _strange(name: str) -> LocalProtocolError:
    return LocalProtocolError(
        "PROTO-001",
        f"A peer's {name} is not one value as the schema encodes it.",
        fix="Encode the row with the study's schema, without clipping, and give one row.",
    )


class Waiting(PeerState):
    """Which phases were opened in which this peer has questions."""

    heard: tuple[Ask, ...] = ()


class AnonMLPeer(Peer[Waiting]):
    """One person's side.

    Parameters
    ----------
    study
        Digest of the manifest.
    script
        The course of the study, which this peer prices and checks by itself.
    ticket
        The person's ticket; it decides which questions are the person's.
    columns, label
        The person's row as the schema encodes it: arrays of one element each.

    Privacy
    -------
    Unit person, replace, against everyone. In ``plus`` a person answers one question; in ``paper`` one table for each subset and one bit
    for each number without public bins. The price of each is the script's, never a message's.
    """

    messages = MESSAGES

    def __init__(
        self, study: bytes, script: Script, ticket: bytes, columns: Mapping[str, npt.NDArray[Any]], label: npt.NDArray[np.int64]
    ) -> None:
        if script.params.is_bare:
            raise LocalProtocolError(
                "PROTO-001",
                "A peer was to answer without perturbation.",
                why="An answer without noise has no price, and no participant can agree to it.",
                fix="Give the study an epsilon; what is possible without noise can be simulated.",
            )
        _check_row(script, columns, label)
        self.study = study
        self.script = script
        self.ticket = ticket
        words = words_of(study, ticket)
        self._row = Private(Rows(columns, label, words))
        place = script.place(words)
        groups = [int(script.group_at(phase, place)[0]) for phase in range(script.n_phases)]
        self.mine = {
            script.name_of(phase, question): (phase, question)
            for phase, group in enumerate(groups)
            for question in script.asked(phase, group)
        }

    def initial(self) -> Waiting:
        return Waiting()

    def price(self, question: str) -> Event:
        if question not in self.mine:
            raise unpriced(question)
        return self.script.prices[question]

    def received(self, state: Waiting, message: Message, now: datetime, entropy: Entropy) -> tuple[Waiting, Effects]:
        if not isinstance(message, Ask):
            raise RemoteProtocolError("PROTO-003", "An aggregator does not answer.")
        self.script.check(message.phase, message.publication)
        names = [name for name, (phase, _) in self.mine.items() if phase == message.phase]
        if not names or any(ask.phase == message.phase for ask in state.heard):
            return state, ()
        state = state.replace(heard=(*state.heard, message))
        effects: Effects = ()
        for name in names:
            state, more = self.ask(state, name)
            effects += more
        return state, effects

    def answer(self, state: Waiting, question: str, entropy: Entropy) -> Message:
        phase, number = self.mine[question]
        ask = next(ask for ask in state.heard if ask.phase == phase)
        asked = self.script.questions(phase, ask.publication)[number]
        mechanism = asked.mechanism
        assert mechanism is not None
        cell = int(asked.cells(self._row.reveal())[0])
        report = mechanism.encode(mechanism.report(cell, entropy))
        return Answer(study=self.study, ticket=self.ticket, phase=phase, question=number, report=report)

    def released(self, state: Waiting, question: str, message: Message) -> tuple[Waiting, Effects]:
        last = max(phase for phase, _ in self.mine.values())
        is_done = all(state.has_answered(name) for name, (phase, _) in self.mine.items() if phase == last)
        return state, (Finish(len(self.mine)),) if is_done else ()
