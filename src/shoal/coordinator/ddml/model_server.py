"""Draw and update on any instance store.

`DDMLStudies` and the load tests of a coordinator call `ModelServer`; HTTP is elsewhere. Any number
of processes may serve one study; the store is all that they share. Each process caches the mean and
standard deviation of the instances for the spam filter, and reads them again after at most k merged
updates.

`ModelServer.update` checks the size, the epoch, the range and the spam filter, by the rule of
`shoal.protocols.ddml.merging`, and then merges in one atomic step of the store. An update that
looks like spam may be the retry of an update that was merged long ago: its id is looked up before
it is rejected. A body is read in place (``np.frombuffer`` copies nothing; the range check is one
pass without a temporary array); the stores document what they copy.

The caller decides who may send an update (a token, a signature, anybody) before it calls
`ModelServer.update`. No information about the sender may be passed to this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Literal, NamedTuple, Self

from shoal.coordinator.ddml.instances.base import (
    Average,
    Body,
    InstanceStore,
    PendingUpdate,
    ScrubOutcome,
    as_weights,
    check_shape,
)
from shoal.entropy import Entropy
from shoal.errors import UsageError
from shoal.protocols.ddml.merging import (
    EPOCH_WINDOW,
    SpamFilterProtocol,
    compute_epoch,
    compute_moments,
    draw_instances,
    find_blend_factor,
    find_content_fault,
    find_epoch_fault,
    is_average_due,
    steady_variance,
    update_average,
)
from shoal.protocols.ddml.messages import ID_BYTES
from shoal.protocols.ddml.model import GLM
from shoal.protocols.ddml.noisy_step import make_step
from shoal.protocols.ddml.params import DDMLParams
from shoal.study.ddml import build_params, make_spam_filter
from shoal.study.manifest import Manifest

FormFault = Literal["size", "range", "stale", "early"]
"""Reasons to reject an update by its form.

A body or an id of the wrong size, a weight out of range, an epoch too old or not begun.
"""

_CLOSE_SECONDS = 10.0


class ReceivedUpdate(NamedTuple):
    """An update as received: its id, the epoch of its draw, and its weights."""

    id: bytes
    epoch: int
    body: Body


def open_model_server(
    manifest: Manifest,
    store: InstanceStore,
    entropy: Entropy,
    *,
    in_flight: int | None = None,
    on_reject: Callable[[str], object] | None = None,
) -> ModelServer:
    """Return a server for the study of a manifest, with the spam filter that the study asks for.

    Parameters
    ----------
    manifest
        Of a study of DDML; instances are stored under its digest.
    store, entropy, on_reject
        See `ModelServer`.
    in_flight
        Average number of updates in flight when one arrives; None for the number of instances,
        see `make_spam_filter`.

    Raises
    ------
    UsageError
        ``USAGE-001``: the study is not of DDML.
    """
    study = manifest.study
    if study.protocol != "ddml":
        raise UsageError(
            "USAGE-001",
            f"A study of {study.protocol} has no model instances.",
            fix="Give the manifest of a study of ddml.",
        )
    return ModelServer(
        build_params(study),
        manifest.digest.hex(),
        store,
        make_spam_filter(study, in_flight),
        entropy,
        on_reject,
    )


class ModelServer:
    """The model of one study, served by one process.

    Parameters
    ----------
    study
        Digest of the manifest in hexadecimal.
    store
        Holds the instances; the server creates them if the store has none. The caller closes the
        store.
    spam_filter
        Rejects spam; None merges every update that has the right form.
    entropy
        Chooses the instances. Epsilon depends on each device's own noise alone, whichever instance
        the device receives, so a seeded source is not rejected. A real service uses
        `SystemEntropy`, so that no one can predict which instance an update is merged into.
    on_reject
        Counts a rejection by its reason; None makes the store count each rejection immediately.

    Notes
    -----
    Ref: DDML Algorithm 2. The instance that an update is merged into is drawn independently of the
    instance that was handed out.

    Earlier versions of the instances are removed from the disk when serving begins, at each new
    epoch, and at `close`. Each store documents what it keeps between epochs and while no update
    arrives; a timer may call `tidy`.

    Examples
    --------
    >>> from shoal.coordinator.ddml.instances.memory import MemoryInstanceStore
    >>> from shoal.data.schema import Categorical, Numeric, Schema
    >>> from shoal.entropy import SystemEntropy
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100, missing=False)], label=Categorical("ill", ["no", "yes"])
    ... )
    >>> serving = ModelServer(
    ...     DDMLParams(schema, epsilon=4.0, size=10_000),
    ...     "5" * 64,
    ...     MemoryInstanceStore(),
    ...     None,
    ...     SystemEntropy(),
    ... )
    >>> epoch, weights = serving.draw()
    >>> serving.update(bytes(16), epoch, weights), serving.update(bytes(16), epoch, weights)
    ('merged', 'repeated')
    """

    def __init__(
        self,
        params: DDMLParams,
        study: str,
        store: InstanceStore,
        spam_filter: SpamFilterProtocol | None,
        entropy: Entropy,
        on_reject: Callable[[str], object] | None = None,
    ) -> None:
        self.params = params
        self._on_reject = on_reject or (lambda reason: store.count_rejection(study, reason))
        self._study, self._store, self._spam_filter, self._entropy = (
            study,
            store,
            spam_filter,
            entropy,
        )
        self._k, self._n_bytes, self._blend_factor = (
            params.n_instances,
            4 * params.n_weights,
            find_blend_factor(params.merge),
        )
        self._epoch_updates, self._n_expected = params.epoch_updates, params.n_expected
        self._average_every = self._k if params.averaging else 0
        wanted = (params.n_instances, params.n_weights)
        shape = store.find_shape(study)
        if shape is None:
            variance = (
                steady_variance(self._k, self._blend_factor) * make_step(params).deviation ** 2
            )
            store.create(study, draw_instances(*wanted, variance, entropy))
        else:
            check_shape(study, shape, wanted)
        # A killed process has left earlier instances that it would have removed.
        self.tidy()
        self._refresh_statistics()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def draw(self) -> tuple[int, Body]:
        """Return the epoch and a random instance."""
        self._n_merged, weights = self._store.draw(self._study, self._entropy.below(self._k))
        return compute_epoch(self._n_merged, self._epoch_updates), weights

    def update(self, update_id: bytes, epoch: int, body: Body) -> str:
        """Merge an update, or reject it.

        Returns
        -------
        str
            ``"merged"``; ``"repeated"`` for an update that was merged before, which changes
            nothing; or the reason of a rejection, which is counted: one of `FormFault`, or the
            reason of the spam filter.
        """
        fault = self._find_fault(update_id, epoch, body)
        if fault is None:
            return self._record_outcome(
                *self._store.merge(
                    self._study,
                    self._entropy.below(self._k),
                    update_id,
                    epoch,
                    body,
                    self._blend_factor,
                )
            )
        return self._record_outcome(fault)

    def update_many(self, updates: Sequence[ReceivedUpdate]) -> list[str]:
        """Merge or reject several updates, which a store may merge together.

        Batches have at most k updates, so that the spam filter's statistics are not older than
        with `update`.
        """
        outcomes: list[str] = []
        for start in range(0, len(updates), self._k):
            outcomes += self._update_batch(updates[start : start + self._k])
        return outcomes

    @property
    def n_merged(self) -> int:
        """Number of merged updates, as last read by this process."""
        return self._n_merged

    @property
    def is_full(self) -> bool:
        """Whether the expected number of updates has been merged."""
        return self._n_merged >= self._n_expected

    def finish(self) -> int:
        """Stop merging in all processes, and return how many updates were merged.

        Notes
        -----
        The store forgets the ids of the current epoch, so that all its updates are stale and no
        other epoch begins.
        """
        while True:
            first_kept = (
                compute_epoch(self._store.count_merged(self._study), self._epoch_updates) + 1
            )
            self._store.forget(self._study, first_kept)
            self._n_merged = self._store.count_merged(self._study)
            if compute_epoch(self._n_merged, self._epoch_updates) < first_kept:
                return self._n_merged

    def make_model(self) -> GLM:
        """Return the model that predicts.

        Its weights are the average over time, or the mean of the instances before the first fold.
        """
        average = self._store.load_average(self._study) if self.params.averaging else None
        return GLM.from_grid_weights(
            self.params,
            average.weights if average else self._store.load_instances(self._study).mean(axis=0),
        )

    def tidy(self, seconds: float = 0.0) -> ScrubOutcome:
        """Forget ids of stale updates and remove earlier instances from the disk.

        Wait up to ``seconds`` for other users of the store.

        Returns
        -------
        ScrubOutcome
            Whether earlier instances are removed. If other users blocked it, the server tries
            again after k merged updates.
        """
        self._n_merged = self._store.count_merged(self._study)
        self._store.forget(
            self._study,
            max(0, compute_epoch(self._n_merged, self._epoch_updates) - EPOCH_WINDOW),
        )
        scrubbed = self._store.scrub(seconds)
        self._next_tidy_at = self._n_merged + self._k if scrubbed == "blocked" else math.inf
        return scrubbed

    def close(self) -> ScrubOutcome:
        """Tidy for the last time, with a longer wait. The study can be served again later."""
        return self.tidy(_CLOSE_SECONDS)

    def _update_batch(self, updates: Sequence[ReceivedUpdate]) -> list[str]:
        faults = [self._find_fault(*update) for update in updates]
        due = [
            PendingUpdate(self._entropy.below(self._k), *update)
            for update, fault in zip(updates, faults, strict=True)
            if fault is None
        ]
        merged = iter(self._store.merge_many(self._study, due, self._blend_factor) if due else ())
        return [
            self._record_outcome(*next(merged)) if fault is None else self._record_outcome(fault)
            for fault in faults
        ]

    def _record_outcome(self, outcome: str, n_merged: int = 0) -> str:
        """Count a rejection, or run the upkeep that a merged update makes due."""
        if outcome == "merged":
            self._run_due_upkeep(n_merged)
        elif outcome != "repeated":
            self._on_reject(outcome)
        return outcome

    def _find_fault(self, update_id: bytes, epoch: int, body: Body) -> str | None:
        """Return why an update is not merged, or ``"repeated"``; None if the store decides."""
        form_fault = self._find_form_fault(update_id, epoch, body)
        if form_fault is not None:
            return form_fault
        fault = find_content_fault(as_weights(body), epoch, self._update_test)
        is_repeated = fault is not None and self._store.has_update(self._study, update_id, epoch)
        return "repeated" if is_repeated else fault

    def _find_form_fault(self, update_id: bytes, epoch: int, body: Body) -> FormFault | None:
        if len(update_id) != ID_BYTES or len(body) != self._n_bytes:
            return "size"
        fault = find_epoch_fault(epoch, compute_epoch(self._n_merged, self._epoch_updates))
        if fault == "early":
            # Other processes may have merged updates since this one read the number.
            self._n_merged = self._store.count_merged(self._study)
            fault = find_epoch_fault(epoch, compute_epoch(self._n_merged, self._epoch_updates))
        return fault

    def _run_due_upkeep(self, n_merged: int) -> None:
        """Refresh statistics, average and disk, as due after ``n_merged`` updates."""
        self._n_merged = n_merged
        is_fold_due = is_average_due(n_merged, self._average_every)
        if is_fold_due or (
            self._spam_filter is not None and n_merged - self._refreshed_at >= self._k
        ):
            self._refresh_statistics()
        if is_fold_due:
            self._update_average()
        if n_merged % self._epoch_updates == 0 or n_merged >= self._next_tidy_at:
            self.tidy()

    def _refresh_statistics(self) -> None:
        self._refreshed_at = self._n_merged
        self._centre, deviation = compute_moments(self._store.load_instances(self._study))
        self._update_test = (
            None
            if self._spam_filter is None
            else self._spam_filter.make_test(self._centre, deviation)
        )

    def _update_average(self) -> None:
        """Fold the current mean into the average.

        If the process dies before, or another process folds at the same time, one mean of many is
        left out.
        """
        average = self._store.load_average(self._study) or Average(0, self._centre)
        n = average.n_folds + 1
        self._store.save_average(
            self._study, Average(n, update_average(average.weights, self._centre, n))
        )
