"""Counts of a tree made consistent: the nearest ones in which no node is negative and each is the sum of its children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.protocols.pfds.params import Floats, Ints


def project(parents: Sequence[Ints], counts: Sequence[npt.NDArray[Any]], weights: Sequence[float]) -> list[Floats]:
    """The x that minimises ``sum_i weights[i] * sum_j (x_ij - counts[i][j])^2``, where x is consistent and nowhere negative.

    Parameters
    ----------
    parents
        Of each level, where in the level above it a node's parent is; the first is not looked at. All nodes but leaves have children.
    counts
        The noisy counts of each level, from the top; the last are those of the leaves. Two levels at least.
    weights
        What a squared difference weighs in each level, positive; the paper's are one over the level's number of nodes.

    Notes
    -----
    Ref: PFDS §3.2.1, Algorithm 5, lines 3 to 5. Exact, but for rounding: no solver, no tolerance.

    Each node pays its children a price for a row more, the more so the further it and those above it are below their counts; a leaf exceeds
    its own count by its parent's price over twice the leaves' weight. As long as leaves may be negative, the prices solve linear equations:
    one pass up the tree and one down. A leaf that comes out negative is set to zero for good, and the prices are found again. Zero is more
    than it had, so the nodes above it hold more and no price rises: a leaf that was set to zero would be negative to the end, and that is
    all that the optimum asks for. (In matrices: the inverse of an ultrametric matrix is an M-matrix, for which Chandrasekaran's pivots
    never turn back.) With noise around small counts each round drops most of the leaves that are left, so that a million take about a dozen
    rounds and less than twice the work of the first.

    Examples
    --------
    >>> root, leaves = project([np.zeros(1, int), np.zeros(3, int)], [np.array([6]), np.array([4, 5, -2])], [1, 1])
    >>> root.tolist(), leaves.tolist()
    ([7.0], [3.0, 4.0, 0.0])
    """
    wanted, reach, inner = counts[-1].astype(np.float64), 0.5 / weights[-1], counts[:-1]
    above, leaves = parents[-1], wanted
    while True:
        n_leaves = np.bincount(above, minlength=len(inner[-1]))
        prices = _prices(parents, inner, weights, _sums(above, leaves, len(inner[-1])), reach * n_leaves.astype(np.float64))
        kept = leaves + reach * prices[above] >= 0
        if kept.all():
            break
        above, leaves = above[kept], leaves[kept]
    sizes = [np.maximum(wanted + reach * prices[parents[-1]], 0.0)]
    for below, level in zip(parents[:0:-1], inner[::-1], strict=True):
        sizes.append(_sums(below, sizes[-1], len(level)))
    return sizes[::-1]


def _prices(parents: Sequence[Ints], counts: Sequence[npt.NDArray[Any]], weights: Sequence[float], sums: Floats, slopes: Floats) -> Floats:
    """What each node of the last of these levels pays for a row more, where its children hold ``sums + slopes * price``.

    A node that is paid p and holds x pays q = p - 2 w (x - c), and x = sums + slopes * q: q = gain * (p + offer).
    """
    gains, offers = [], []
    for i in range(len(counts) - 1, -1, -1):
        gains.append(1 / (1 + 2 * weights[i] * slopes))
        offers.append(2 * weights[i] * (counts[i] - sums))
        if i:
            passed, n_above = slopes * gains[-1], len(counts[i - 1])
            sums, slopes = _sums(parents[i], sums + passed * offers[-1], n_above), _sums(parents[i], passed, n_above)
    prices = gains.pop() * offers.pop()
    for above in parents[1 : len(counts)]:
        prices = gains.pop() * (prices[above] + offers.pop())
    return prices


def _sums(parents: Ints, values: Floats, n: int) -> Floats:
    """The values of each parent's children, added up."""
    return np.asarray(np.bincount(parents, values, n), np.float64)
