"""Noisy counts as estimates with variances, for single features and blocks.

The learning step of variant ``plus`` (``posterior``) reads them. A table counts (bin, label) cells.
A bit says on which of two sides a peer's value lies, or whether that side agrees with its label. A
block answer is about several features: it adds to the table of each one, and shows how strongly two
features are correlated. All counts are of randomised answers; nothing here is private.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.mechanisms.frequency_oracle import FrequencyOracle
from shoal.mechanisms.randomized_response import RandomizedResponse

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

N_LEVELS = 3
"""Levels that a block question distinguishes in each of its features."""


def clip_shares(shares: Floats, n: int) -> Floats:
    """Clip shares to the plausible range.

    After n reports, no share is known to differ from 0 or 1 by less than half a report.
    """
    return np.clip(shares, 0.5 / n, 1 - 0.5 / n)


@dataclass(frozen=True)
class FeatureBins:
    """The bins of a feature.

    Parameters
    ----------
    n_bins
        Number of bins, including the one for missing values, which is the last.
    is_ordered
        Whether neighbouring bins are similar: bins of a number, not categories.
    has_missing
        Whether the last bin is that of missing values.
    """

    n_bins: int
    is_ordered: bool
    has_missing: bool


@dataclass(frozen=True)
class NoisyLabelTable:
    """Noisy counts of the cells (bin, label) of one feature; cell = bin * L + label.

    Parameters
    ----------
    counts
        Number of reports that support each cell, ``(B * L,)``.
    n
        Number of reports.

    Examples
    --------
    >>> table = NoisyLabelTable(np.array([40, 20, 20, 20]), 100, RandomizedResponse(2.0, 4))
    >>> shares, variances = table.estimate(2)
    >>> shares.round(2)
    array([[0.49, 0.17],
           [0.17, 0.17]])
    """

    counts: Counts
    n: int
    mechanism: FrequencyOracle

    def estimate(self, n_labels: int) -> tuple[Floats, Floats]:
        """Return the shares of the cells and their variances, each ``(B, L)``.

        Variances include sampling. There must be at least one report.

        Notes
        -----
        A report supports a cell with probability P = q + f (p - q), so the variance is P (1 - P) /
        (n (p - q)^2).
        """
        q, signal = float(self.mechanism.q), float(self.mechanism.p - self.mechanism.q)
        shares = (self.counts / self.n - q) / signal
        chances = q + clip_shares(shares, self.n) * signal
        variances = chances * (1 - chances) / (self.n * signal**2)
        return shares.reshape(-1, n_labels), variances.reshape(-1, n_labels)


@dataclass(frozen=True)
class NoisyBit:
    """Noisy count of the answers yes, v = +1; the others are v = -1.

    Examples
    --------
    >>> answers = NoisyBit(60, 100, RandomizedResponse(2.0, 2))
    >>> round(answers.mean, 3), round(answers.variance, 3)
    (0.263, 0.017)
    """

    yes: int
    n: int
    mechanism: RandomizedResponse

    @property
    def mean(self) -> float:
        """Estimate of E v; it needs at least one report."""
        return (2 * self.yes / self.n - 1) / float(self.mechanism.p - self.mechanism.q)

    @property
    def variance(self) -> float:
        """Upper bound of its variance, sampling included."""
        return 1 / (float(self.mechanism.p - self.mechanism.q) ** 2 * self.n)


@dataclass(frozen=True)
class FeatureEvidence:
    """All counts about one feature: a table, or bits about two sides of it.

    Parameters
    ----------
    shape
        The feature's bins. In bit mode, bin 1 is the high side; all other bins, including the
        missing one, are the low side.
    table
        Counts of (bin, label) cells, in table mode.
    side
        Yes is the high side, in bit mode.
    agree
        Yes if the side (high or low) agrees with the label (1 or 0), in bit mode.
    n_placed
        Number of peers that placed the cut at the median; 0 if none did.
    is_lowest
        Whether the cut is the lowest value, or the feature a category: then nothing is known in
        advance about the shares of the sides.
    """

    shape: FeatureBins
    table: NoisyLabelTable | None = None
    side: NoisyBit | None = None
    agree: NoisyBit | None = None
    n_placed: int = 0
    is_lowest: bool = False


@dataclass(frozen=True)
class BlockCounts:
    """Noisy counts of block answers.

    They are summed into tables of one feature and the label, and tables of two features.

    Parameters
    ----------
    levels
        Level of each bin, for every feature.
    singles
        Reports by level and label, ``(J, G, 2)``.
    n_singles
        Number of reports about each feature, ``(J,)``.
    pairs
        Reports by the two levels of features i < j, ``(J (J - 1) / 2, G, G)``, pairs in
        lexicographic order.
    n_pairs
        Number of reports about each pair.
    mechanism
        Randomised response over the 2 G^k cells of a block of k features.
    """

    levels: tuple[Counts, ...]
    singles: Counts
    n_singles: Counts
    pairs: Counts
    n_pairs: Counts
    mechanism: RandomizedResponse


# Correlations of noisy scores are uncertain: limit each of them, and the eigenvalues of their
# matrix.
_MAX_CORRELATION = 0.97
_MIN_EIGENVALUE = 0.05
_RIDGE = 0.05
_MIN_PRIOR_VARIANCE = 1e-4
"""Smallest mean squared correlation; estimates shrink towards 0 in proportion to it."""
_MIN_SCORE_VARIANCE = 1e-6
"""Features with a smaller variance of the score have no correlations."""


def cut_levels(values: Floats, weights: Floats, n_levels: int = N_LEVELS) -> Counts:
    """Return the level of each value, by weighted one-dimensional k-means.

    The result is exact, by dynamic programming over the sorted values.

    Examples
    --------
    >>> cut_levels(np.array([0.1, 3.0, 0.2, -5.0]), np.ones(4))
    array([1, 2, 1, 0])
    """
    order = np.argsort(values, kind="stable")
    distinct = np.unique(values.round(6)).size
    x, w = values[order], weights[order] + 1e-9
    W, WX, WXX = (np.concatenate(([0.0], np.cumsum(part))) for part in (w, w * x, w * x * x))
    mass = np.maximum(W - W[:, None], 1e-12)
    scatter = (WXX - WXX[:, None]) - (WX - WX[:, None]) ** 2 / mass
    # cost[i, j]: one level of the values i to j - 1.
    cost = np.where(np.arange(W.size)[:, None] < np.arange(W.size), scatter, np.inf)
    best, starts = cost[0], []
    for _ in range(min(n_levels, distinct) - 1):
        through = best[:, None] + cost
        starts.append(through.argmin(0))
        best = through.min(0)
    levels, end = np.zeros(x.size, np.int64), x.size
    for start in reversed(starts):
        end = int(start[end])
        levels[order[end:]] += 1
    return levels


def estimate_level_table(blocks: BlockCounts, feature: int) -> tuple[Floats, Floats, Floats]:
    """Return the bins in each level, and shares of (level, label) cells with variances.

    The shapes are ``(G, B)``, ``(G, 2)`` and ``(G, 2)``.

    Notes
    -----
    A report is true with probability p - q and uniform otherwise, and so is its part about one
    feature and the label.
    """
    levels, n = blocks.levels[feature], int(blocks.n_singles[feature])
    G = int(levels.max()) + 1
    kept = float(blocks.mechanism.p - blocks.mechanism.q)
    reported = blocks.singles[feature, :G] / n
    shares = (reported - (1 - kept) / (2 * N_LEVELS)) / kept
    chances = clip_shares(reported, n)
    return (
        (levels == np.arange(G)[:, None]).astype(np.float64),
        shares,
        chances * (1 - chances) / (n * kept**2),
    )


def compute_score_factors(
    blocks: BlockCounts,
    scores: Sequence[Floats],
    shares: Sequence[Floats],
    associations: Sequence[Floats],
) -> Floats:
    """Return the factor of each feature's score, ``(J,)``.

    Without it, features with the same information would count twice in a sum.

    Notes
    -----
    The linear regression of the label on the scores, by shrunk correlations from the blocks,
    half-way to the plain sum. The full regression is unsafe: correlations of noisy scores are
    uncertain. E g (y - pi) is pi (1 - pi) M.(g delta); the factor cancels.
    """
    J = len(scores)
    centred = [g - M @ g for g, M in zip(scores, shares, strict=True)]
    variance = np.array([M @ g**2 for g, M in zip(centred, shares, strict=True)])
    covariance = np.array(
        [M @ (g * delta) for g, M, delta in zip(centred, shares, associations, strict=True)]
    )
    active = np.flatnonzero(variance > _MIN_SCORE_VARIANCE)
    if active.size < 2:
        return np.ones(J)
    R = _estimate_correlations(blocks, centred, shares)[np.ix_(active, active)]
    eigenvalues, U = np.linalg.eigh(R)
    R = (U * np.maximum(eigenvalues, _MIN_EIGENVALUE)) @ U.T
    scale = np.sqrt(variance[active])
    w = np.maximum(
        np.linalg.solve(
            (R + _RIDGE * np.eye(active.size)) * np.outer(scale, scale), covariance[active]
        ),
        0.0,
    )
    weights = np.ones(J)
    if w.any():
        weights[active] = (w / w.mean() + 1) / 2
    return weights


def _estimate_correlations(
    blocks: BlockCounts, scores: Sequence[Floats], shares: Sequence[Floats]
) -> Floats:
    """Return the correlations of the features' scores, shrunk according to their uncertainty.

    Each level represents its bins.
    """
    J, kept = len(scores), float(blocks.mechanism.p - blocks.mechanism.q)
    G = np.arange(N_LEVELS)[:, None]
    mass = np.array([(levels == G) @ M for levels, M in zip(blocks.levels, shares, strict=True)])
    value = np.array(
        [
            (levels == G) @ (M * g)
            for levels, M, g in zip(blocks.levels, shares, scores, strict=True)
        ]
    ) / np.maximum(mass, 1e-9)
    i, j = np.triu_indices(J, 1)
    product = value[i][:, :, None] * value[j][:, None, :]
    n = np.maximum(blocks.n_pairs, 1)
    mean = (product * blocks.pairs).sum((1, 2)) / n
    error2 = np.maximum((product**2 * blocks.pairs).sum((1, 2)) / n - mean**2, 0.0) / n / kept**2
    covariance = (mean - (1 - kept) * value.mean(1)[i] * value.mean(1)[j]) / kept
    variance = np.maximum((mass * value**2).sum(1), 1e-9)
    scale = variance[i] * variance[j]
    rho, error2 = covariance / np.sqrt(scale), error2 / scale
    usable = (
        (blocks.n_pairs > 1)
        & (variance[i] > _MIN_SCORE_VARIANCE)
        & (variance[j] > _MIN_SCORE_VARIANCE)
    )
    prior_variance = (
        max(_MIN_PRIOR_VARIANCE, float((rho**2 - error2)[usable].mean()))
        if usable.any()
        else _MIN_PRIOR_VARIANCE
    )
    R = np.eye(J)
    R[i, j] = R[j, i] = np.where(
        usable,
        np.clip(
            rho * prior_variance / (prior_variance + error2), -_MAX_CORRELATION, _MAX_CORRELATION
        ),
        0.0,
    )
    return R
