"""What pooled, noisy tables say: consistent shares, the weight of each cell, and how far noise may have moved it.

The constants were chosen by accuracy on the development halves of Adult, Bank Marketing, Bike Sharing and Retinopathy; they are the same
for all data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from shoal.protocols.pfds.model import Model
from shoal.protocols.pfds.params import Floats, Params

UNKNOWN = 1e6
"""The variance of the fractions of a table that nobody has answered: so large that it says nothing."""
_RAREST = 0.02
"""Smallest share of a class: a smaller one is mostly noise."""
_SAMPLING = 0.2
"""How much the label's share varies among the rows of a table, beside the noise on it: about p (1 - p)."""
_SMOOTHING = 2.0
"""What is added to a cell's share in its log-odds, in standard deviations of its noise."""
_LEAST = 1e-4
"""The same without any noise."""


@dataclass(frozen=True, eq=False)
class Tables:
    """The tables of all attributes and the label, summed over holders, with noise.

    Parameters
    ----------
    sums
        ``(D, n_sides)`` in rows.
    totals
        ``(k,)`` rows in each table; at least 1.
    variances
        ``(k,)`` variance of the noise on a cell of each table, divided by its total; `UNKNOWN` where nobody has answered.
    """

    sums: Floats
    totals: Floats
    variances: Floats

    @classmethod
    def of(cls, params: Params, sums: Floats, noise: Floats) -> Tables:
        """Tables whose totals are those of their noisy cells; ``noise`` is the variance on a cell of each, in rows, ``(k,)``."""
        totals = np.maximum(by_feature(params, sums.sum(axis=1)), 1.0)
        return cls(sums, totals, noise / totals**2)


@dataclass(frozen=True, eq=False)
class Shares:
    """Tables made consistent: no share is negative, and every table has the same classes.

    Parameters
    ----------
    p
        ``(M,)`` share of the class that each model is for; of a number, its mean in [0, 1].
    f
        ``(D,)`` share of the rows in each cell.
    t
        ``(D, M)`` share of the rows in each cell and of the class.
    """

    p: Floats
    f: Floats
    t: Floats


def by_feature(params: Params, values: Floats) -> Floats:
    """Sums over the cells of each feature, ``(k, ...)``."""
    sums: Floats = np.add.reduceat(values, params.starts[:-1], axis=0)
    return sums


def to_cells(params: Params, values: Floats) -> Floats:
    """What belongs to each feature, repeated for each of its cells, ``(D, ...)``."""
    return np.repeat(values, params.arities, axis=0)


def tempering(params: Params) -> float:
    """b0, by which log-odds that are summed over attributes are multiplied: correlated attributes would be counted several times."""
    return min(0.6, 1.5 / math.sqrt(len(params.arities)))


def projected(values: Floats, total: float) -> Floats:
    """The closest point without negative coordinates that adds up to a positive total.

    Examples
    --------
    >>> projected(np.array([0.5, 0.25, -0.5]), 1.0)
    array([0.625, 0.375, 0.   ])
    """
    # The point is the same for values that are all moved alike; from the largest one, none is lost beside it.
    values = values - values.max()
    falling = np.sort(values)[::-1]
    excess = np.cumsum(falling) - total
    n = np.arange(1, len(values) + 1)
    last = np.flatnonzero(falling * n > excess)[-1]
    point: Floats = np.maximum(values - excess[last] / n[last], 0.0)
    return point


def clean(params: Params, tables: Tables) -> Shares:
    """Shares of the classes by all tables together, and each table's closest shares that agree with them.

    Notes
    -----
    A table tells the classes the better, the fewer its noisy cells are and the more rows it has.
    """
    fractions = tables.sums / to_cells(params, tables.totals)[:, np.newaxis]
    weights = 1 / (np.array(params.arities) * tables.variances + _SAMPLING / tables.totals)
    classes = weights @ by_feature(params, fractions)
    rarest = min(_RAREST, 0.5 / params.n_sides)
    p = np.clip(classes / max(classes.sum(), weights.sum() * 1e-9), rarest, 1 - rarest)
    p /= p.sum()
    sides = np.empty_like(fractions)
    for start, end in zip(params.starts[:-1], params.starts[1:], strict=True):
        for side in range(params.n_sides):
            sides[start:end, side] = projected(fractions[start:end, side], p[side])
    f = sides.sum(axis=1)
    return Shares(p[1:], f, sides[:, 1:]) if params.n_models == 1 else Shares(p, f, sides)


def log_odds(params: Params, tables: Tables, shares: Shares) -> Floats:
    """What each cell says about each model's class, ``(D, M)``: smoothed log-odds; of a number, how far its mean there is from p.

    Notes
    -----
    A cell's share is smoothed by two standard deviations of its noise, so that cells without rows say nothing.
    """
    s = _SMOOTHING * _deviations(params, tables) + _LEAST
    p, f, t = shares.p, shares.f[:, np.newaxis], shares.t
    if params.is_number:
        return centred(params, (t - p * f) / (f + s), shares.f)
    weights: Floats = np.log((t / p + s) / (np.maximum(f - t, 0) / (1 - p) + s))
    return weights


def means(params: Params, weights: Floats, f: Floats) -> Floats:
    """Mean of the weights ``(D, M)`` of each feature over the rows, ``(k, M)``."""
    return by_feature(params, f[:, np.newaxis] * weights) / by_feature(params, f)[:, np.newaxis]


def centred(params: Params, weights: Floats, f: Floats) -> Floats:
    """The weights ``(D, M)`` less the mean of each feature."""
    return weights - to_cells(params, means(params, weights, f))


def cell_variances(params: Params, tables: Tables, shares: Shares) -> Floats:
    """How far noise may have moved what a cell says, as a variance, ``(D, M)``: at most 2."""
    deviations = _deviations(params, tables)
    s = deviations + _LEAST
    f, t = shares.f[:, np.newaxis], shares.t
    if params.is_number:
        return (deviations / (f + s)) ** 2
    moved: Floats = (deviations / (t + s)) ** 2 + (deviations / (np.maximum(f - t, 0) + s)) ** 2
    return moved


def intercepts(params: Params, shares: Shares) -> Floats:
    """The scores of a row of which nothing is known, ``(M,)``."""
    return shares.p if params.is_number else np.log(shares.p / (1 - shares.p))


def tempered(params: Params, tables: Tables) -> Model:
    """The model that tables alone give: tempered naive Bayes, or its like for a number."""
    shares = clean(params, tables)
    weights = tempering(params) * log_odds(params, tables, shares)
    return Model(params, weights, intercepts(params, shares), cell_variances(params, tables, shares), shares.f)


def _deviations(params: Params, tables: Tables) -> Floats:
    """Standard deviation of the noise on the fractions, ``(D, 1)``."""
    return to_cells(params, np.sqrt(tables.variances))[:, np.newaxis]
