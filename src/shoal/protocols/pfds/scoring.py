"""Scores of rows in public bins, in whole numbers from beginning to end.

Weights come in units of 2^-20, a score is a sum of them, and a bin is found by comparing. So every machine counts the same, and one row is
in one bin whatever the weights are.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.protocols.pfds.params import Floats, Ints

ONE = 1 << 20
"""A weight of 1, in the units in which everyone counts."""
MOST = 1 << 19
"""Largest weight or intercept, in absolute value; log-odds of a thousandth part of it are certainty already."""
LEAST_REACH, LONGEST_REACH = 1 << 6, 1 << 50
"""Bounds on how far bins go, in units."""
N_BINS = 16
"""Bins of one score."""
N_SEARCH_BINS = 10
"""Bins of each of two scores."""


def in_units(values: Floats) -> Ints:
    """Weights in the units of a course, kept in its bounds."""
    return np.rint(np.clip(values, -MOST, MOST) * ONE).astype(np.int64)


def reach_for(spread: float) -> int:
    """How far the bins of a score go on either side of 0, in units, where its variance is this: four deviations."""
    return min(LONGEST_REACH, max(LEAST_REACH, round(4 * math.sqrt(spread) * ONE)))


def scores(weights: Ints, cells: Ints) -> Ints:
    """The sum of the weights of each row's cells, ``(n,)``, in units."""
    total: Ints = np.sum(weights[cells], axis=1)
    return total


def bins(scored: Ints, reach: int, n_bins: int) -> Ints:
    """The bin of each score among equal ones between -reach and reach; those at the ends catch the rest.

    Examples
    --------
    >>> bins(np.array([-900, -1, 0, 49, 50, 10**15]), 100, 4).tolist()
    [0, 1, 2, 2, 3, 3]
    """
    edges = np.array([2 * reach * i // n_bins - reach for i in range(1, n_bins)], np.int64)
    return np.searchsorted(edges, scored, side="right")


def middles(reach: int, n_bins: int) -> Floats:
    """The score in the middle of each bin, as a plain number."""
    return (2 * np.arange(n_bins) + 1 - n_bins) / n_bins * (reach / ONE)


def histogram(binned: Ints, sides: Ints, n_bins: int) -> Ints:
    """What all rows add to the two sides of each bin, ``(2 n_bins,)``.

    Notes
    -----
    A row adds to one bin, `GRID` units in all: the L1 and the L2 sensitivity are at most that.
    """
    # Sums below 2^53 are exact in floats, which is how bincount adds.
    both = [np.bincount(binned, sides[:, side], n_bins) for side in range(2)]
    return np.stack(both, axis=1).ravel().astype(np.int64)
