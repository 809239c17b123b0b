"""The peer of DDML: a device with a few rows, which draws an instance, takes a noisy step and sends it back, as often as the study says.

=============================  ===========================================================================
given                          done
=============================  ===========================================================================
started                        without rows finish; else draw
``Instance`` for its draw      check it; put the next update to the ledger
granted                        take the step, once
the update is stored           draw again, or finish after the last
refused                        finish with what was sent: the limit is the participant's, and no failure
=============================  ===========================================================================
"""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any

import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, MechanismError, RemoteProtocolError, ShoalError
from shoal.messages.base import Array, Message
from shoal.privacy.events import Event
from shoal.privacy.private import Private
from shoal.protocols.base import AGGREGATOR, Effects, Finish, Peer, PeerState, Send, unpriced
from shoal.protocols.ddml.design import Columns
from shoal.protocols.ddml.judging import WINDOW, is_stale, read_weights
from shoal.protocols.ddml.merging import add
from shoal.protocols.ddml.messages import ID_BYTES, MESSAGES, Draw, Id, Instance, Natural, Update
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.rows import Held
from shoal.protocols.ddml.step import Step, charged, make_step, price


def question_of(number: int) -> str:
    """What the ledger calls an update of a device, the first being 0."""
    return f"update/{number}"


class Drawing(PeerState):
    """The draw that is waited for, if any; the latest epoch heard of; and the instance that is about to be answered on."""

    draw: Id | None = None
    epoch: Natural = 0
    instance: Instance | None = None


class DDMLPeer(Peer[Drawing]):
    """One device's side.

    Parameters
    ----------
    study
        Digest of the manifest.
    params
        The public figures of the study, by which this peer prices and checks by itself.
    columns, labels
        The device's rows as the schema encodes them: arrays of one length, which may be zero.

    Notes
    -----
    Ref: DDML Algorithm 1. The aggregator may send any instance: the step is private at every one.

    Privacy
    -------
    Unit update, replace, against everyone who sees an update. Each of ``params.n_updates`` updates costs ``step.price(params)``, whatever
    the aggregator says. That a device draws shows that it has rows and that all of them fit the schema: others are refused here. From
    then on whether an update is sent does not depend on the rows, and what is in it does so through the step alone.
    """

    messages = MESSAGES

    def __init__(self, study: bytes, params: Params, columns: Columns, labels: npt.NDArray[Any]) -> None:
        event = price(params)
        if event is None:
            raise LocalProtocolError(
                "PROTO-001",
                "A peer was to send an update without noise.",
                why="Such an update has no price, and no participant can agree to it.",
                fix="Give the study an epsilon; what is possible without noise can be simulated.",
            )
        self.study = study
        self.params = params
        self._price = event
        held = Held(params, columns, labels)
        self._has_rows = len(held) > 0
        self._rows = Private(held)
        self._questions = {question_of(number) for number in range(params.n_updates)}
        # Epochs follow each other: few are open at a time.
        self._step = lru_cache(maxsize=WINDOW + 1)(self._checked_step)

    def initial(self) -> Drawing:
        return Drawing()

    def price(self, question: str) -> Event:
        if question not in self._questions:
            raise unpriced(question)
        return self._price

    def started(self, state: Drawing, now: datetime, entropy: Entropy) -> tuple[Drawing, Effects]:
        if not self._has_rows:
            return state, (Finish(0),)
        return self._drawing(state.replace(draw=entropy.bytes(ID_BYTES)))

    def received(self, state: Drawing, message: Message, now: datetime, entropy: Entropy) -> tuple[Drawing, Effects]:
        if not isinstance(message, Instance):
            raise RemoteProtocolError("PROTO-003", f"An aggregator does not send a {message.type_name}.")
        read_weights(message.weights, self.params)
        self._check_epoch(message.epoch, state.epoch)
        if message.draw != state.draw:
            return state, ()
        # The id of the next draw is drawn here: once the ledger has moved there is nothing to draw it from.
        state = state.replace(draw=entropy.bytes(ID_BYTES), epoch=max(state.epoch, message.epoch), instance=message)
        return self.ask(state, question_of(len(state.answered)))

    def answer(self, state: Drawing, question: str, entropy: Entropy) -> Message:
        instance = state.instance
        assert instance is not None
        weights = read_weights(instance.weights, self.params)
        batch = self._rows.reveal().batch(entropy)
        step = self._step(instance.epoch).draw(batch.gradient(self.params, weights), entropy)
        update = Array.of(add(weights, step))
        return Update(study=self.study, id=entropy.bytes(ID_BYTES), epoch=instance.epoch, weights=update)

    def released(self, state: Drawing, question: str, message: Message) -> tuple[Drawing, Effects]:
        n_sent = len(state.answered)
        if n_sent == self.params.n_updates:
            return state.replace(draw=None, instance=None), (Finish(n_sent),)
        return self._drawing(state.replace(instance=None))

    def refused(self, state: Drawing, question: str, error: ShoalError) -> tuple[Drawing, Effects]:
        return state.replace(draw=None, instance=None), (Finish(len(state.answered)),)

    def _drawing(self, state: Drawing) -> tuple[Drawing, Effects]:
        assert state.draw is not None
        return state, (Send(AGGREGATOR, Draw(study=self.study, id=state.draw)),)

    def _check_epoch(self, epoch: int, latest: int) -> None:
        """Refuse an epoch that goes back far, or in which the study has no step that is paid for."""
        if is_stale(epoch, latest):
            raise RemoteProtocolError("DDML-001", f"The aggregator sends an instance of epoch {epoch} after one of epoch {latest}.")
        self._step(epoch)

    def _checked_step(self, epoch: int) -> Step:
        """The step of an epoch; refuses one in which the study has none, or one that would cost more than what is charged."""
        try:
            step = make_step(self.params, epoch)
        except MechanismError as error:
            raise RemoteProtocolError("DDML-001", f"The study has no step in epoch {epoch}.", why=error.what) from None
        assert step.event is not None
        due = charged(step.event, self.params.n_weights)
        if due.epsilon > self._price.epsilon or due.delta > self._price.delta:
            raise unpriced(f"an update of epoch {epoch}")
        return step
