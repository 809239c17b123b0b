"""Reject updates that honest noise cannot explain.

The aggregator and the coordinator's `ModelServer` call it. An update is compared with the k
instances alone, because it is not known which of them was drawn.

A weight's deviation is z = (w - centre) / sqrt(s^2 + sigma^2), where s^2 is the variance of the
instances, half this weight's and half that of all weights, and sigma^2 that of an honest update's
noise. An update is rejected if one z is too large, or if their root mean square is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.merging import MAX_WEIGHT, OUT_OF_RANGE, Weights
from shoal.protocols.ddml.noisy_step import make_step
from shoal.protocols.ddml.numba_passes import load_passes, make_contiguous
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.spam_calibration import (
    HonestDeviations,
    HonestUpdates,
    WeightGroup,
    compute_centre_and_deviation,
    make_honest_updates,
    noise_deviation,
    pool_variances,
    simulate_deviations,
)

Values = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]

FALSE_REJECTION_RATE = 0.0025
"""Rate at which each of the two tests may reject honest updates."""

_TAIL = 100
"""Samples in the tail from which a rarer quantile is extrapolated."""

WEIGHT_TOO_FAR = "a weight lies further from the instances than honest noise and gradients reach"
UPDATE_TOO_FAR = (
    "the weights together lie further from the instances than honest noise and gradients reach"
)


@dataclass(frozen=True)
class SpamThresholds:
    """The largest accepted deviation of a weight, and root mean square over all weights."""

    largest: float
    rms: float


@lru_cache(maxsize=64)
def calibrate_thresholds(
    params: DDMLParams, in_flight: int = 0, spam_threshold: float | None = None
) -> SpamThresholds:
    """Return thresholds that reject about one honest update of 200.

    They are the same for everyone, because they are simulated from public parameters.

    Parameters
    ----------
    in_flight
        Average number of updates in flight when one arrives.
    spam_threshold
        t, if the study sets the largest deviation itself.

    Notes
    -----
    Ref: DDML §III-D4, which leaves t open. Gradients are the largest that are allowed, always in
    the same direction.
    """
    honest_updates = make_honest_updates(params)
    entropy = SeededEntropy(
        f"ddml spam {params.n_instances} {params.merge} {params.n_weights} {in_flight}"
    )
    simulated = simulate_deviations(params, honest_updates, in_flight, entropy)
    thresholds = SpamThresholds(
        max(_find_largest_threshold(deviations, honest_updates) for deviations in simulated),
        max(_find_rms_threshold(deviations, honest_updates) for deviations in simulated),
    )
    return thresholds if spam_threshold is None else replace(thresholds, largest=spam_threshold)


def _find_largest_threshold(deviations: HonestDeviations, honest_updates: HonestUpdates) -> float:
    """Return the threshold of the largest deviation.

    Given which updates each instance descends from, the weights are independent: n of them exceed
    the threshold at most n / q times as often as q do.
    """
    return max(
        _estimate_quantile(
            deviations.largest[:, i],
            FALSE_REJECTION_RATE / len(mix) * kind.n_columns / kind.n_weights,
        )
        for i, (mix, kind) in enumerate(
            (mix, kind) for mix in honest_updates.mixtures for kind in mix
        )
    )


def _find_rms_threshold(deviations: HonestDeviations, honest_updates: HonestUpdates) -> float:
    """Return the threshold of the root mean square, the largest over the possible models."""
    squares = iter(
        [_extrapolate_squares(deviations, i, kind) for i, kind in enumerate(honest_updates.groups)]
    )
    models = [
        np.average([next(squares) for _ in mix], axis=0, weights=[kind.n_weights for kind in mix])
        for mix in honest_updates.mixtures
    ]
    return math.sqrt(max(_estimate_quantile(means, FALSE_REJECTION_RATE) for means in models))


def _extrapolate_squares(deviations: HonestDeviations, i: int, kind: WeightGroup) -> Floats:
    """Return the mean squares of all weights of a kind, from those of its columns.

    The variance that more weights would average out is removed.
    """
    squares = deviations.squares[:, i]
    if kind.n_columns == kind.n_weights:
        return squares
    mean, variance = float(squares.mean()), float(squares.var())
    within = float((deviations.fourths[:, i] - squares**2).mean())
    # The variance due to which updates each instance descends from, its standard error, and the
    # remaining variance of the weights themselves.
    kept = (
        max(0.0, variance - within / kind.n_columns)
        + variance * math.sqrt(2 / squares.size)
        + within / kind.n_weights
    )
    shrunk: Floats = mean + math.sqrt(kept / variance) * (squares - mean) if variance else squares
    return shrunk


def _estimate_quantile(values: Floats, chance: float) -> float:
    """Return the value that is exceeded with a given probability.

    Beyond the sample it uses an exponential tail, the heaviest that occurs here.
    """
    known = max(chance, _TAIL / values.size)
    edge = float(np.quantile(values, 1 - known))
    beyond = values[values > edge]
    return edge + (float(beyond.mean()) - edge) * math.log(known / chance) if beyond.size else edge


class SpamFilter:
    """Accepts or rejects the updates that a coordinator receives.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Numeric, Schema
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100, missing=False)], label=Categorical("ill", ["no", "yes"])
    ... )
    >>> params = DDMLParams(schema, epsilon=4.0, size=10_000, variant="paper")
    >>> spam = SpamFilter(params, calibrate_thresholds(params, in_flight=5))
    >>> instances = np.zeros((20, 2), np.int32)
    >>> spam.find_fault_among(np.zeros(2, np.int32), instances)
    >>> spam.find_fault_among(np.full(2, 1 << 30, np.int32), instances)
    'the weights together lie further from the instances than honest noise and gradients reach'
    """

    def __init__(self, params: DDMLParams, thresholds: SpamThresholds) -> None:
        self.params = params
        self.thresholds = thresholds
        self._sigma = noise_deviation(make_step(params))
        # Steps and merges are rounded to the grid, which moves a deviation by up to a unit of it.
        self._rms, self._largest = (
            thresholds.rms + 1 / self._sigma,
            thresholds.largest + 1 / self._sigma,
        )

    def find_fault(
        self, weights: Weights, centre: Floats, deviation: Floats, epoch: int = 0
    ) -> str | None:
        """Return why an update ``(p,)`` is rejected, or None.

        Parameters
        ----------
        centre, deviation
            Mean and standard deviation (divisor k - 1) of each weight over the instances; of up to
            k updates ago.
        epoch
            Epoch of the update: its noise decreases with the learning rate.
        """
        return self.make_test(centre, deviation).find_fault(weights, epoch)

    def make_test(self, centre: Floats, deviation: Floats) -> UpdateTest:
        """Return the test of updates against this mean and standard deviation."""
        return UpdateTest(self.params, (self._sigma, self._rms, self._largest), centre, deviation)

    def find_fault_among(self, weights: Weights, instances: Weights, epoch: int = 0) -> str | None:
        """Return the same as `find_fault`, from the instances ``(k, p)``."""
        return self.find_fault(
            weights, *compute_centre_and_deviation(instances.astype(np.float64)), epoch
        )


class UpdateTest:
    """The test of updates against one mean and standard deviation of the instances.

    `SpamFilter.make_test` makes it.

    Notes
    -----
    In single precision, which is three times as fast: the relative error of a weight is 6e-8, far
    below any honest deviation.
    """

    def __init__(
        self,
        params: DDMLParams,
        limits: tuple[float, float, float],
        centre: Floats,
        deviation: Floats,
    ) -> None:
        self._gamma = params.gamma
        self._sigma, self._rms, self._largest = (
            limits[0] / params.gamma(),
            limits[1] ** 2 * centre.size,
            limits[2],
        )
        self._centre, self._deviation = centre.astype(np.float32), deviation
        self._scales: dict[float, Values] = {}
        self._passes = load_passes(centre.size)

    def find_fault(self, weights: Weights, epoch: int = 0) -> str | None:
        """Return why an update ``(p,)`` is rejected, or None; see `SpamFilter.find_fault`."""
        gamma = self._gamma(epoch)
        parts = self._scales.get(gamma)
        if parts is None:
            parts = self._scales[gamma] = self._compute_scales(gamma)
        square, is_beyond, lowest = self._sum_deviations(weights, parts)
        if lowest < -MAX_WEIGHT:
            return OUT_OF_RANGE
        if square > self._rms:
            return UPDATE_TOO_FAR
        return WEIGHT_TOO_FAR if is_beyond else None

    def _sum_deviations(self, weights: Weights, parts: Values) -> tuple[float, bool, int]:
        """Return the sum of squares, whether one deviation is too large, and the lowest weight."""
        if self._passes is not None:
            square, n_beyond, low = self._passes.sum_deviations(
                make_contiguous(weights), self._centre, parts, self._largest**2
            )
            return square, n_beyond > 0, low
        z = weights.astype(np.float32)
        z -= self._centre
        z *= parts
        # For few weights, argmin is three times as fast as min. einsum stays in one thread, unlike
        # a product of vectors.
        is_beyond = max(z[z.argmax()], -z[z.argmin()]) > self._largest
        return float(np.einsum("i,i->", z, z)), bool(is_beyond), int(weights[weights.argmin()])

    def _compute_scales(self, gamma: float) -> Values:
        """Return the factors of the deviations, for the noise at this learning rate."""
        pooled = float(np.einsum("i,i->", self._deviation, self._deviation)) / self._deviation.size
        if self._passes is not None:
            parts = np.empty(self._deviation.size, np.float32)
            self._passes.compute_scales(
                self._deviation,
                float(pool_variances(np.zeros(1), pooled, self._sigma * gamma)[0]),
                parts,
            )
            return parts
        return (
            1 / np.sqrt(pool_variances(self._deviation**2, pooled, self._sigma * gamma))
        ).astype(np.float32)
