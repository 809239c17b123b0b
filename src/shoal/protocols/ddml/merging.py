"""The update rule of the k instances: which updates are merged, merge and average.

`DDMLAggregator`, the coordinator's `ModelServer` and the simulation's NumPy loop call these
functions. ``population.numba_loop`` and ``numba_passes`` repeat parts of the rule in a form that
numba compiles; tests keep both forms equal.

The rule for an update: its epoch must have begun and must not be stale (`find_epoch_fault`), its
weights must be in range and must not look like spam (`find_content_fault`). Then it is merged into
a random instance (`merge_update`). After every k merged updates the mean of the instances is folded
into the average over time (`is_average_due`, `update_average`), which has less noise than the
instances of any moment. Weights are integers, in units of the study's grid.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.gaussian import get_gaussian_sampler
from shoal.protocols.ddml.design_matrix import Floats
from shoal.protocols.ddml.numba_passes import load_passes, make_contiguous, run_moments

Weights = npt.NDArray[np.int32]

BLEND = 0.1
"""beta of the merge ``blend``: an instance moves this part of the way towards an update."""

MAX_WEIGHT = (1 << 31) - 1
"""Weights lie between -MAX_WEIGHT and MAX_WEIGHT; larger values are clipped to this range."""

AVERAGING_EXPONENT = 3
"""Exponent of the average over time: the weight of a model grows as the third power of time."""

EPOCH_WINDOW = 10
"""Age in epochs up to which an update is accepted; ids of older updates can be forgotten."""

OUT_OF_RANGE = "a weight lies outside the range of weights"
"""The reason that `UpdateTestProtocol.find_fault` gives for a weight below -MAX_WEIGHT."""

_BLOCK = 1 << 12
"""Weights for which `compute_moments` reads all instances together."""


class UpdateTestProtocol(Protocol):
    """A spam test for given instances: `shoal.protocols.ddml.spam_filter.UpdateTest`."""

    def find_fault(self, weights: Weights, epoch: int) -> str | None:
        """Return why an update ``(p,)`` drawn in ``epoch`` is rejected, or None.

        The reason is one of a few fixed sentences, `OUT_OF_RANGE` among them.
        """
        ...


class SpamFilterProtocol(Protocol):
    """A spam filter: `shoal.protocols.ddml.spam_filter.SpamFilter`."""

    def make_test(self, centre: Floats, deviation: Floats) -> UpdateTestProtocol:
        """Return the test for instances of this mean and standard deviation."""
        ...


def compute_epoch(n_merged: int, epoch_updates: int) -> int:
    """Return the epoch after ``n_merged`` updates, if each epoch has ``epoch_updates``."""
    return n_merged // epoch_updates


def is_stale(epoch: int, now: int) -> bool:
    """Return whether an epoch is older than `EPOCH_WINDOW`; an honest device can be that slow."""
    return epoch < now - EPOCH_WINDOW


def find_epoch_fault(epoch: int, now: int) -> Literal["early", "stale"] | None:
    """Return why an update drawn in ``epoch`` is not merged in epoch ``now``, or None.

    Examples
    --------
    >>> find_epoch_fault(3, 2), find_epoch_fault(2, 2), find_epoch_fault(2, 13)
    ('early', None, 'stale')
    """
    if epoch > now:
        return "early"
    return "stale" if is_stale(epoch, now) else None


def is_in_range(weights: Weights) -> bool:
    """Return whether no weight is below -`MAX_WEIGHT`, the only int32 outside the range."""
    return bool(weights.min() >= -MAX_WEIGHT)


def find_content_fault(
    weights: Weights, epoch: int, update_test: UpdateTestProtocol | None
) -> str | None:
    """Return why the weights ``(p,)`` of an update are not merged, or None.

    The result is ``"range"`` or the reason of the test. The test checks the range in the same pass;
    without a test, only the range is checked.
    """
    if update_test is None:
        return None if is_in_range(weights) else "range"
    reason = update_test.find_fault(weights, epoch)
    return "range" if reason == OUT_OF_RANGE else reason


def round_to_grid(values: npt.NDArray[np.float64]) -> Weights:
    """Round values in units of the grid to weights, clipped to the range."""
    rounded: Weights = np.clip(np.rint(values), -MAX_WEIGHT, MAX_WEIGHT).astype(np.int32)
    return rounded


def add_step(weights: Weights, step: npt.NDArray[np.int64]) -> Weights:
    """Add a step in units of the grid to weights, clipped to the range."""
    moved: Weights = np.clip(weights.astype(np.int64) + step, -MAX_WEIGHT, MAX_WEIGHT).astype(
        np.int32
    )
    return moved


def find_blend_factor(merge: str) -> float:
    """Return beta, the part of the way that an instance moves towards an update.

    It is 1 for the merge ``discard``: the update replaces the instance.
    """
    return BLEND if merge == "blend" else 1.0


def merge_update(instance: Weights, update: Weights, blend_factor: float) -> Weights:
    """Merge an update into an instance: B_j + beta (w - B_j), rounded to the nearest.

    The result is the update itself if ``blend_factor``, which is beta, is 1.

    Notes
    -----
    Ref: DDML Algorithm 2 for beta = 1; errata D-06. Replacing an instance multiplies the noise of
    the mean, per unit of signal, by k; blending by k / (k (1 - beta) + beta) only. The message is
    the same, and so is the guarantee.
    """
    if blend_factor == 1:
        return update
    passes = load_passes(instance.size)
    if passes is not None:
        blended = np.empty(instance.size, np.int32)
        passes.blend(make_contiguous(instance), make_contiguous(update), blend_factor, blended)
        return blended
    old, moved = instance.astype(np.float64), update.astype(np.float64)
    moved -= old
    moved *= blend_factor
    moved += old
    # The result lies between the two, and so in range.
    rounded: Weights = np.rint(moved, out=moved).astype(instance.dtype)
    return rounded


def steady_variance(k: int, blend_factor: float) -> float:
    """Return the variance among the k instances (divisor k - 1) that stays constant.

    The unit is the variance of the noise in each update.

    Notes
    -----
    Ref: DDML Theorem 1: k/2 for beta = 1. For any beta the mean squared difference D of two
    instances becomes, after one update of one of them, D - D beta (k (1 - beta) + beta) / k +
    beta^2 in the pairs that it belongs to; the variance is D / 2. Updates that were drawn before
    others were merged raise it if they replace an instance, and hardly if they are blended in
    (errata D-07).

    Examples
    --------
    >>> steady_variance(20, 1.0), round(steady_variance(20, 0.1), 4)
    (10.0, 0.0552)
    """
    return 0.0 if k == 1 else k * blend_factor / (2 * (k * (1 - blend_factor) + blend_factor))


def draw_instances(k: int, p: int, variance: float, entropy: Entropy) -> Weights:
    """Draw the first ``(k, p)`` instances around zero, with a variance in units of the grid.

    Notes
    -----
    Ref: DDML §III-C, model initialisation.
    """
    if variance < 1:
        return np.zeros((k, p), np.int32)
    return round_to_grid(
        get_gaussian_sampler(Fraction(round(variance))).draw_many(k * p, entropy).astype(np.float64)
    ).reshape(k, p)


def is_average_due(n_merged: int, every: int) -> bool:
    """Return whether the mean is folded into the average after ``n_merged`` updates.

    ``every`` is the number of updates between two folds; 0 if there is no average.
    """
    return every != 0 and n_merged % every == 0


def update_average(average: Floats, mean: Floats, n: int) -> Floats:
    """Fold the n-th mean into the average, n = 1, 2, ..: A + (m - A) (1 + eta) / (n + eta).

    Notes
    -----
    Polynomial-decay averaging (Shamir and Zhang 2013): early models are forgotten, and the length
    of the run need not be known. The first mean replaces the average.

    Examples
    --------
    >>> import numpy as np
    >>> (
    ...     update_average(np.array([8.0]), np.array([2.0]), 1),
    ...     update_average(np.array([2.0]), np.array([7.0]), 2),
    ... )
    (array([2.]), array([6.]))
    """
    return average + (mean - average) * ((1 + AVERAGING_EXPONENT) / (n + AVERAGING_EXPONENT))


def compute_moments(instances: Weights) -> tuple[Floats, Floats]:
    """Return mean and standard deviation (divisor k - 1) of each weight over the instances.

    `spam_calibration.compute_centre_and_deviation` has the same values. Weights are read in blocks,
    so that intermediate results stay in the cache.
    """
    k, p = instances.shape
    passes = load_passes(p)
    if passes is not None:
        return run_moments(passes, instances)
    centre, deviation = np.empty(p), np.zeros(p)
    for start in range(0, p, _BLOCK):
        block_slice = slice(start, start + _BLOCK)
        block = instances[:, block_slice].astype(np.float64)
        # The sum of integers is exact in any order. A matrix product would make threads wait for
        # each other.
        centre[block_slice] = np.add.reduce(block, axis=0) / k
        if k > 1:
            block -= centre[block_slice]
            deviation[block_slice] = np.sqrt(np.einsum("kp,kp->p", block, block) / (k - 1))
    return centre, deviation
