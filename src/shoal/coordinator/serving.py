"""Draw and update without HTTP: what a coordinator does for a study of DDML, on any store.

Any number of processes may serve one study; what they share is in the store. Each remembers the centre and the spread of the instances,
by which spam is told, and looks again after k merged updates at the latest.

The way of an update: length and epoch, range, spam, and then one atomic step of the store. A body is read where it lies
(``np.frombuffer`` copies nothing; the range takes one pass without a temporary); the stores say what they copy.

Who may send an update (a token, a signature, anybody) is settled before `Serving.update` is called, and no trace of it arrives here.
"""

from __future__ import annotations

import math
from typing import Literal, Protocol

import numpy as np

from shoal.coordinator.models.base import Average, Body, Floats, ModelStore, as_weights, check_shape
from shoal.entropy import Entropy
from shoal.protocols.ddml.averaging import fold
from shoal.protocols.ddml.judging import WINDOW, epoch_of, is_stale
from shoal.protocols.ddml.merging import LIMIT, Weights, initial, part_of, steady_variance
from shoal.protocols.ddml.messages import ID_BYTES
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.step import make_step

Refused = Literal["size", "range", "stale", "early"]
"""What is refused by form: a body or an id of another size, a weight out of range, an epoch too long ago or not begun."""


class Judge(Protocol):
    """What refuses spam: `shoal.protocols.ddml.spam.Filter`."""

    def judge(self, weights: Weights, centre: Floats, spread: Floats, epoch: int) -> str | None:
        """Why an update ``(p,)`` of an epoch does not belong to instances of this mean and standard deviation, in fixed words; or None."""
        ...


def centre_and_spread(instances: Weights) -> tuple[Floats, Floats]:
    """Mean and standard deviation (divisor k - 1) of each weight over the ``(k, p)`` instances.

    Row by row, because what fits the cache is five times as fast at 50,000 weights as all instances in floats.
    """
    k, p = instances.shape
    centre, squares = np.zeros(p), np.zeros(p)
    for row in instances:
        centre += row
    centre /= k
    for row in instances:
        off = row - centre
        off *= off
        squares += off
    return centre, np.sqrt(squares / max(1, k - 1))


class Serving:
    """One study, as one process serves it.

    Parameters
    ----------
    params, study
        The public figures, and the digest of the manifest in hexadecimal.
    store
        Where the instances are; they are begun where the store has none.
    judge
        What refuses spam; None merges whatever has the right form.
    entropy
        Draws the instances.

    Notes
    -----
    Ref: DDML Algorithm 2. The instance that an update is merged into is drawn apart from the one that was handed out.

    Examples
    --------
    >>> from shoal.coordinator.models.memory import MemoryModels
    >>> from shoal.domain import Categorical, Numeric, Schema
    >>> from shoal.entropy import SystemEntropy
    >>> schema = Schema([Numeric("age", 0, 100, missing=False)], label=Categorical("ill", ["no", "yes"]))
    >>> serving = Serving(Params(schema, epsilon=4.0, size=10_000), "5" * 64, MemoryModels(), None, SystemEntropy())
    >>> epoch, weights = serving.draw()
    >>> serving.update(bytes(16), epoch, weights), serving.update(bytes(16), epoch, weights)
    ('merged', 'repeated')
    """

    def __init__(self, params: Params, study: str, store: ModelStore, judge: Judge | None, entropy: Entropy) -> None:
        self.params = params
        self._study, self._store, self._judge, self._entropy = study, store, judge, entropy
        self._k, self._n_bytes, self._part = params.n_instances, 4 * params.n_weights, part_of(params.merge)
        wanted = (params.n_instances, params.n_weights)
        found = store.shape(study)
        if found is None:
            variance = steady_variance(self._k, self._part) * make_step(params).deviation ** 2
            store.create(study, initial(*wanted, variance, entropy))
        else:
            check_shape(study, found, wanted)
        self._n_merged = store.n_merged(study)
        self._look()

    def draw(self) -> tuple[int, bytes]:
        """The epoch, and a random instance."""
        self._n_merged, weights = self._store.draw(self._study, self._entropy.below(self._k))
        return epoch_of(self.params, self._n_merged), weights

    def update(self, id: bytes, epoch: int, body: Body) -> str:  # noqa: A002
        """Merge an update, or refuse it.

        Returns
        -------
        str
            ``"merged"``; ``"repeated"`` for one that was merged before, which changes nothing; or the reason for a refusal, which is
            counted: one of `Refused`, or what the filter says.
        """
        reason = self._form_fault(id, epoch, body) or self._content_fault(epoch, body)
        if reason is None:
            outcome, n_merged = self._store.merge(self._study, self._entropy.below(self._k), id, epoch, body, self._part)
            if outcome == "merged":
                self._follow(n_merged)
            if outcome != "stale":
                return outcome
            reason = outcome
        self._store.refuse(self._study, reason)
        return reason

    def weights(self) -> Floats:
        """``(C, d)``: the model that predicts: the average over time, or the mean of the instances before the first fold."""
        average = self._store.average(self._study) if self.params.averaging else None
        centre = average.weights if average else self._store.all_instances(self._study).mean(axis=0)
        return centre.reshape(self.params.n_outputs, -1) * math.ldexp(1.0, -self.params.fraction_bits)

    def tidy(self) -> None:
        """Forget what is too old to come again, and rid the disk of earlier instances: done at each new epoch, and to be done when idle."""
        self._n_merged = self._store.n_merged(self._study)
        self._store.forget(self._study, max(0, epoch_of(self.params, self._n_merged) - WINDOW))
        self._store.scrub()

    def _form_fault(self, id: bytes, epoch: int, body: Body) -> Refused | None:  # noqa: A002
        if len(id) != ID_BYTES or len(body) != self._n_bytes:
            return "size"
        now = epoch_of(self.params, self._n_merged)
        if epoch > now:
            # Another process may have merged much since this one looked.
            self._n_merged = self._store.n_merged(self._study)
            now = epoch_of(self.params, self._n_merged)
        if epoch > now:
            return "early"
        return "stale" if is_stale(epoch, now) else None

    def _content_fault(self, epoch: int, body: Body) -> str | None:
        weights = as_weights(body)
        if weights.min() < -LIMIT:
            return "range"
        return None if self._judge is None else self._judge.judge(weights, self._centre, self._spread, epoch)

    def _follow(self, n_merged: int) -> None:
        """What is due after so many merged updates."""
        self._n_merged = n_merged
        is_fold_due = self.params.averaging and n_merged % self._k == 0
        if is_fold_due or (self._judge is not None and n_merged - self._looked_at >= self._k):
            self._look()
        if is_fold_due:
            self._fold()
        if n_merged % self.params.epoch_updates == 0:
            self.tidy()

    def _look(self) -> None:
        self._looked_at = self._n_merged
        self._centre, self._spread = centre_and_spread(self._store.all_instances(self._study))

    def _fold(self) -> None:
        """Fold the mean of this moment in. If the process dies before, or another folds at the same time, one mean of many is left out."""
        average = self._store.average(self._study) or Average(0, self._centre)
        n = average.n_folds + 1
        self._store.keep_average(self._study, Average(n, fold(average.weights, self._centre, n)))
