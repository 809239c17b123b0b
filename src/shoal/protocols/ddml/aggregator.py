"""The aggregator for in-process drivers.

It answers each draw with a random instance and merges each update into a random instance. The rule
is in ``instances``; the coordinator applies the same rule in `ModelServer`.

======  =========================================================================================
state   behaviour
======  =========================================================================================
open    answers draws; merges updates, and counts those that are stale or look like spam
over    after the expected number of updates, or at the deadline; answers and merges nothing
======  =========================================================================================

There are no rounds, and the state does not record who drew which instance. No honest device sends
an update of the wrong size or range or of a future epoch: `RemoteProtocolError` blames its sender.
An update that is stale or looks like spam may be honest: it is dropped and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message, Record
from shoal.protocols.base import START, Abort, Aggregator, Effects, Finish, Moment, Send, WakeAt
from shoal.protocols.ddml.design_matrix import Floats
from shoal.protocols.ddml.merging import (
    SpamFilterProtocol,
    Weights,
    compute_epoch,
    compute_moments,
    draw_instances,
    find_blend_factor,
    find_content_fault,
    find_epoch_fault,
    is_average_due,
    merge_update,
    steady_variance,
    update_average,
)
from shoal.protocols.ddml.messages import (
    MESSAGES,
    DDMLDraw,
    DDMLInstance,
    DDMLUpdate,
    Natural,
    future_epoch_error,
    read_weights,
)
from shoal.protocols.ddml.model import GLM
from shoal.protocols.ddml.noisy_step import make_step
from shoal.protocols.ddml.params import DDMLParams

RejectionReason = Literal["stale", "spam", "over"]

_A_DAY = timedelta(days=1)


class RejectedUpdateCounts(Record):
    """Counts of updates that were not merged, by reason.

    They were stale, looked like spam, or arrived after the end.
    """

    stale: Natural = 0
    spam: Natural = 0
    over: Natural = 0


class DDMLAggregatorState(Record):
    """The aggregator's state.

    Parameters
    ----------
    instances
        The k instances, one array each, because an update changes one of them.
    average
        The average over time, in units of the grid: the 64 bits of each float. None before the
        first fold.
    """

    instances: tuple[Array, ...] = ()
    n_merged: Natural = 0
    average: Array | None = None
    refused: RejectedUpdateCounts = RejectedUpdateCounts()
    deadline: Moment = START
    is_over: bool = False

    def to_matrix(self) -> Weights:
        """Return the instances, ``(k, p)``."""
        rows: list[npt.NDArray[np.int32]] = [
            instance.expect("int32", instance.count) for instance in self.instances
        ]
        return np.stack(rows)

    def compute_weights(self) -> Floats:
        """Return the weights that predict, ``(p,)`` in units of the grid.

        They are the average over time, or the mean of the instances before the first fold.
        """
        if self.average is None:
            mean: Floats = self.to_matrix().mean(axis=0)
            return mean
        bits: npt.NDArray[np.int64] = self.average.expect("int64", self.average.count)
        return bits.view(np.float64)

    def count_rejection(self, reason: RejectionReason) -> DDMLAggregatorState:
        """Return the state with one more rejection."""
        return self.replace(
            refused=self.refused.replace(**{reason: getattr(self.refused, reason) + 1})
        )


@dataclass(frozen=True, eq=False)
class DDMLAggregatorResult:
    """The result of a study.

    Parameters
    ----------
    model
        Built from the average over time, or from the mean of the instances.
    instances
        ``(k, p)`` int32: the last instances, in units of the grid.
    refused
        Updates that were not merged.
    """

    model: GLM
    instances: Weights
    n_merged: int
    refused: RejectedUpdateCounts


class DDMLAggregator(Aggregator[DDMLAggregatorState]):
    """The untrusted side of DDML.

    Parameters
    ----------
    study
        Digest of the manifest.
    params
        The public parameters of the study.
    spam_filter
        Rejects spam; None merges every update that has the right form.
    minimum
        Smallest number of updates to learn from.
    n_expected
        Number of merged updates that ends the study; None for the number that the study declares.
    phase_timeout
        Longest time that the study is open.

    Notes
    -----
    Ref: DDML Algorithm 2. The instance that is replaced, or moved, is drawn independently of the
    instance that was handed out.
    """

    messages = MESSAGES

    def __init__(
        self,
        study: bytes,
        params: DDMLParams,
        spam_filter: SpamFilterProtocol | None = None,
        *,
        minimum: int = 1,
        n_expected: int | None = None,
        phase_timeout: timedelta = _A_DAY,
    ) -> None:
        self.study = study
        self.params = params
        self.spam_filter = spam_filter
        self.minimum = minimum
        self.n_expected = params.n_expected if n_expected is None else n_expected
        self.phase_timeout = phase_timeout

    def initial_state(self) -> DDMLAggregatorState:
        return DDMLAggregatorState()

    def on_start(
        self, state: DDMLAggregatorState, now: datetime, entropy: Entropy
    ) -> tuple[DDMLAggregatorState, Effects]:
        params = self.params
        variance = (
            steady_variance(params.n_instances, find_blend_factor(params.merge))
            * make_step(params).deviation ** 2
        )
        instances = draw_instances(params.n_instances, params.n_weights, variance, entropy)
        deadline = now + self.phase_timeout
        return state.replace(
            instances=tuple(map(Array.from_values, instances)), deadline=deadline
        ), (WakeAt(deadline),)

    def on_message(
        self,
        state: DDMLAggregatorState,
        sender: str,
        message: Message,
        now: datetime,
        entropy: Entropy,
    ) -> tuple[DDMLAggregatorState, Effects]:
        if not state.instances or not isinstance(message, DDMLDraw | DDMLUpdate):
            raise RemoteProtocolError(
                "PROTO-003", f"{sender} sent a {message.type_name} that was not expected."
            )
        epoch = compute_epoch(state.n_merged, self.params.epoch_updates)
        if isinstance(message, DDMLUpdate):
            return self._handle_update(state, sender, message, epoch, entropy)
        if state.is_over:
            return state, ()
        drawn = state.instances[entropy.below(len(state.instances))]
        return state, (
            Send(
                sender, DDMLInstance(study=self.study, draw=message.id, epoch=epoch, weights=drawn)
            ),
        )

    def on_tick(
        self, state: DDMLAggregatorState, now: datetime, entropy: Entropy
    ) -> tuple[DDMLAggregatorState, Effects]:
        return self._finish(state) if not state.is_over and now >= state.deadline else (state, ())

    def _handle_update(
        self,
        state: DDMLAggregatorState,
        sender: str,
        update: DDMLUpdate,
        epoch: int,
        entropy: Entropy,
    ) -> tuple[DDMLAggregatorState, Effects]:
        weights = read_weights(update.weights, self.params)
        fault = find_epoch_fault(update.epoch, epoch)
        if fault == "early":
            raise future_epoch_error(sender, update.epoch, epoch)
        if state.is_over or fault == "stale":
            return state.count_rejection("over" if state.is_over else "stale"), ()
        if self.spam_filter is not None:
            update_test = self.spam_filter.make_test(*compute_moments(state.to_matrix()))
            if find_content_fault(weights, update.epoch, update_test) is not None:
                return state.count_rejection("spam"), ()
        state = self._merge(state, weights, entropy)
        return self._finish(state) if state.n_merged >= self.n_expected else (state, ())

    def _merge(
        self, state: DDMLAggregatorState, weights: Weights, entropy: Entropy
    ) -> DDMLAggregatorState:
        slot, k = entropy.below(len(state.instances)), len(state.instances)
        instance = merge_update(
            state.instances[slot].expect("int32", weights.size),
            weights,
            find_blend_factor(self.params.merge),
        )
        instances = (
            *state.instances[:slot],
            Array.from_values(instance),
            *state.instances[slot + 1 :],
        )
        state = state.replace(instances=instances, n_merged=state.n_merged + 1)
        if not is_average_due(state.n_merged, k if self.params.averaging else 0):
            return state
        average = update_average(
            state.compute_weights(), state.to_matrix().mean(axis=0), state.n_merged // k
        )
        return state.replace(average=Array.from_values(average.view(np.int64)))

    def _finish(self, state: DDMLAggregatorState) -> tuple[DDMLAggregatorState, Effects]:
        state = state.replace(is_over=True)
        if state.n_merged < self.minimum:
            error = RemoteProtocolError(
                "DDML-002",
                f"{state.n_merged} updates were merged; the study needs {self.minimum}.",
                why="Too few devices sent an update in time. The budget of those sent is spent.",
            )
            return state, (Abort(error),)
        model = GLM.from_grid_weights(self.params, state.compute_weights())
        return state, (
            Finish(DDMLAggregatorResult(model, state.to_matrix(), state.n_merged, state.refused)),
        )
