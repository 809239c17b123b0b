"""Residual rounds and calibration of scores.

`SecureSumScript` calls this module. A residual round asks for the errors of the current model, cell
by cell, and moves its weights by the answer. Calibration estimates the scale of the score of the
tables, and the search estimates how much of the residual rounds' change to keep. Each fit sees a
noisy histogram and a prior; the prior has more weight if the noise is larger.

Scores and bins are computed with integers only: weights are in units of 2^-20, a score is a sum of
them, and a bin is found by comparison. So every machine counts the same. A change must keep that
one row is in one bin for any weights: the price relies on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shoal.protocols.pfds.fitting import sigmoid
from shoal.protocols.pfds.params import GRID, Floats, Ints, PFDSParams, PFDSRows
from shoal.protocols.pfds.tables import (
    PooledTables,
    centre_weights,
    compute_cell_variances,
    compute_intercepts,
    compute_log_odds,
    compute_means,
    compute_tempering,
    make_consistent,
    sum_by_feature,
)

ONE = 1 << 20
"""A weight of 1, in the units of the script state."""
MAX_WEIGHT = 1 << 19
"""Largest absolute value of a weight or intercept.

Log-odds of a thousandth of it already mean certainty.
"""
MIN_REACH, MAX_REACH = 1 << 6, 1 << 50
"""Bounds of the distance from 0 to the outermost bins, in units."""
N_BINS = 16
"""Number of bins of one score."""
N_SEARCH_BINS = 10
"""Number of bins of each of two scores."""


def to_units(values: Floats) -> Ints:
    """Return weights in units of the script state, clipped to its bounds."""
    return np.rint(np.clip(values, -MAX_WEIGHT, MAX_WEIGHT) * ONE).astype(np.int64)


def compute_reach(variance: float) -> int:
    """Return the distance from 0 to the outermost bins of a score, in units.

    It is four standard deviations; ``variance`` is the variance of the score.
    """
    return min(MAX_REACH, max(MIN_REACH, round(4 * math.sqrt(variance) * ONE)))


def compute_scores(weights: Ints, cells: Ints) -> Ints:
    """Return the sum of the weights of each row's cells, ``(n,)``, in units."""
    total: Ints = np.sum(weights[cells], axis=1)
    return total


def assign_bins(scored: Ints, reach: int, n_bins: int) -> Ints:
    """Return the bin of each score; bins have equal widths between -reach and reach.

    The outermost bins also contain all scores beyond them.

    Examples
    --------
    >>> assign_bins(np.array([-900, -1, 0, 49, 50, 10**15]), 100, 4).tolist()
    [0, 1, 2, 2, 3, 3]
    """
    edges = np.array([2 * reach * i // n_bins - reach for i in range(1, n_bins)], np.int64)
    return np.searchsorted(edges, scored, side="right")


def compute_bin_centres(reach: int, n_bins: int) -> Floats:
    """Return the score at the centre of each bin, as a float."""
    return (2 * np.arange(n_bins) + 1 - n_bins) / n_bins * (reach / ONE)


def count_histogram(binned: Ints, sides: Ints, n_bins: int) -> Ints:
    """Return the units that all rows add to the two sides of each bin, ``(2 n_bins,)``.

    Notes
    -----
    A row adds `GRID` units to one bin: the L1 and the L2 sensitivity are at most `GRID`.
    """
    # bincount adds floats, which are exact for sums below 2^53.
    both = [np.bincount(binned, sides[:, side], n_bins) for side in range(2)]
    return np.stack(both, axis=1).ravel().astype(np.int64)


_MOMENTUM = 0.5
_CURVATURE = 0.12
"""Average slope of the probability with respect to the score; for a number it is 1."""
_STEP_SMOOTHING = 2.0
"""Smoothing of a cell's step, in standard deviations of its noise."""
_MIN_CURVATURE = 1e-9
"""Smallest denominator of a cell's step: a cell without rows and noise does not move."""
_LOG_ODDS = np.array(
    [round(ONE * math.log((i + 0.5) / (GRID - 0.5 - i))) for i in range(GRID)], np.int64
)
"""Scores, in units, at which the nearest probability on the grid changes."""


def compute_clip(params: PFDSParams) -> int:
    """Return the largest residual of a row, in units of `GRID`."""
    return GRID // 4 if params.is_number else GRID // 2


def compute_residuals(params: PFDSParams, rows: PFDSRows, weights: Ints, intercept: int) -> Ints:
    """Return the residual of each row's second side, ``(n,)``, in units of `GRID`, clipped.

    Notes
    -----
    All values are integers: the nearest probability on the grid is found by comparing the score
    with 256 log-odds.
    """
    scored = compute_scores(weights, rows.cells) + intercept
    predicted = (
        (scored + ONE // GRID // 2) // (ONE // GRID)
        if params.is_number
        else np.searchsorted(_LOG_ODDS, scored, side="right")
    )
    clip = compute_clip(params)
    missed: Ints = np.clip(rows.sides[:, 1] - predicted, -clip, clip)
    return missed


def sum_residuals(params: PFDSParams, rows: PFDSRows, weights: Ints, intercept: int) -> Ints:
    """Return the sum of the residuals of the rows in each cell, ``(D,)``.

    Notes
    -----
    A row adds at most the clip, in absolute value, to one cell of each feature (`SignedCells`).
    """
    missed = compute_residuals(params, rows, weights, intercept).astype(np.float64)
    counted = np.zeros(params.n_cells)
    for of_feature in rows.cells.T:
        counted += np.bincount(of_feature, missed, params.n_cells)
    return counted.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Descent:
    """Weights of the additive model, and their last movement.

    Parameters
    ----------
    weight_velocity, intercept_velocity
        Last movement of weights and intercept, before multiplication by the step size.
    """

    weights: Floats
    intercept: float
    weight_velocity: Floats
    intercept_velocity: float = 0.0

    @classmethod
    def start(cls, weights: Floats, intercept: float) -> Descent:
        """Return a descent without movement."""
        return cls(weights, intercept, np.zeros_like(weights))

    def move(
        self, params: PFDSParams, step: float, gradient: Floats, deviation: float, shares: Floats
    ) -> Descent:
        """Return the descent after one round.

        Parameters
        ----------
        step
            Step size.
        gradient
            ``(D,)`` noisy sums of residuals, as shares of all rows.
        deviation
            Standard deviation of the noise on each entry of the gradient.
        shares
            ``(D,)`` shares of the rows in each cell.

        Notes
        -----
        Each feature gives an estimate of the total residual; it is noisier for a feature with more
        cells. The weighted mean of the estimates moves the intercept. The rest moves the weight of
        each cell by a Newton step with a diagonal curvature, smoothed for cells that are small
        compared with the noise.
        """
        curvature = 1.0 if params.is_number else _CURVATURE
        missed = math.fsum(compute_feature_weights(params) * sum_by_feature(params, gradient))
        steepest = (gradient - missed * shares) / np.maximum(
            curvature * shares + _STEP_SMOOTHING * deviation, _MIN_CURVATURE
        )
        weight_velocity = _MOMENTUM * self.weight_velocity + steepest
        intercept_velocity = _MOMENTUM * self.intercept_velocity + missed / curvature
        weights = np.clip(self.weights + step * weight_velocity, -MAX_WEIGHT, MAX_WEIGHT)
        return Descent(
            weights,
            float(np.clip(self.intercept + step * intercept_velocity, -MAX_WEIGHT, MAX_WEIGHT)),
            weight_velocity,
            intercept_velocity,
        )


def compute_feature_weights(params: PFDSParams) -> Floats:
    """Return weights of the features for a mean of their totals, ``(k,)``; they sum to 1.

    The noise of a feature's total grows with its number of cells.
    """
    precise = 1 / np.array(params.arities, np.float64)
    parts: Floats = precise / precise.sum()
    return parts


_MAX_SCALE, _MAX_KEPT_CHANGE = 1.5, 1.6
_MIN_SCALE = 0.05
"""Smallest scale that bins are computed for, so that a worthless score has bins too."""
_KEPT_CHANGE_PRIOR = 0.7
"""Prior of the share of the residual rounds' change to keep."""
_TABLE_PRIOR_PRECISION, _CALIBRATED_PRIOR_PRECISION = 5.0, 20.0
"""Precision of the prior of a coefficient, for a score of variance 1.

The first is for the score of the tables, the second for the score after its calibration.
"""
_PRECISION_PER_DEVIATION = 0.5
"""Increase of each precision for a standard deviation of 1 row."""
_MIN_BIN_DEVIATIONS = 5.0
"""Smallest number of rows of a bin of the search, in standard deviations of the noise.

Bins with fewer rows count as empty.
"""
_MAX_NEWTON_STEPS = 25
_STEP_TOLERANCE = 1e-4
"""Newton's method ends after a step in which no coefficient changes by more."""
_MIN_SLOPE = 1e-3
"""Smallest slope of the logistic function that a Newton step uses."""
_MIN_PRECISION = 1e-9


def fit_scores(
    features: Floats, counts: Floats, prior: Floats, precisions: Floats, is_number: bool
) -> Floats:
    """Return the best coefficient for each score, and an intercept, under a prior.

    Parameters
    ----------
    features
        ``(n_bins, c)`` the scores at the centre of each bin.
    counts
        ``(n_bins, 2)`` noisy rows on either side; negative counts are treated as 0.
    prior, precisions
        ``(c + 1,)`` mean and precision of the prior, the intercept last.
    is_number
        Whether the model of the second side is linear, not logistic.

    Notes
    -----
    The most probable coefficients under a Gaussian prior, by least squares or by Newton's method
    with steps of at most 1.

    Examples
    --------
    >>> rows = np.array([[73.0, 27.0], [50.0, 50.0], [27.0, 73.0]])
    >>> fit_scores(
    ...     np.array([[-1.0], [0.0], [1.0]]), rows, np.zeros(2), np.full(2, 1e-6), is_number=False
    ... ).round(2).tolist()
    [0.99, 0.0]
    """
    sides = np.maximum(counts, 0.0)
    rows, wanted = sides.sum(axis=1), sides[:, 1]
    design = np.column_stack([features, np.ones(len(features))])
    precisions = np.maximum(precisions, _MIN_PRECISION)
    if is_number:
        normal = (design * rows[:, None]).T @ design + np.diag(precisions)
        return np.clip(
            np.linalg.solve(normal, design.T @ wanted + precisions * prior), -MAX_WEIGHT, MAX_WEIGHT
        )
    coefficients = prior.astype(np.float64)
    for _ in range(_MAX_NEWTON_STEPS):
        chances = sigmoid(design @ coefficients)
        slope = design.T @ (rows * chances - wanted) + precisions * (coefficients - prior)
        curvature = rows * np.maximum(chances * (1 - chances), _MIN_SLOPE)
        step = np.linalg.solve(
            (design * curvature[:, None]).T @ design + np.diag(precisions), slope
        )
        longest = float(np.abs(step).max())
        coefficients = coefficients - step / max(1.0, longest)
        if longest < _STEP_TOLERANCE:
            break
    return np.clip(coefficients, -MAX_WEIGHT, MAX_WEIGHT)


def compute_score_variance(params: PFDSParams, weights: Floats, shares: Floats) -> float:
    """Return the variance of the score of centred weights ``(D,)``, for independent features."""
    return float(sum_by_feature(params, shares * weights**2).sum())


@dataclass(frozen=True, eq=False)
class TableScore:
    """Uncalibrated score of the tables alone.

    Parameters
    ----------
    weights, intercept
        ``(D,)`` the weight of each cell, 0 on average over the rows of each feature; and the score
        of an average row.
    shares, variances
        ``(D,)`` share of the rows in each cell, and variance of its weight due to noise.
    """

    params: PFDSParams
    weights: Floats
    intercept: float
    shares: Floats
    variances: Floats

    @classmethod
    def from_tables(cls, params: PFDSParams, tables: PooledTables) -> TableScore:
        """Return the score of the tables, in a study with one model."""
        cleaned = make_consistent(params, tables)
        weights = compute_log_odds(params, tables, cleaned)
        middle = compute_tempering(params) * compute_means(params, weights, cleaned.f).sum()
        return cls(
            params,
            centre_weights(params, weights, cleaned.f)[:, 0],
            float(compute_intercepts(params, cleaned)[0] + middle),
            cleaned.f,
            compute_cell_variances(params, tables, cleaned)[:, 0],
        )

    @property
    def score_variance(self) -> float:
        """Variance of the score."""
        return compute_score_variance(self.params, self.weights, self.shares)

    def calibrate(self, counts: Floats, deviation: float) -> CalibratedScore:
        """Return the score with a fitted scale and intercept.

        ``counts`` are noisy rows of each side in the bins of the score, ``(N_BINS, 2)``.

        Notes
        -----
        Correlated features are counted several times. Tempering guesses how often; calibration
        estimates it from the rows.
        """
        prior = np.array([compute_tempering(self.params), self.intercept])
        precisions = (
            np.array([_TABLE_PRIOR_PRECISION * self.score_variance, 1.0])
            + _PRECISION_PER_DEVIATION * deviation
        )
        features = compute_bin_centres(compute_reach(self.score_variance), N_BINS)[:, None]
        scale, intercept = fit_scores(
            features, counts, prior, precisions, self.params.is_number
        ).tolist()
        return CalibratedScore(self, min(_MAX_SCALE, max(0.0, scale)), intercept)


@dataclass(frozen=True, eq=False)
class CalibratedScore:
    """Calibrated score: the scale of the weights, and the intercept for it."""

    start: TableScore
    scale: float
    intercept: float

    @property
    def weights(self) -> Floats:
        """Weights of the cells, ``(D,)``."""
        return self.scale * self.start.weights

    @property
    def score_variance(self) -> float:
        """Variance of the score; at least a small part of the uncalibrated variance."""
        return max(self.scale, _MIN_SCALE) ** 2 * self.start.score_variance


@dataclass(frozen=True, eq=False)
class WeightChange:
    """Total change of the weights by the residual rounds.

    Parameters
    ----------
    before
        The score before the residual rounds.
    direction
        ``(D,)`` the change, 0 on average over the rows of each feature.
    intercept
        Intercept that belongs to the fully changed weights.
    """

    before: CalibratedScore
    direction: Floats
    intercept: float

    @classmethod
    def from_weights(
        cls, before: CalibratedScore, weights: Floats, intercept: float
    ) -> WeightChange:
        """Return the change from a calibrated score to these weights."""
        params, shares = before.start.params, before.start.shares
        moved = (weights - before.weights)[:, None]
        return cls(
            before,
            centre_weights(params, moved, shares)[:, 0],
            intercept + float(compute_means(params, moved, shares).sum()),
        )

    @property
    def score_variance(self) -> float:
        """Variance of the change of a score."""
        return compute_score_variance(
            self.before.start.params, self.direction, self.before.start.shares
        )

    def search(self, counts: Floats, deviation: float) -> tuple[Floats, float]:
        """Return the weights ``(D,)`` and the intercept that fit best.

        ``counts`` are noisy rows in the joint bins of both scores, ``(N_SEARCH_BINS^2, 2)``.

        Notes
        -----
        Most joint bins are empty, so bins with noise only are dropped first. Both sides of a bin
        are dropped or kept together, so that neither side is favoured.
        """
        variances = (self.before.score_variance, self.score_variance)
        before_centres, change_centres = (
            compute_bin_centres(compute_reach(variance), N_SEARCH_BINS) for variance in variances
        )
        features = np.column_stack(
            [np.repeat(before_centres, N_SEARCH_BINS), np.tile(change_centres, N_SEARCH_BINS)]
        )
        prior = np.array([1.0, _KEPT_CHANGE_PRIOR, self.intercept])
        precisions = (
            np.array([*(_CALIBRATED_PRIOR_PRECISION * variance for variance in variances), 1.0])
            + _PRECISION_PER_DEVIATION * deviation
        )
        kept_counts = counts * (
            counts.sum(axis=1, keepdims=True) >= _MIN_BIN_DEVIATIONS * deviation
        )
        *scales, intercept = fit_scores(
            features, kept_counts, prior, precisions, self.before.start.params.is_number
        ).tolist()
        kept, changed = (min(_MAX_KEPT_CHANGE, max(0.0, scale)) for scale in scales)
        return np.clip(
            kept * self.before.weights + changed * self.direction, -MAX_WEIGHT, MAX_WEIGHT
        ), intercept
