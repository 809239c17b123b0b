"""A private quantile by probabilistic bisection: a belief over public cut points, sharpened by one-bit answers.

Each batch of peers is asked whether their number lies above the cut point in the middle of the belief. Their noisy count makes
one side more likely, by as much as it can be trusted, and the next batch is asked about the new middle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from shoal.mechanisms.response import RandomResponse

N_BATCHES = 12
"""Batches that a quantile's peers are dealt into."""
# A batch is never believed outright: one that misled could not be put right by the others.
_MOST_SURE = 0.97
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Search:
    """Where a quantile is believed to lie.

    Parameters
    ----------
    edges
        Rising candidate cut points, ``(G,)``.
    posterior
        The belief in each of them, ``(G,)``.
    target
        The share of peers that lie at or below the quantile: 0.5 for a median.

    Notes
    -----
    Ref: AnonML Algorithm 1, whose steps of fixed length this replaces; errata A-02 and A-03.

    Examples
    --------
    >>> search = Search.begin(np.array([0.0, 1.0, 2.0, 3.0]), 0.5)
    >>> bit = RandomResponse(2.0, 2)
    >>> search.point, search.told(70, 100, bit).point
    (1.0, 2.0)
    """

    edges: npt.NDArray[np.float64]
    posterior: npt.NDArray[np.float64]
    target: float

    @classmethod
    def begin(cls, edges: npt.NDArray[np.float64], target: float) -> Search:
        """All cut points alike."""
        return cls(edges, np.full(edges.size, 1 / edges.size), target)

    @property
    def point(self) -> float:
        """The cut point to ask about now and, in the end, the answer: the middle of the belief.

        A question at one cut point cannot tell it from the one below. So where a value is so frequent that the quantile lies on it, the
        answer may be the cut point above it.
        """
        middle = int(np.searchsorted(np.cumsum(self.posterior), 0.5))
        return float(self.edges[min(middle, self.edges.size - 1)])

    def told(self, yes: int, n: int, mechanism: RandomResponse) -> Search:
        """The belief after a batch of n peers, of whose randomised answers ``yes`` say that the number lies above `point`."""
        if n == 0:
            return self
        t = float(mechanism.p - mechanism.q)
        above = (yes / n - float(mechanism.q)) / t
        spread = 1 / (2 * t * n**0.5)
        sure = min(max(_NORMAL.cdf((above - (1 - self.target)) / spread), 1 - _MOST_SURE), _MOST_SURE)
        belief = self.posterior * np.where(self.edges > self.point, sure, 1 - sure)
        return replace(self, posterior=belief / belief.sum())
