"""Rounds that ask what a model still gets wrong, cell by cell, and move its weights by the answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shoal.protocols.pfds.params import GRID, Floats, Ints, Params, Rows
from shoal.protocols.pfds.pooling import by_feature
from shoal.protocols.pfds.scoring import MOST, ONE, scores

_MOMENTUM = 0.5
_CURVATURE = 0.12
"""How a score moves a chance, on average over rows; of a number it is 1."""
_CAUTION = 2.0
"""A cell whose noise is as large as its rows moves that much less."""
_LEAST = 1e-9
_LOG_ODDS = np.array([round(ONE * math.log((i + 0.5) / (GRID - 0.5 - i))) for i in range(GRID)], np.int64)
"""Scores, in units, at which the chance that is nearest on the grid changes."""


def clip_of(params: Params) -> int:
    """Largest residual of a row, in units of `GRID`."""
    return GRID // 4 if params.is_number else GRID // 2


def residuals(params: Params, rows: Rows, weights: Ints, intercept: int) -> Ints:
    """What the model misses of each row's second side, ``(n,)``, in units of `GRID`, clipped.

    Notes
    -----
    Whole numbers throughout: the chance that is nearest on the grid is found by comparing the score with 256 log-odds.
    """
    scored = scores(weights, rows.cells) + intercept
    predicted = (scored + ONE // GRID // 2) // (ONE // GRID) if params.is_number else np.searchsorted(_LOG_ODDS, scored, side="right")
    clip = clip_of(params)
    missed: Ints = np.clip(rows.sides[:, 1] - predicted, -clip, clip)
    return missed


def count_residuals(params: Params, rows: Rows, weights: Ints, intercept: int) -> Ints:
    """The sum of the residuals of the rows in each cell, ``(D,)``.

    Notes
    -----
    A row adds at most the clip, in absolute value, to one cell of each feature (`SignedCells`).
    """
    missed = residuals(params, rows, weights, intercept).astype(np.float64)
    counted = np.zeros(params.n_cells)
    for of_feature in rows.cells.T:
        counted += np.bincount(of_feature, missed, params.n_cells)
    return counted.astype(np.int64)


@dataclass(frozen=True, eq=False)
class Descent:
    """Where the weights are, and where they are going.

    Parameters
    ----------
    weights, intercept
        Of the additive model.
    velocity, drift
        By how much they moved last, before the step size.
    """

    weights: Floats
    intercept: float
    velocity: Floats
    drift: float = 0.0

    @classmethod
    def start(cls, weights: Floats, intercept: float) -> Descent:
        """At rest."""
        return cls(weights, intercept, np.zeros_like(weights))

    def moved(self, params: Params, step: float, gradient: Floats, deviation: float, shares: Floats) -> Descent:
        """One round further.

        Parameters
        ----------
        step
            How far.
        gradient
            ``(D,)`` noisy sums of residuals, as shares of all rows.
        deviation
            Of the noise on each.
        shares
            ``(D,)`` shares of the rows in each cell.

        Notes
        -----
        All features say how much is missed in all; the more cells one has, the noisier it says so. That much is the intercept's, and the
        rest moves each cell's weight by a Newton step with a diagonal curvature, smoothed where noise is as large as the cell.
        """
        curvature = 1.0 if params.is_number else _CURVATURE
        missed = math.fsum(per_table(params) * by_feature(params, gradient))
        steepest = (gradient - missed * shares) / np.maximum(curvature * shares + _CAUTION * deviation, _LEAST)
        velocity = _MOMENTUM * self.velocity + steepest
        drift = _MOMENTUM * self.drift + missed / curvature
        weights = np.clip(self.weights + step * velocity, -MOST, MOST)
        return Descent(weights, float(np.clip(self.intercept + step * drift, -MOST, MOST)), velocity, drift)


def per_table(params: Params) -> Floats:
    """Weights of the features in a mean of what each says about all rows: its noise grows with its cells. ``(k,)``, 1 in all."""
    precise = 1 / np.array(params.arities, np.float64)
    parts: Floats = precise / precise.sum()
    return parts
