"""The peer, and its local rows.

A device with a few rows draws an instance, takes a noisy step and sends it back, up to the number
of times that the study sets.

``Started``
    Finish if there are no rows; otherwise draw.
``DDMLInstance`` for its draw
    Check it; ask the ledger for the next update.
``Granted``
    Take the step, once.
``Answered``
    Draw again, or finish after the last update.
``Refused``
    Finish with the updates sent so far: the limit is the participant's, and no failure.

`DeviceRows` checks all rows once, and makes model inputs of a few rows per call.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.features import MAX_GRAMS
from shoal.data.schema import Categorical, Feature, Text
from shoal.entropy import Entropy
from shoal.errors import LocalProtocolError, MechanismError, RemoteProtocolError, ShoalError
from shoal.messages.base import Array, Message
from shoal.privacy.events import Event
from shoal.privacy.private import Private
from shoal.protocols.base import (
    AGGREGATOR,
    Effects,
    Finish,
    Peer,
    PeerState,
    Send,
    unpriced_question_error,
)
from shoal.protocols.ddml.design_matrix import Columns, Floats, SparseInputs
from shoal.protocols.ddml.links import compute_gradient, encode_targets
from shoal.protocols.ddml.merging import EPOCH_WINDOW, Weights, add_step, is_stale
from shoal.protocols.ddml.messages import (
    ID_BYTES,
    MESSAGES,
    DDMLDraw,
    DDMLInstance,
    DDMLUpdate,
    Id,
    Natural,
    read_weights,
)
from shoal.protocols.ddml.noisy_step import UpdateStep, charge_update, make_step, price_update
from shoal.protocols.ddml.params import DDMLParams


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Inputs and targets of some rows.

    Parameters
    ----------
    inputs
        As the study's design makes them.
    targets
        ``(n,)``: the position of a class, or a number scaled to [0, 1].
    """

    inputs: SparseInputs
    targets: Floats

    def __len__(self) -> int:
        return len(self.targets)

    @classmethod
    def from_columns(
        cls, params: DDMLParams, columns: Columns, labels: npt.NDArray[Any]
    ) -> TrainingRows:
        """Return all rows of the columns of ``schema.encode`` and ``schema.encode_label``."""
        return DeviceRows(params, columns, labels).take(slice(None))

    def gradient(self, params: DDMLParams, weights: Weights) -> Floats:
        """Return the average gradient ``(p,)`` at these weights, before it is clipped.

        It is finite for all weights.
        """
        floats = (
            weights.astype(np.float64).reshape(params.n_outputs, -1) * 2.0**-params.fraction_bits
        )
        return compute_gradient(params.link, floats, self.inputs, self.targets).ravel()


class DeviceRows:
    """All rows of a device, as the schema encodes them.

    Only the inputs of one batch are kept in memory.

    Parameters
    ----------
    columns, labels
        The results of ``schema.encode`` and ``schema.encode_label``. Other values are rejected
        here, before anything is drawn, so that every later batch can be learned from.
    """

    def __init__(self, params: DDMLParams, columns: Columns, labels: npt.NDArray[Any]) -> None:
        label = params.schema.label
        assert label is not None
        for part in (*params.schema.features, *params.schema.texts):
            if (
                part.name not in columns
                or columns[part.name].shape != labels.shape
                or not _is_encoded(part, columns[part.name])
            ):
                raise _bad_column_error(part.name)
        if labels.ndim != 1 or not _is_encoded(label, labels) or _is_missing(label, labels).any():
            raise _bad_column_error(label.name)
        self._params = params
        self._columns = {name: columns[name] for name in params.schema.columns}
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    def take(self, rows: npt.NDArray[np.int64] | slice) -> TrainingRows:
        """Return inputs and targets of some rows, in the order given."""
        label = self._params.schema.label
        assert label is not None
        inputs = self._params.design.make_inputs(
            {name: column[rows] for name, column in self._columns.items()}
        )
        return TrainingRows(inputs, encode_targets(label, self._labels[rows]))

    def draw_batch(self, entropy: Entropy) -> TrainingRows:
        """Draw the rows of one update, or return all if there are no more than that.

        Each row has the same probability, independently for each batch.
        """
        n, size = len(self), self._params.batch_size
        if n <= size:
            return self._all_rows
        # Floyd's algorithm: every subset is equally likely, and no row is drawn twice.
        chosen: set[int] = set()
        for last in range(n - size, n):
            row = entropy.below(last + 1)
            chosen.add(last if row in chosen else row)
        return self.take(np.array(sorted(chosen), np.int64))

    @cached_property
    def _all_rows(self) -> TrainingRows:
        return self.take(slice(None))


def _is_encoded(part: Feature | Text, column: npt.NDArray[Any]) -> bool:
    """Return whether all cells of a column are as the schema encodes them."""
    if isinstance(part, Text):
        return column.ndim == 1 and all(_is_gram_list(part, grams) for grams in column)
    if isinstance(part, Categorical):
        return column.dtype.kind == "i" and bool(
            np.all((column >= -int(part.missing)) & (column < len(part.values)))
        )
    if column.dtype.kind not in "iuf":
        return False
    is_missing = np.isnan(column)
    return bool(
        np.all(np.where(is_missing, part.missing, (column >= part.low) & (column <= part.high)))
    )


def _is_gram_list(part: Text, grams: Any) -> bool:
    if (
        not isinstance(grams, np.ndarray)
        or grams.dtype.kind != "i"
        or grams.ndim != 1
        or grams.size > MAX_GRAMS
    ):
        return False
    return not grams.size or bool(
        grams[0] >= 0 and grams[-1] < part.buckets and (grams[1:] > grams[:-1]).all()
    )


def _is_missing(label: Feature, labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    missing: npt.NDArray[np.bool_] = (
        labels < 0 if isinstance(label, Categorical) else np.isnan(labels)
    )
    return missing


def _bad_column_error(name: str) -> LocalProtocolError:
    return LocalProtocolError(
        "PROTO-001",
        f"A peer's {name} is not encoded by the schema, or is shorter or longer than its other "
        "columns.",
        fix="Encode the rows with the study's schema, without clipping.",
    )


def question_name(number: int) -> str:
    """Return the ledger's name of an update of a device; the first has number 0."""
    return f"update/{number}"


class DDMLPeerState(PeerState):
    """The peer's state.

    Parameters
    ----------
    draw
        The id of the open draw, if any.
    epoch
        The latest epoch received.
    instance
        The instance of the next update.
    update
        The id of the next update.
    """

    draw: Id | None = None
    epoch: Natural = 0
    instance: DDMLInstance | None = None
    update: Id | None = None


class DDMLPeer(Peer[DDMLPeerState]):
    """One device's side.

    Parameters
    ----------
    study
        Digest of the manifest.
    params
        The peer's own copy, by which it prices and checks.
    columns, labels
        The device's rows as the schema encodes them: arrays of one length, which may be zero.

    Notes
    -----
    Ref: DDML Algorithm 1. The aggregator may send any instance: the step is private at every one.

    Privacy
    -------
    Unit update, replace, against everyone who sees an update. Each of ``params.n_updates`` updates
    costs ``price_update(params)``, independently of the aggregator. A draw shows that the device
    has rows and that all of them match the schema: others are rejected here. After that, whether an
    update is sent does not depend on the rows, and its content depends on them through the step
    alone.
    """

    messages = MESSAGES

    def __init__(
        self, study: bytes, params: DDMLParams, columns: Columns, labels: npt.NDArray[Any]
    ) -> None:
        event = price_update(params)
        if event is None:
            raise LocalProtocolError(
                "PROTO-001",
                "A peer was created for a study without noise.",
                why="An update without noise has no price, and no participant can agree to it.",
                fix="Set a finite epsilon in the study; only a simulation can run without noise.",
            )
        self.study = study
        self.params = params
        self._price = event
        rows = DeviceRows(params, columns, labels)
        self._has_rows = len(rows) > 0
        self._rows = Private(rows)
        self._questions = {question_name(number) for number in range(params.n_updates)}
        # Updates of only a few epochs are accepted at any time.
        self._step = lru_cache(maxsize=EPOCH_WINDOW + 1)(self._make_checked_step)

    def initial_state(self) -> DDMLPeerState:
        return DDMLPeerState()

    def price(self, question: str) -> Event:
        if question not in self._questions:
            raise unpriced_question_error(question)
        return self._price

    def on_start(
        self, state: DDMLPeerState, now: datetime, entropy: Entropy
    ) -> tuple[DDMLPeerState, Effects]:
        if not self._has_rows:
            return state, (Finish(0),)
        return self._send_draw(state.replace(draw=entropy.bytes(ID_BYTES)))

    def on_message(
        self, state: DDMLPeerState, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[DDMLPeerState, Effects]:
        if not isinstance(message, DDMLInstance):
            raise RemoteProtocolError(
                "PROTO-003", f"The aggregator sent a {message.type_name}, a message of peers."
            )
        read_weights(message.weights, self.params)
        self._check_epoch(message.epoch, state.epoch)
        if message.draw != state.draw:
            return state, ()
        # Both ids are drawn here: on_answer_stored has no entropy, and answer() uses its random
        # bits for the report alone.
        state = state.replace(
            draw=entropy.bytes(ID_BYTES),
            epoch=max(state.epoch, message.epoch),
            instance=message,
            update=entropy.bytes(ID_BYTES),
        )
        return self.ask(state, question_name(len(state.answered)))

    def answer(self, state: DDMLPeerState, question: str, entropy: Entropy) -> Message:
        instance = state.instance
        assert instance is not None and state.update is not None
        weights = read_weights(instance.weights, self.params)
        batch = self._rows.reveal().draw_batch(entropy)
        step = self._step(instance.epoch).draw(batch.gradient(self.params, weights), entropy)
        return DDMLUpdate(
            study=self.study,
            id=state.update,
            epoch=instance.epoch,
            weights=Array.from_values(add_step(weights, step)),
        )

    def on_answer_stored(
        self, state: DDMLPeerState, question: str, message: Message
    ) -> tuple[DDMLPeerState, Effects]:
        n_sent = len(state.answered)
        if n_sent == self.params.n_updates:
            return state.replace(draw=None, instance=None, update=None), (Finish(n_sent),)
        return self._send_draw(state.replace(instance=None, update=None))

    def on_refusal(
        self, state: DDMLPeerState, question: str, error: ShoalError
    ) -> tuple[DDMLPeerState, Effects]:
        return state.replace(draw=None, instance=None, update=None), (Finish(len(state.answered)),)

    def _send_draw(self, state: DDMLPeerState) -> tuple[DDMLPeerState, Effects]:
        assert state.draw is not None
        return state, (Send(AGGREGATOR, DDMLDraw(study=self.study, id=state.draw)),)

    def _check_epoch(self, epoch: int, latest: int) -> None:
        """Raise `RemoteProtocolError` for a stale epoch, and for one without a paid step."""
        if is_stale(epoch, latest):
            raise RemoteProtocolError(
                "DDML-001",
                f"The aggregator sent an instance of epoch {epoch} after one of epoch {latest}.",
            )
        self._step(epoch)

    def _make_checked_step(self, epoch: int) -> UpdateStep:
        """Return the step of an epoch.

        Raise `RemoteProtocolError` if the study has none, or if it would cost more than the price.
        """
        try:
            step = make_step(self.params, epoch)
        except MechanismError as error:
            raise RemoteProtocolError(
                "DDML-001", f"The study has no step in epoch {epoch}.", why=error.what
            ) from None
        assert step.event is not None
        due = charge_update(step.event, self.params.n_weights)
        if due.epsilon > self._price.epsilon or due.delta > self._price.delta:
            raise unpriced_question_error(f"an update of epoch {epoch}")
        return step
