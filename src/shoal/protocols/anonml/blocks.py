"""Blocks: what reports about several features at once add to the tables of each one, and how far two features say the same thing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.protocols.anonml.evidence import N_LEVELS, Blocks, Counts, Floats, within

# Correlations of noisy scores are uncertain: none is taken to be complete, and no combination of scores to be nearly constant.
_MAX_CORRELATION = 0.97
_MIN_EIGENVALUE = 0.05
_RIDGE = 0.05
_MIN_SPREAD = 1e-4
_SILENT = 1e-6


def cut_levels(values: Floats, weights: Floats, n_levels: int = N_LEVELS) -> Counts:
    """Level of each value: weighted one-dimensional k-means, exact, by dynamic programming over the sorted values.

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


def merged_table(blocks: Blocks, feature: int) -> tuple[Floats, Floats, Floats]:
    """Which bins are in each level ``(G, B)``, and the shares of (level, label) cells with their variances, ``(G, 2)`` each.

    Notes
    -----
    A report keeps the truth with chance p - q and is uniform otherwise, so what it says of one feature and the label is too.
    """
    levels, n = blocks.levels[feature], int(blocks.n_singles[feature])
    G = int(levels.max()) + 1
    kept = float(blocks.mechanism.p - blocks.mechanism.q)
    seen = blocks.singles[feature, :G] / n
    shares = (seen - (1 - kept) / (2 * N_LEVELS)) / kept
    chances = within(seen, n)
    return (levels == np.arange(G)[:, None]).astype(np.float64), shares, chances * (1 - chances) / (n * kept**2)


def factors(blocks: Blocks, scores: Sequence[Floats], shares: Sequence[Floats], leanings: Sequence[Floats]) -> Floats:
    """By how much to multiply each feature's score, since features that say the same thing count twice in a sum; ``(J,)``.

    Notes
    -----
    The linear regression of the label on the scores, by shrunk correlations from the blocks, half-way to the plain sum.
    All of the way is unsafe: correlations of noisy scores are uncertain. E g (y - pi) is pi (1 - pi) M.(g delta); the factor cancels.
    """
    J = len(scores)
    centred = [g - M @ g for g, M in zip(scores, shares, strict=True)]
    variance = np.array([M @ g**2 for g, M in zip(centred, shares, strict=True)])
    covariance = np.array([M @ (g * delta) for g, M, delta in zip(centred, shares, leanings, strict=True)])
    active = np.flatnonzero(variance > _SILENT)
    if active.size < 2:
        return np.ones(J)
    R = _correlations(blocks, centred, shares)[np.ix_(active, active)]
    eigenvalues, U = np.linalg.eigh(R)
    R = (U * np.maximum(eigenvalues, _MIN_EIGENVALUE)) @ U.T
    scale = np.sqrt(variance[active])
    w = np.maximum(np.linalg.solve((R + _RIDGE * np.eye(active.size)) * np.outer(scale, scale), covariance[active]), 0.0)
    weights = np.ones(J)
    if w.any():
        weights[active] = (w / w.mean() + 1) / 2
    return weights


def _correlations(blocks: Blocks, scores: Sequence[Floats], shares: Sequence[Floats]) -> Floats:
    """Correlations of the features' scores, each level standing for its bins; shrunk by what they are uncertain."""
    J, kept = len(scores), float(blocks.mechanism.p - blocks.mechanism.q)
    G = np.arange(N_LEVELS)[:, None]
    mass = np.array([(levels == G) @ M for levels, M in zip(blocks.levels, shares, strict=True)])
    value = np.array([(levels == G) @ (M * g) for levels, M, g in zip(blocks.levels, shares, scores, strict=True)]) / np.maximum(mass, 1e-9)
    i, j = np.triu_indices(J, 1)
    product = value[i][:, :, None] * value[j][:, None, :]
    n = np.maximum(blocks.n_pairs, 1)
    mean = (product * blocks.pairs).sum((1, 2)) / n
    error2 = np.maximum((product**2 * blocks.pairs).sum((1, 2)) / n - mean**2, 0.0) / n / kept**2
    covariance = (mean - (1 - kept) * value.mean(1)[i] * value.mean(1)[j]) / kept
    variance = np.maximum((mass * value**2).sum(1), 1e-9)
    scale = variance[i] * variance[j]
    rho, error2 = covariance / np.sqrt(scale), error2 / scale
    usable = (blocks.n_pairs > 1) & (variance[i] > _SILENT) & (variance[j] > _SILENT)
    spread = max(_MIN_SPREAD, float((rho**2 - error2)[usable].mean())) if usable.any() else _MIN_SPREAD
    R = np.eye(J)
    R[i, j] = R[j, i] = np.where(usable, np.clip(rho * spread / (spread + error2), -_MAX_CORRELATION, _MAX_CORRELATION), 0.0)
    return R
