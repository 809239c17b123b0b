"""The aggregator of DDML: hands out a random instance to whoever draws, and merges what comes back into a random one.

=============  ========================================================================================================
state          what happens
=============  ========================================================================================================
open           a draw is answered; an update is merged, unless it is too old or looks like spam, which is counted
over           after as many updates as are expected, or when time is up: nothing is handed out or merged any more
=============  ========================================================================================================

There are no rounds, and it is not remembered who drew what. An update of the wrong size or range, or from the future, no honest device
sends: it is blamed on its sender. One that is stale or looks like spam may be honest: it is dropped and counted.
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
from shoal.protocols.ddml.averaging import fold
from shoal.protocols.ddml.design import Floats
from shoal.protocols.ddml.judging import Judge, epoch_of, is_stale, not_begun, read_weights
from shoal.protocols.ddml.merging import Weights, initial, merged, part_of, steady_variance
from shoal.protocols.ddml.messages import MESSAGES, Draw, Instance, Natural, Update
from shoal.protocols.ddml.model import GLM
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.step import make_step

Reason = Literal["stale", "spam", "over"]

_A_DAY = timedelta(days=1)


class Refusals(Record):
    """How many updates were not merged: they were under way for too long, looked like spam, or came after the end."""

    stale: Natural = 0
    spam: Natural = 0
    over: Natural = 0


class Keeping(Record):
    """The aggregator's state.

    Parameters
    ----------
    instances
        The k instances, each an array of its own: an update changes one of them.
    n_merged
        Updates that were merged.
    average
        The average over time, in units of the grid: floats as their 64 bits, once there is one.
    refused
        Updates that were not merged.
    deadline, is_over
        When the study ends, and whether it has.
    """

    instances: tuple[Array, ...] = ()
    n_merged: Natural = 0
    average: Array | None = None
    refused: Refusals = Refusals()
    deadline: Moment = START
    is_over: bool = False

    def matrix(self) -> Weights:
        """The instances, ``(k, p)``."""
        rows: list[npt.NDArray[np.int32]] = [one.expect("int32", one.count) for one in self.instances]
        return np.stack(rows)

    def learned(self) -> Floats:
        """The weights that predict, ``(p,)`` in units of the grid: the average over time, or the instances' mean where there is none."""
        if self.average is None:
            mean: Floats = self.matrix().mean(axis=0)
            return mean
        bits: npt.NDArray[np.int64] = self.average.expect("int64", self.average.count)
        return bits.view(np.float64)

    def refuse(self, reason: Reason) -> Keeping:
        """The state with one more refusal."""
        return self.replace(refused=self.refused.replace(**{reason: getattr(self.refused, reason) + 1}))


@dataclass(frozen=True, eq=False)
class Learned:
    """The result of a study.

    Parameters
    ----------
    model
        What was learned: the average over time, or the mean of the instances.
    instances
        ``(k, p)`` int32: the last instances, in units of the grid.
    n_merged
        Updates that were merged.
    refused
        Updates that were not.
    """

    model: GLM
    instances: Weights
    n_merged: int
    refused: Refusals


class DDMLAggregator(Aggregator[Keeping]):
    """The untrusted side.

    Parameters
    ----------
    study
        Digest of the manifest.
    params
        The public figures of the study.
    judge
        What refuses spam; None merges whatever has the right form.
    minimum
        Fewest updates to learn from.
    n_expected
        After so many merged updates the study is over; None for as many as the study declares.
    patience
        How long the study is open at most.

    Notes
    -----
    Ref: DDML Algorithm 2. The instance that is replaced, or moved, is drawn apart from the one that was handed out.
    """

    messages = MESSAGES

    def __init__(
        self,
        study: bytes,
        params: Params,
        judge: Judge | None = None,
        *,
        minimum: int = 1,
        n_expected: int | None = None,
        patience: timedelta = _A_DAY,
    ) -> None:
        self.study = study
        self.params = params
        self.judge = judge
        self.minimum = minimum
        self.n_expected = params.n_expected if n_expected is None else n_expected
        self.patience = patience

    def initial(self) -> Keeping:
        return Keeping()

    def started(self, state: Keeping, now: datetime, entropy: Entropy) -> tuple[Keeping, Effects]:
        params = self.params
        variance = steady_variance(params.n_instances, part_of(params.merge)) * make_step(params).deviation ** 2
        instances = initial(params.n_instances, params.n_weights, variance, entropy)
        deadline = now + self.patience
        return state.replace(instances=tuple(map(Array.of, instances)), deadline=deadline), (WakeAt(deadline),)

    def received(self, state: Keeping, sender: str, message: Message, now: datetime, entropy: Entropy) -> tuple[Keeping, Effects]:
        if not state.instances or not isinstance(message, Draw | Update):
            raise RemoteProtocolError("PROTO-003", f"{sender} sends a {message.type_name} when none is due.")
        epoch = epoch_of(self.params, state.n_merged)
        if isinstance(message, Update):
            return self._updated(state, sender, message, epoch, entropy)
        if state.is_over:
            return state, ()
        drawn = state.instances[entropy.below(len(state.instances))]
        return state, (Send(sender, Instance(study=self.study, draw=message.id, epoch=epoch, weights=drawn)),)

    def ticked(self, state: Keeping, now: datetime, entropy: Entropy) -> tuple[Keeping, Effects]:
        return self._end(state) if not state.is_over and now >= state.deadline else (state, ())

    def _updated(self, state: Keeping, sender: str, update: Update, epoch: int, entropy: Entropy) -> tuple[Keeping, Effects]:
        weights = read_weights(update.weights, self.params)
        if update.epoch > epoch:
            raise not_begun(sender, update.epoch, epoch)
        reason = self._objection(state, weights, update.epoch, epoch)
        if reason is not None:
            return state.refuse(reason), ()
        state = self._merge(state, weights, entropy)
        return self._end(state) if state.n_merged >= self.n_expected else (state, ())

    def _objection(self, state: Keeping, weights: Weights, epoch: int, now: int) -> Reason | None:
        """Why an update of the right form is not merged."""
        if state.is_over:
            return "over"
        if is_stale(epoch, now):
            return "stale"
        is_spam = self.judge is not None and self.judge.judge_all(weights, state.matrix(), epoch) is not None
        return "spam" if is_spam else None

    def _merge(self, state: Keeping, weights: Weights, entropy: Entropy) -> Keeping:
        slot, k = entropy.below(len(state.instances)), len(state.instances)
        instance = merged(state.instances[slot].expect("int32", weights.size), weights, part_of(self.params.merge))
        instances = (*state.instances[:slot], Array.of(instance), *state.instances[slot + 1 :])
        n_folds, rest = divmod(state.n_merged + 1, k)
        state = state.replace(instances=instances, n_merged=state.n_merged + 1)
        if not self.params.averaging or rest:
            return state
        average = fold(state.learned(), state.matrix().mean(axis=0), n_folds)
        return state.replace(average=Array.of(average.view(np.int64)))

    def _end(self, state: Keeping) -> tuple[Keeping, Effects]:
        state = state.replace(is_over=True)
        if state.n_merged < self.minimum:
            error = RemoteProtocolError(
                "DDML-002",
                f"{state.n_merged} updates were merged; the study needs {self.minimum}.",
                why="Too few devices sent one in time. What they sent is spent.",
            )
            return state, (Abort(error),)
        model = GLM.of(self.params, state.learned())
        return state, (Finish(Learned(model, state.matrix(), state.n_merged, state.refused)),)
