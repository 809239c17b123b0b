"""k-closest: of M public random directions one is reported, and each of the k nearest to the private one is likelier than each other.

The choice is exact: a coin decides between near and far, and a uniform integer among them. Which directions are near is
worked out in floats, but that does not matter: whatever k of the M are called near, each is likelier by the same factor. The directions
themselves do not depend on the data, so that hiding or publishing them changes nothing, and no digit of what is sent does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np

from shoal.entropy import Entropy
from shoal.errors import MechanismError
from shoal.mechanisms.base import check_epsilon
from shoal.mechanisms.coins import Coin
from shoal.mechanisms.directions import Cosines, Floats, Singles, cosines, directions
from shoal.mechanisms.exact import log_up
from shoal.mechanisms.reports import WORD
from shoal.mechanisms.subset import keep_numerator
from shoal.privacy.events import Event, Scope

_USUAL, _FEWEST, _MOST = 256, 16, 4096
_MOST_NUMBERS = 1 << 24
"""Directions of a report take at most 64 MiB, and a tenth of a second or so."""


def n_directions(epsilon: float, dimension: int) -> int:
    """M: 256, and twice as many for every 1.5 of epsilon above 4; fewer where they would take too long.

    Notes
    -----
    Against infinitely many, 256 directions have 0.7 % more variance at epsilon 1 and 1.5 % at 4. At 8, where they would have 11 %,
    there are 2,048, with 1.7 %; at 12 there are 4,096, with 11 %.
    """
    wanted = min(_MOST, _USUAL << max(0, math.ceil((epsilon - 4) / 1.5)))
    affordable = 1 << max(1, _MOST_NUMBERS // dimension).bit_length() - 1
    return max(_FEWEST, min(wanted, affordable))


@dataclass(frozen=True)
class _Setting:
    """k, the numerator over 2^64 of the chance that a near direction is reported, and the alignment that they give."""

    k: int
    near: int
    alignment: float


@lru_cache(maxsize=64)
def _best_setting(epsilon: Fraction, p: int, M: int) -> _Setting:
    """The k of the largest alignment.

    Notes
    -----
    The sum of the k largest is concave in k, and the alignment is that sum over a linear function of k: it rises to its top and
    then falls.
    """
    law = cosines(p)
    low, high = 1, M - 1
    while low < high:
        middle = (low + high) // 2
        if _setting(epsilon, law, M, middle).alignment < _setting(epsilon, law, M, middle + 1).alignment:
            low = middle + 1
        else:
            high = middle
    return _setting(epsilon, law, M, low)


def _setting(epsilon: Fraction, law: Cosines, M: int, k: int) -> _Setting:
    near = keep_numerator(epsilon, M, k)
    # All M together add up to nothing on average: what the near ones have too much, the far ones have too little.
    gain = Fraction(near, WORD * k) - Fraction(WORD - near, WORD * (M - k))
    return _Setting(k, near, float(gain) * law.top_sum(M, k))


class KClosest:
    """A unit vector, reported as one of M random directions.

    Parameters
    ----------
    epsilon
        Budget of one report.
    dimension
        p, at least 2.
    scope
        Unit, neighbouring relation and adversary of the claim.

    Attributes
    ----------
    n_directions, n_near
        M, and k, which is the one of least variance.
    alignment
        m: the expected inner product of the reported direction with the private one; a report divided by it is unbiased.

    Notes
    -----
    An exact relative of PrivUnit (Bhowmick et al. 2018), in the manner of subset selection (Ye and Barg 2018): a cap of the sphere
    becomes the k nearest of M directions. The second moment of an unbiased report, 1 / m^2, is between .98 and 1.01 of that of PrivUnit
    with Gaussian noise for p = 51 or 97 and epsilon 1 or 4.

    Privacy
    -------
    epsilon-DP for one report, whatever direction is replaced with whichever: given the M directions, each is reported with chance q / k if
    it is near and (1 - q) / (M - k) if not. q is a multiple of 2^-64, and the price is that of the ratio as realised.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.privacy.events import LOCAL_PERSON
    >>> closest = KClosest(4.0, 33, LOCAL_PERSON)
    >>> closest.n_directions, closest.n_near, round(closest.alignment, 4)
    (256, 18, 0.2594)
    >>> closest.randomise(np.eye(33)[0], SeededEntropy(1)).shape
    (33,)
    """

    name: ClassVar[str] = "k-closest"

    def __init__(self, epsilon: float, dimension: int, scope: Scope) -> None:
        exact = check_epsilon(epsilon)
        if dimension < 2:
            raise MechanismError(
                "MECH-001", f"dimension = {dimension}: a direction has at least 2.", fix="Hide a single number by discrete Laplace noise."
            )
        self.epsilon = epsilon
        self.dimension = dimension
        self.scope = scope
        self.n_directions = n_directions(epsilon, dimension)
        self._setting = _best_setting(exact, dimension, self.n_directions)
        self.n_near = self._setting.k
        self.alignment = self._setting.alignment
        self._is_near = Coin.dyadic(self._setting.near)

    @property
    def near_chance(self) -> Fraction:
        """q, the exact chance that a near direction is reported."""
        return self._is_near.chance

    def event(self) -> Event:
        """One report as the accountant sees it, priced by its realised chances; never above the epsilon asked for."""
        M, k, q = self.n_directions, self.n_near, self.near_chance
        parameters = {"dimension": self.dimension, "directions": M, "near": k, "near_numerator": self._setting.near}
        return Event(self.name, parameters, self.scope, log_up(q * (M - k) / ((1 - q) * k)))

    def randomise(self, direction: Floats, entropy: Entropy) -> Floats:
        """The reported direction, a unit vector, for the private one. The M are drawn afresh each time: two reports share nothing."""
        public = directions(self.n_directions, self.dimension, entropy)
        reported: Floats = public[self.choose(self.products(public, direction), entropy)].astype(np.float64)
        reported /= np.linalg.norm(reported)
        return reported

    def products(self, public: Singles, direction: Floats) -> Singles:
        """``(M,)`` inner products of the private direction with the public ones."""
        products: Singles = public @ direction.astype(np.float32)
        products /= np.sqrt(np.einsum("ij,ij->i", public, public))
        return products

    def choose(self, products: Singles, entropy: Entropy) -> int:
        """Which of the directions is reported, by their inner products with the private one: all that is private in a report."""
        n_far = self.n_directions - self.n_near
        order = np.argpartition(products, n_far)
        if self._is_near.flip(entropy):
            return int(order[n_far + entropy.below(self.n_near)])
        return int(order[entropy.below(n_far)])

    def alignments(self, n: int, entropy: Entropy) -> Floats:
        """``(n,)`` inner products of n independent reports with their private direction, without drawing the reports.

        Given it, the rest of a report is uniform on the sphere orthogonal to the private direction: enough to simulate a population.
        """
        uniform = ((entropy.words(n, np.uint64) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        law, chances = self._law
        return np.interp(uniform, chances, law)

    @property
    def _law(self) -> tuple[Floats, Floats]:
        return _quantiles(self.dimension, self.n_directions, self.n_near, float(self.near_chance))

    def variance(self) -> float:
        """Variance of one coordinate of a report divided by the alignment, on average over the coordinates."""
        return (1 / self.alignment**2 - 1) / self.dimension

    def expected_error(self, n: int = 1) -> float:
        """Root of the expected squared distance between a direction and the mean of n reports of it, divided by the alignment."""
        return math.sqrt(self.dimension * self.variance() / n)


@lru_cache(maxsize=16)
def _quantiles(p: int, M: int, k: int, near: float) -> tuple[Floats, Floats]:
    """The inner product of a report with the private direction: values, and the chance to be below each."""
    law = cosines(p)
    return law.values, law.quantiles(M, k, near)
