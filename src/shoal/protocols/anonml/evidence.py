"""What the aggregator has counted, and what the counts say: estimates with their variances, about one feature or about blocks of them.

A table counts (bin, label) cells. A bit says on which of two sides a peer's value lies, or whether that side agrees with its label.
All counts are of randomised answers; nothing here is private.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.mechanisms.reports import FrequencyMechanism
from shoal.mechanisms.response import RandomResponse

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

N_LEVELS = 3
"""Levels that a block question tells apart in each of its features."""


def within(shares: Floats, n: int) -> Floats:
    """Shares as they may well be: after n reports none is known to differ from 0 or 1 by less than half a report."""
    return np.clip(shares, 0.5 / n, 1 - 0.5 / n)


@dataclass(frozen=True)
class Shape:
    """The bins of a feature.

    Parameters
    ----------
    n_bins
        How many, the one for missing values included; it is the last.
    is_ordered
        Whether neighbouring bins are alike: bins of a number, not categories.
    has_missing
        Whether the last bin is that of missing values.
    """

    n_bins: int
    is_ordered: bool
    has_missing: bool


@dataclass(frozen=True)
class Table:
    """Noisy counts of the cells (bin, label) of one feature; cell = bin * L + label.

    Parameters
    ----------
    counts
        How many reports support each cell, ``(B * L,)``.
    n
        Number of reports.
    mechanism
        How they were randomised.

    Examples
    --------
    >>> table = Table(np.array([40, 20, 20, 20]), 100, RandomResponse(2.0, 4))
    >>> shares, variances = table.estimate(2)
    >>> shares.round(2)
    array([[0.49, 0.17],
           [0.17, 0.17]])
    """

    counts: Counts
    n: int
    mechanism: FrequencyMechanism

    def estimate(self, n_labels: int) -> tuple[Floats, Floats]:
        """Shares of the cells and their variances, sampling included, each ``(B, L)``; they need at least one report.

        Notes
        -----
        A report supports a cell with chance P = q + f (p - q), so the variance is P (1 - P) / (n (p - q)^2).
        """
        q, spread = float(self.mechanism.q), float(self.mechanism.p - self.mechanism.q)
        shares = (self.counts / self.n - q) / spread
        chances = q + within(shares, self.n) * spread
        variances = chances * (1 - chances) / (self.n * spread**2)
        return shares.reshape(-1, n_labels), variances.reshape(-1, n_labels)


@dataclass(frozen=True)
class Bit:
    """Noisy count of those who said yes, v = +1; the others are v = -1.

    Examples
    --------
    >>> answers = Bit(60, 100, RandomResponse(2.0, 2))
    >>> round(answers.mean, 3), round(answers.variance, 3)
    (0.263, 0.017)
    """

    yes: int
    n: int
    mechanism: RandomResponse

    @property
    def mean(self) -> float:
        """Estimate of E v; it needs at least one report."""
        return (2 * self.yes / self.n - 1) / float(self.mechanism.p - self.mechanism.q)

    @property
    def variance(self) -> float:
        """Its variance, sampling included, at most."""
        return 1 / (float(self.mechanism.p - self.mechanism.q) ** 2 * self.n)


@dataclass(frozen=True)
class Evidence:
    """All that is known of one feature: a table, or bits about two sides of it.

    Parameters
    ----------
    shape
        The feature's bins. A bit puts bin 1 on the high side and all others, the missing ones too, on the low side.
    table
        Counts of (bin, label) cells, in table mode.
    side
        Yes is the high side, in bit mode.
    agree
        Yes if the side (high or low) agrees with the label (1 or 0), in bit mode.
    n_placed
        How many peers placed the cut at the median; 0 if nobody did.
    is_lowest
        Whether the cut is the lowest value, or the feature a category: nothing is then known of the sides' shares beforehand.
    """

    shape: Shape
    table: Table | None = None
    side: Bit | None = None
    agree: Bit | None = None
    n_placed: int = 0
    is_lowest: bool = False


@dataclass(frozen=True)
class Blocks:
    """Noisy counts of block answers, folded into tables of one feature and the label and of two features.

    Parameters
    ----------
    levels
        Level of each bin, for every feature.
    singles
        Reports by level and label, ``(J, G, 2)``.
    n_singles
        How many reports are about each feature, ``(J,)``.
    pairs
        Reports by the two levels of features i < j, ``(J (J - 1) / 2, G, G)``, pairs in lexicographic order.
    n_pairs
        How many reports are about each pair.
    mechanism
        Random response over the 2 G^k cells of a block of k features.
    """

    levels: tuple[Counts, ...]
    singles: Counts
    n_singles: Counts
    pairs: Counts
    n_pairs: Counts
    mechanism: RandomResponse
