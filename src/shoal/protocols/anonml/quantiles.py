"""Private quantiles and medians from one-bit answers; public grids.

`QuantileSearch` (variant ``plus``) is probabilistic bisection: each batch of peers is asked whether
their number lies above the median of a probability distribution over public cut points. Their noisy
count makes one side more likely, according to its reliability, and the next batch is asked about
the new median.

`MedianSearch` (variant ``paper``) is a binary search in which each peer answers once, with one
randomised bit.

The public cut points of a range are the candidates of a private quantile, or a grid that needs no
answers. Half of them divide the range into equal widths. The other half grow like a logarithm from
its lowest value, or from zero to both sides if the range contains it, because incomes and counts
are concentrated there. The lowest value is always a cut point, because it often has a meaning
different from all others: no gain, never asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from shoal.mechanisms.randomized_response import RandomizedResponse

N_BISECTION_BATCHES = 12
"""Number of batches of a quantile's peers."""
# Limit of the belief in one batch, so that later batches can correct a misleading one.
_MAX_PROBABILITY = 0.97
_NORMAL = NormalDist()


@dataclass(frozen=True)
class QuantileSearch:
    """The distribution of a quantile over candidate cut points.

    Parameters
    ----------
    edges
        Rising candidate cut points, ``(G,)``.
    posterior
        The probability of each of them, ``(G,)``.
    target
        The share of peers at or below the quantile: 0.5 for a median.

    Notes
    -----
    Ref: AnonML Algorithm 1, with steps of fixed length replaced; errata A-02 and A-03.

    Examples
    --------
    >>> search = QuantileSearch.begin(np.array([0.0, 1.0, 2.0, 3.0]), 0.5)
    >>> bit = RandomizedResponse(2.0, 2)
    >>> search.point, search.update(70, 100, bit).point
    (1.0, 2.0)
    """

    edges: npt.NDArray[np.float64]
    posterior: npt.NDArray[np.float64]
    target: float

    @classmethod
    def begin(cls, edges: npt.NDArray[np.float64], target: float) -> QuantileSearch:
        """Return the search with equal probabilities."""
        return cls(edges, np.full(edges.size, 1 / edges.size), target)

    @property
    def point(self) -> float:
        """The cut point to ask about now, and in the end the result: the distribution's median.

        A question at one cut point does not distinguish it from the one below. So if a value is so
        frequent that the quantile lies on it, the result may be the cut point above it.
        """
        middle = int(np.searchsorted(np.cumsum(self.posterior), 0.5))
        return float(self.edges[min(middle, self.edges.size - 1)])

    def update(self, yes: int, n: int, mechanism: RandomizedResponse) -> QuantileSearch:
        """Return the search after a batch of n peers.

        ``yes`` is the number of their randomised answers that claim a number above `point`.
        """
        if n == 0:
            return self
        t = float(mechanism.p - mechanism.q)
        above = (yes / n - float(mechanism.q)) / t
        deviation = 1 / (2 * t * n**0.5)
        sure = min(
            max(_NORMAL.cdf((above - (1 - self.target)) / deviation), 1 - _MAX_PROBABILITY),
            _MAX_PROBABILITY,
        )
        belief = self.posterior * np.where(self.edges > self.point, sure, 1 - sure)
        return replace(self, posterior=belief / belief.sum())


N_MEDIAN_BATCHES = 15
"""Batches of peers, asked one after the other; the last step is 2^-16 of the range."""


@dataclass(frozen=True)
class MedianSearch:
    """The search after some batches of peers.

    Parameters
    ----------
    estimate
        e: the next batch is asked ISGREATER(e), whether a peer's value is above it.
    step
        Half of it is the next move.

    Notes
    -----
    Ref: AnonML §VII-B, Algorithm 1; errata A-02 (where it begins) and A-03 (what is compared).

    Privacy
    -------
    Unit person, replace, against everyone: a peer is in one batch and answers once, at the cost of
    its mechanism. The search itself reads noisy counts only.

    Examples
    --------
    >>> search = MedianSearch.begin(0, 100)
    >>> search.update(greater=20, n=1000, mechanism=None)
    MedianSearch(estimate=25.0, step=25.0)
    """

    estimate: float
    step: float

    @classmethod
    def begin(cls, low: float, high: float) -> MedianSearch:
        """Return the search at the middle of the public range."""
        return cls(low + (high - low) / 2, (high - low) / 2)

    def update(self, greater: int, n: int, mechanism: RandomizedResponse | None) -> MedianSearch:
        """Return the search after one more batch.

        Parameters
        ----------
        greater
            Noisy count of the peers with a value greater than the estimate.
        n
            Peers of the batch who answered. If none did, only the step is halved.
        mechanism
            Perturbed their bits; None for exact bits.
        """
        step = self.step / 2
        if not n:
            return MedianSearch(self.estimate, step)
        share = _estimate_share(greater, n, mechanism)
        error = margin_of_error(share, n, mechanism)
        if share - error > 0.5:
            return MedianSearch(self.estimate + step, step)
        if share + error < 0.5:
            return MedianSearch(self.estimate - step, step)
        return MedianSearch(self.estimate, step)


def margin_of_error(share: float, n: int, mechanism: RandomizedResponse | None) -> float:
    """Return the root mean square error of a share estimated from n randomised bits.

    Notes
    -----
    Ref: AnonML §VII-B, MARGINOFERROR; Eq. (4). Equation 4 is about all cells and fixed peers. Here
    the question is about one of the two cells, and a batch is a sample of the peers: the error of
    sampling is added, and is the only one without perturbation.
    """
    added = mechanism.variance(share) if mechanism else 0.0
    return math.sqrt((added + share * (1 - share)) / n)


def _estimate_share(greater: int, n: int, mechanism: RandomizedResponse | None) -> float:
    """Return the share of the peers above the estimate, debiased and clipped to [0, 1]."""
    n_hat = mechanism.debias([n - greater, greater], n)[1] if mechanism else greater
    return min(max(float(n_hat) / n, 0.0), 1.0)


N_CANDIDATES = 64
"""Number of equal widths, and also of growing ones, among the candidates of a quantile."""
_DECADES = 1000.0


def candidate_edges(low: float, high: float) -> npt.NDArray[np.float64]:
    """Return the candidates of a private quantile: public, rising, in ``[low, high)``.

    Examples
    --------
    >>> edges = candidate_edges(0.0, 64.0)
    >>> float(edges[0]), bool((edges == 1.0).any()), edges.size
    (0.0, True, 127)
    """
    return grid_edges(low, high, N_CANDIDATES, N_CANDIDATES)


def grid_edges(low: float, high: float, n_equal: int, n_log: int) -> npt.NDArray[np.float64]:
    """Return a public grid of ``n_equal`` equal widths and ``n_log`` growing ones.

    It contains ``low``, and rises to below ``high``.

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
    above = centre + (high - centre) * _make_log_points(n_log)
    below = centre - (centre - low) * _make_log_points(n_log // 2)
    edges = np.concatenate(([low, centre], equal, above, below))
    return np.unique(edges[(edges >= low) & (edges < high)])


def _make_log_points(n: int) -> npt.NDArray[np.float64]:
    """Return points of (0, 1) that grow by a constant factor after adding a thousandth."""
    return np.expm1(math.log1p(_DECADES) * np.arange(1, n) / max(n, 1)) / _DECADES
