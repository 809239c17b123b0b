"""How far scores can be trusted: from the tables' score to one whose scale is right, and how much of a change in it is.

Each fit sees a noisy histogram and leans on what was thought before, the more so the larger the noise is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shoal.protocols.pfds.fitting import sigmoid
from shoal.protocols.pfds.params import Floats, Params
from shoal.protocols.pfds.pooling import Tables, by_feature, cell_variances, centred, clean, intercepts, log_odds, means, tempering
from shoal.protocols.pfds.scoring import MOST, N_BINS, N_SEARCH_BINS, middles, reach_for

_MOST_SCALE, _MOST_CHANGE = 1.5, 1.6
_LEAST_SCALE = 0.05
"""A score that is worth nothing still has bins."""
_CHANGE = 0.7
"""How much of what the residuals changed is thought right, before it is searched."""
_FIRM, _FIRMER = 5.0, 20.0
"""Precision of what was thought of a coefficient, for a score of variance 1: of the tables' score, and after its calibration."""
_OF_NOISE = 0.5
"""Added to each precision for a standard deviation of 1 row."""
_SEEN = 5.0
"""Bins of the search with fewer rows than so many standard deviations of the noise on one count are taken to be empty."""
_MOST_STEPS = 25
_CLOSE_ENOUGH = 1e-4
_LEAST_CURVATURE = 1e-3
_LEAST_PRECISION = 1e-9


def fit(features: Floats, counts: Floats, prior: Floats, precisions: Floats, is_number: bool) -> Floats:
    """What weighs the scores best: a coefficient for each, and an intercept, that lean on what was thought before.

    Parameters
    ----------
    features
        ``(n_bins, c)`` the scores in the middle of each bin.
    counts
        ``(n_bins, 2)`` noisy rows on either side; what is below 0 counts for none.
    prior, precisions
        ``(c + 1,)`` what was thought, the intercept last, and how firmly.
    is_number
        Whether the second side is predicted by a line, and not by its log-odds.

    Notes
    -----
    The most probable coefficients under a Gaussian prior, by least squares or by Newton's method with steps of at most 1.

    Examples
    --------
    >>> rows = np.array([[73.0, 27.0], [50.0, 50.0], [27.0, 73.0]])
    >>> fit(np.array([[-1.0], [0.0], [1.0]]), rows, np.zeros(2), np.full(2, 1e-6), is_number=False).round(2).tolist()
    [0.99, 0.0]
    """
    sides = np.maximum(counts, 0.0)
    rows, wanted = sides.sum(axis=1), sides[:, 1]
    design = np.column_stack([features, np.ones(len(features))])
    firmness = np.maximum(precisions, _LEAST_PRECISION)
    if is_number:
        normal = (design * rows[:, None]).T @ design + np.diag(firmness)
        return np.clip(np.linalg.solve(normal, design.T @ wanted + firmness * prior), -MOST, MOST)
    found = prior.astype(np.float64)
    for _ in range(_MOST_STEPS):
        chances = sigmoid(design @ found)
        slope = design.T @ (rows * chances - wanted) + firmness * (found - prior)
        curvature = rows * np.maximum(chances * (1 - chances), _LEAST_CURVATURE)
        step = np.linalg.solve((design * curvature[:, None]).T @ design + np.diag(firmness), slope)
        longest = float(np.abs(step).max())
        found = found - step / max(1.0, longest)
        if longest < _CLOSE_ENOUGH:
            break
    return np.clip(found, -MOST, MOST)


def spread_of(params: Params, weights: Floats, shares: Floats) -> float:
    """Variance of the score of centred weights ``(D,)``, as if features were independent."""
    return float(by_feature(params, shares * weights**2).sum())


@dataclass(frozen=True, eq=False)
class Start:
    """What the tables alone say: the score to calibrate.

    Parameters
    ----------
    params
        The public figures of the study.
    weights, intercept
        ``(D,)`` what each cell says, 0 on average over the rows of each feature; and the score of a row that is like all others.
    shares, variances
        ``(D,)`` share of the rows in each cell, and how far noise may have moved its weight.
    """

    params: Params
    weights: Floats
    intercept: float
    shares: Floats
    variances: Floats

    @classmethod
    def of(cls, params: Params, tables: Tables) -> Start:
        """By the tables, of a study with one model."""
        cleaned = clean(params, tables)
        weights = log_odds(params, tables, cleaned)
        middle = tempering(params) * means(params, weights, cleaned.f).sum()
        return cls(
            params,
            centred(params, weights, cleaned.f)[:, 0],
            float(intercepts(params, cleaned)[0] + middle),
            cleaned.f,
            cell_variances(params, tables, cleaned)[:, 0],
        )

    @property
    def spread(self) -> float:
        """Variance of the score."""
        return spread_of(self.params, self.weights, self.shares)

    def calibrated(self, counts: Floats, deviation: float) -> Calibrated:
        """By how much to multiply the score, by noisy rows of each side in its bins, ``(N_BINS, 2)``.

        Notes
        -----
        Features that say the same were counted several times; what the tempering guesses, the rows themselves tell.
        """
        prior = np.array([tempering(self.params), self.intercept])
        precisions = np.array([_FIRM * self.spread, 1.0]) + _OF_NOISE * deviation
        features = middles(reach_for(self.spread), N_BINS)[:, None]
        scale, intercept = fit(features, counts, prior, precisions, self.params.is_number).tolist()
        return Calibrated(self, min(_MOST_SCALE, max(0.0, scale)), intercept)


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The same after the calibration: by how much the score is multiplied, and the intercept that goes with it."""

    start: Start
    scale: float
    intercept: float

    @property
    def weights(self) -> Floats:
        """``(D,)``."""
        return self.scale * self.start.weights

    @property
    def spread(self) -> float:
        """Variance of the score; at least a little of what it was."""
        return max(self.scale, _LEAST_SCALE) ** 2 * self.start.spread


@dataclass(frozen=True, eq=False)
class Change:
    """What the residuals have changed in the weights, all in all.

    Parameters
    ----------
    before
        What they were.
    direction
        ``(D,)`` the change, 0 on average over the rows of each feature.
    intercept
        Of weights that are changed by all of it.
    """

    before: Calibrated
    direction: Floats
    intercept: float

    @classmethod
    def to(cls, before: Calibrated, weights: Floats, intercept: float) -> Change:
        """From what was calibrated to these weights."""
        params, shares = before.start.params, before.start.shares
        moved = (weights - before.weights)[:, None]
        return cls(before, centred(params, moved, shares)[:, 0], intercept + float(means(params, moved, shares).sum()))

    @property
    def spread(self) -> float:
        """Variance of the change of a score."""
        return spread_of(self.before.start.params, self.direction, self.before.start.shares)

    def searched(self, counts: Floats, deviation: float) -> tuple[Floats, float]:
        """The weights ``(D,)`` and the intercept that fit best, by noisy rows in the joint bins of both scores, ``(N_SEARCH_BINS^2, 2)``.

        Notes
        -----
        Most joint bins are empty, and noise alone is left out first: both sides of a bin or none, so that neither is favoured.
        """
        spreads = (self.before.spread, self.spread)
        one, other = (middles(reach_for(spread), N_SEARCH_BINS) for spread in spreads)
        features = np.column_stack([np.repeat(one, N_SEARCH_BINS), np.tile(other, N_SEARCH_BINS)])
        prior = np.array([1.0, _CHANGE, self.intercept])
        precisions = np.array([*(_FIRMER * spread for spread in spreads), 1.0]) + _OF_NOISE * deviation
        seen = counts * (counts.sum(axis=1, keepdims=True) >= _SEEN * deviation)
        *scales, intercept = fit(features, seen, prior, precisions, self.before.start.params.is_number).tolist()
        kept, changed = (min(_MOST_CHANGE, max(0.0, scale)) for scale in scales)
        return np.clip(kept * self.before.weights + changed * self.direction, -MOST, MOST), intercept
