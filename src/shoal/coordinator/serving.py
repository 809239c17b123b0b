"""Draw and update without HTTP: what a coordinator does for a study of DDML, on any store.

Any number of processes may serve one study; what they share is in the store. Each remembers the centre and the spread of the instances,
by which spam is told, and looks again after k merged updates at the latest.

The way of an update: length and epoch, range, spam, and then one atomic step of the store. What looks like spam may be the retry of an
update that was merged long ago: its name is looked up before it is refused. A body is read where it lies (``np.frombuffer`` copies
nothing; the range takes one pass without a temporary); the stores say what they copy.

Who may send an update (a token, a signature, anybody) is settled before `Serving.update` is called, and no trace of it arrives here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self

import numpy as np

from shoal.coordinator.models.base import Arriving, Average, Body, Floats, ModelStore, Scrubbed, as_weights, check_shape
from shoal.entropy import Entropy
from shoal.errors import UsageError
from shoal.protocols.ddml.averaging import fold
from shoal.protocols.ddml.judging import WINDOW, is_stale
from shoal.protocols.ddml.merging import LIMIT, Weights, initial, part_of, steady_variance
from shoal.protocols.ddml.messages import ID_BYTES
from shoal.protocols.ddml.model import GLM
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.passes import moments_by, passes_for
from shoal.protocols.ddml.spam import OUT_OF_RANGE
from shoal.protocols.ddml.step import make_step
from shoal.study.ddml import filter_of, params_of
from shoal.study.manifest import Manifest

Refused = Literal["size", "range", "stale", "early"]
"""What is refused by form: a body or an id of another size, a weight out of range, an epoch too long ago or not begun."""

_PATIENCE_SECONDS = 10.0

_BLOCK = 1 << 12
"""Weights of all instances that are looked at together."""


class Arrival(NamedTuple):
    """An update as it came: its id, the epoch of its draw, and its weights."""

    id: bytes
    epoch: int
    body: Body


class Gauge(Protocol):
    """What tells spam while the instances are about the same: `shoal.protocols.ddml.spam.Gauge`."""

    def judge(self, weights: Weights, epoch: int) -> str | None:
        """Why an update ``(p,)`` of an epoch does not belong to the instances, in fixed words; or None."""
        ...


class Judge(Protocol):
    """What refuses spam: `shoal.protocols.ddml.spam.Filter`."""

    def gauge(self, centre: Floats, spread: Floats) -> Gauge:
        """For instances of this mean and standard deviation."""
        ...


def _moments(instances: Weights) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each weight, as `centre_and_spread` has them, in blocks: what lies between stays in the cache."""
    k, p = instances.shape
    passes = passes_for(p)
    if passes is not None:
        return moments_by(passes, instances)
    centre, spread = np.empty(p), np.zeros(p)
    for start in range(0, p, _BLOCK):
        part = slice(start, start + _BLOCK)
        block = instances[:, part].astype(np.float64)
        # Whole numbers: their sum is exact in any order. A product of matrices would keep threads waiting for each other.
        centre[part] = np.add.reduce(block, axis=0) / k
        if k > 1:
            block -= centre[part]
            spread[part] = np.sqrt(np.einsum("kp,kp->p", block, block) / (k - 1))
    return centre, spread


def open_serving(
    manifest: Manifest, store: ModelStore, entropy: Entropy, *, in_flight: int | None = None, refuse: Callable[[str], object] | None = None
) -> Serving:
    """Serve the study of a manifest, with the filter against spam that the study asks for.

    Parameters
    ----------
    manifest
        Of a study of DDML; instances are kept under its digest.
    store, entropy, refuse
        See `Serving`.
    in_flight
        Updates that are under way, on average, when one arrives; None for as many as there are instances, see `filter_of`.

    Raises
    ------
    UsageError
        ``USAGE-001``: the study is not of DDML.
    """
    study = manifest.study
    if study.protocol != "ddml":
        raise UsageError(
            "USAGE-001", f"A study of {study.protocol} has no model instances to serve.", fix="Give the manifest of a study of ddml."
        )
    return Serving(params_of(study), manifest.digest.hex(), store, filter_of(study, in_flight), entropy, refuse)


class Serving:
    """One study, as one process serves it.

    Parameters
    ----------
    params, study
        The public figures, and the digest of the manifest in hexadecimal.
    store
        Where the instances are; they are begun where the store has none. It remains its opener's to close.
    judge
        What refuses spam; None merges whatever has the right form.
    entropy
        Draws the instances. Epsilon rests on each device's own noise, whichever instance it is given, and so a seeded one is not refused;
        in earnest it is `SystemEntropy`, for nobody to foretell which instance an update went into.
    refuse
        Counts a refusal by its reason; None has the store count each at once.

    Notes
    -----
    Ref: DDML Algorithm 2. The instance that an update is merged into is drawn apart from the one that was handed out.

    Earlier versions of the instances leave the disk when serving begins, at each new epoch, and at `close`. Between epochs, and for as
    long as nothing arrives, the store keeps what it says of itself; a timer may call `tidy`.

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

    def __init__(
        self,
        params: Params,
        study: str,
        store: ModelStore,
        judge: Judge | None,
        entropy: Entropy,
        refuse: Callable[[str], object] | None = None,
    ) -> None:
        self.params = params
        self._refuse = refuse or (lambda reason: store.refuse(study, reason))
        self._study, self._store, self._judge, self._entropy = study, store, judge, entropy
        self._k, self._n_bytes, self._part = params.n_instances, 4 * params.n_weights, part_of(params.merge)
        self._epoch_updates, self._n_expected = params.epoch_updates, params.n_expected
        wanted = (params.n_instances, params.n_weights)
        found = store.shape(study)
        if found is None:
            variance = steady_variance(self._k, self._part) * make_step(params).deviation ** 2
            store.create(study, initial(*wanted, variance, entropy))
        else:
            check_shape(study, found, wanted)
        # A process that was killed has left behind what it would have tidied.
        self.tidy()
        self._look()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def draw(self) -> tuple[int, Body]:
        """The epoch, and a random instance."""
        self._n_merged, weights = self._store.draw(self._study, self._entropy.below(self._k))
        return self._n_merged // self._epoch_updates, weights

    def update(self, id: bytes, epoch: int, body: Body) -> str:  # noqa: A002
        """Merge an update, or refuse it.

        Returns
        -------
        str
            ``"merged"``; ``"repeated"`` for one that was merged before, which changes nothing; or the reason for a refusal, which is
            counted: one of `Refused`, or what the filter says.
        """
        fault = self._fault(id, epoch, body)
        if fault is None:
            return self._settle(*self._store.merge(self._study, self._entropy.below(self._k), id, epoch, body, self._part))
        return self._settle(fault)

    def update_many(self, arrivals: Sequence[Arrival]) -> list[str]:
        """The same for several, which a store may merge together; k at a time, so that none is held against older instances than alone."""
        outcomes: list[str] = []
        for start in range(0, len(arrivals), self._k):
            outcomes += self._update_some(arrivals[start : start + self._k])
        return outcomes

    @property
    def n_merged(self) -> int:
        """How many updates had been merged when this process looked last."""
        return self._n_merged

    @property
    def is_full(self) -> bool:
        """Whether as many were merged as the study expects."""
        return self._n_merged >= self._n_expected

    def finish(self) -> int:
        """Merge nothing any more, neither here nor in another process; how many were merged.

        Notes
        -----
        Names of the epoch of this moment are forgotten, and so all its updates are stale, and no other epoch ever begins.
        """
        while True:
            first_kept = self._store.n_merged(self._study) // self._epoch_updates + 1
            self._store.forget(self._study, first_kept)
            self._n_merged = self._store.n_merged(self._study)
            if self._n_merged // self._epoch_updates < first_kept:
                return self._n_merged

    def model(self) -> GLM:
        """The model that predicts: the average over time, or the mean of the instances before the first fold."""
        average = self._store.average(self._study) if self.params.averaging else None
        return GLM.of(self.params, average.weights if average else self._store.all_instances(self._study).mean(axis=0))

    def tidy(self, seconds: float = 0.0) -> Scrubbed:
        """Forget what is too old to come again, and rid the disk of earlier instances, waiting for so long at most.

        Returns
        -------
        Scrubbed
            Whether earlier instances are gone. Where others were in the way, it is tried again after k merged updates.
        """
        self._n_merged = self._store.n_merged(self._study)
        self._store.forget(self._study, max(0, self._n_merged // self._epoch_updates - WINDOW))
        scrubbed = self._store.scrub(seconds)
        self._tidy_again_at = self._n_merged + self._k if scrubbed == "blocked" else math.inf
        return scrubbed

    def close(self) -> Scrubbed:
        """Tidy for the last time, with patience. The study can be served again, here or by others."""
        return self.tidy(_PATIENCE_SECONDS)

    def _update_some(self, arrivals: Sequence[Arrival]) -> list[str]:
        faults = [self._fault(*one) for one in arrivals]
        due = [Arriving(self._entropy.below(self._k), *one) for one, fault in zip(arrivals, faults, strict=True) if fault is None]
        merged = iter(self._store.merge_many(self._study, due, self._part) if due else ())
        return [self._settle(*next(merged)) if fault is None else self._settle(fault) for fault in faults]

    def _settle(self, outcome: str, n_merged: int = 0) -> str:
        """Do what follows from an outcome."""
        if outcome == "merged":
            self._follow(n_merged)
        elif outcome != "repeated":
            self._refuse(outcome)
        return outcome

    def _fault(self, id: bytes, epoch: int, body: Body) -> str | None:  # noqa: A002
        """Why an update is not merged, ``"repeated"`` included; None where the store has to see."""
        fault = self._form_fault(id, epoch, body)
        if fault is not None:
            return fault
        doubt = self._content_fault(epoch, body)
        return "repeated" if doubt is not None and self._store.knows(self._study, id, epoch) else doubt

    def _form_fault(self, id: bytes, epoch: int, body: Body) -> Refused | None:  # noqa: A002
        if len(id) != ID_BYTES or len(body) != self._n_bytes:
            return "size"
        now = self._n_merged // self._epoch_updates
        if epoch > now:
            # Another process may have merged much since this one looked.
            self._n_merged = self._store.n_merged(self._study)
            now = self._n_merged // self._epoch_updates
        if epoch > now:
            return "early"
        return "stale" if is_stale(epoch, now) else None

    def _content_fault(self, epoch: int, body: Body) -> str | None:
        weights = as_weights(body)
        if self._gauge is None:
            return "range" if weights.min() < -LIMIT else None
        doubt = self._gauge.judge(weights, epoch)
        return "range" if doubt == OUT_OF_RANGE else doubt

    def _follow(self, n_merged: int) -> None:
        """What is due after so many merged updates."""
        self._n_merged = n_merged
        is_fold_due = n_merged % self._k == 0 and self.params.averaging
        if is_fold_due or (self._judge is not None and n_merged - self._looked_at >= self._k):
            self._look()
        if is_fold_due:
            self._fold()
        if n_merged % self._epoch_updates == 0 or n_merged >= self._tidy_again_at:
            self.tidy()

    def _look(self) -> None:
        self._looked_at = self._n_merged
        self._centre, spread = _moments(self._store.all_instances(self._study))
        self._gauge = None if self._judge is None else self._judge.gauge(self._centre, spread)

    def _fold(self) -> None:
        """Fold the mean of this moment in. If the process dies before, or another folds at the same time, one mean of many is left out."""
        average = self._store.average(self._study) or Average(0, self._centre)
        n = average.n_folds + 1
        self._store.keep_average(self._study, Average(n, fold(average.weights, self._centre, n)))
