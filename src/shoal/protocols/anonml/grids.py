"""Public cut points of a number's range: candidates for a private quantile, and grids that need no answer at all.

Half of the points cut the range into equal widths, half grow like a logarithm from its lowest value, or from zero to both sides
where the range holds it: incomes and counts pile up there. The lowest value is always a cut point, since it is so often a
value of its own: no gain, never asked.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

N_CANDIDATES = 64
"""Equal widths, and as many growing ones, among which a quantile is sought."""
_DECADES = 1000.0


def candidate_edges(low: float, high: float) -> npt.NDArray[np.float64]:
    """The public cut points among which a private quantile is sought: rising, each at least ``low`` and below ``high``.

    Examples
    --------
    >>> edges = candidate_edges(0.0, 64.0)
    >>> float(edges[0]), bool((edges == 1.0).any()), edges.size
    (0.0, True, 127)
    """
    return grid_edges(low, high, N_CANDIDATES, N_CANDIDATES)


def grid_edges(low: float, high: float, n_equal: int, n_log: int) -> npt.NDArray[np.float64]:
    """A public grid of ``n_equal`` equal widths and ``n_log`` growing ones, with ``low`` itself: rising, below ``high``.

    Examples
    --------
    >>> grid_edges(0.0, 1000.0, 4, 2).round(1)
    array([  0. ,  30.6, 250. , 500. , 750. ])
    >>> grid_edges(-1000.0, 1000.0, 0, 4).round(1)
    array([-1000. ,   -30.6,     0. ,     4.6,    30.6,   177. ])
    """
    low, high = float(low), float(high)
    centre = 0.0 if n_log and low < 0 < high else low
    equal = low + (high - low) * (np.arange(1, n_equal) / max(n_equal, 1))
    above = centre + (high - centre) * _growing(n_log)
    below = centre - (centre - low) * _growing(n_log // 2)
    edges = np.concatenate(([low, centre], equal, above, below))
    return np.unique(edges[(edges >= low) & (edges < high)])


def _growing(n: int) -> npt.NDArray[np.float64]:
    """Points of (0, 1) that grow by a constant factor, once a thousandth is added to them."""
    return np.expm1(math.log1p(_DECADES) * np.arange(1, n) / max(n, 1)) / _DECADES
