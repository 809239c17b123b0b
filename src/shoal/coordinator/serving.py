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
from types import TracebackType
from typing import Literal, Protocol, Self

from shoal.coordinator.models.base import Average, Body, Floats, ModelStore, Scrubbed, as_weights, check_shape
from shoal.entropy import Entropy
from shoal.errors import UsageError
from shoal.protocols.ddml.averaging import fold
from shoal.protocols.ddml.honest import centre_and_spread
from shoal.protocols.ddml.judging import WINDOW, epoch_of, is_stale
from shoal.protocols.ddml.merging import LIMIT, Weights, initial, part_of, steady_variance
from shoal.protocols.ddml.messages import ID_BYTES
from shoal.protocols.ddml.model import GLM
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.step import make_step
from shoal.study.ddml import filter_of, params_of
from shoal.study.manifest import Manifest

Refused = Literal["size", "range", "stale", "early"]
"""What is refused by form: a body or an id of another size, a weight out of range, an epoch too long ago or not begun."""

_PATIENCE_SECONDS = 10.0


class Judge(Protocol):
    """What refuses spam: `shoal.protocols.ddml.spam.Filter`."""

    def judge(self, weights: Weights, centre: Floats, spread: Floats, epoch: int) -> str | None:
        """Why an update ``(p,)`` of an epoch does not belong to instances of this mean and standard deviation, in fixed words; or None."""
        ...


def open_serving(manifest: Manifest, store: ModelStore, entropy: Entropy, *, in_flight: int | None = None) -> Serving:
    """Serve the study of a manifest, with the filter against spam that the study asks for.

    Parameters
    ----------
    manifest
        Of a study of DDML; instances are kept under its digest.
    store, entropy
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
    return Serving(params_of(study), manifest.digest.hex(), store, filter_of(study, in_flight), entropy)


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
        # A process that was killed has left behind what it would have tidied.
        self.tidy()
        self._look()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

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
        reason: str | None = self._form_fault(id, epoch, body)
        if reason is None:
            reason = self._content_fault(epoch, body)
            if reason is not None and self._store.knows(self._study, id, epoch):
                return "repeated"
        if reason is None:
            outcome, n_merged = self._store.merge(self._study, self._entropy.below(self._k), id, epoch, body, self._part)
            if outcome == "merged":
                self._follow(n_merged)
            if outcome != "stale":
                return outcome
            reason = outcome
        self._store.refuse(self._study, reason)
        return reason

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
        self._store.forget(self._study, max(0, epoch_of(self.params, self._n_merged) - WINDOW))
        scrubbed = self._store.scrub(seconds)
        self._tidy_again_at = self._n_merged + self._k if scrubbed == "blocked" else math.inf
        return scrubbed

    def close(self) -> Scrubbed:
        """Tidy for the last time, with patience. The study can be served again, here or by others."""
        return self.tidy(_PATIENCE_SECONDS)

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
        if n_merged % self.params.epoch_updates == 0 or n_merged >= self._tidy_again_at:
            self.tidy()

    def _look(self) -> None:
        self._looked_at = self._n_merged
        self._centre, self._spread = centre_and_spread(self._store.all_instances(self._study))

    def _fold(self) -> None:
        """Fold the mean of this moment in. If the process dies before, or another folds at the same time, one mean of many is left out."""
        average = self._store.average(self._study) or Average(0, self._centre)
        n = average.n_folds + 1
        self._store.keep_average(self._study, Average(n, fold(average.weights, self._centre, n)))
