"""Discrete Laplace and geometric noise, exact at every scale.

A geometric variable G with P(G = g) = (1 - r) r^g, r = exp(-rate), has independent binary digits: digit j is 1 with
chance 1 / (1 + exp(rate 2^j)), and what stands above digit J is again geometric, with ratio r^(2^J). So a draw is a handful of
coins, without rejection, and the top is unbounded: nothing is cut off.

A discrete Laplace variable is 0 with chance (1 - r) / (1 + r), and otherwise a fair sign times 1 + G.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import MechanismError
from shoal.mechanisms.additive import AdditiveNoise
from shoal.mechanisms.base import check_epsilon
from shoal.mechanisms.coins import Coin
from shoal.mechanisms.sensitivity import Query
from shoal.privacy.events import Event, Scope

_BLOCK = 1 << 15
_TOP_RATE = 4
_MIN_RATE = Fraction(1, 1 << 40)


class GeometricSampler:
    """Draws G >= 0 with P(G = g) proportional to exp(-rate g).

    Parameters
    ----------
    rate
        Exact, positive. Below 2^-40 values could leave 64 bits, and it is refused.
    """

    def __init__(self, rate: Fraction) -> None:
        if rate < _MIN_RATE:
            raise MechanismError(
                "MECH-001",
                f"The noise would have a scale of {float(1 / rate):.3g}, more than 2**40.",
                fix="Use a larger epsilon, or a smaller clip or fewer tables.",
            )
        # Above digit J the rate is at least _TOP_RATE: a second step is rare, so the top costs about one coin.
        n_digits = max(0, math.ceil(math.log2(_TOP_RATE / rate)))
        self._digits = [Coin.logistic(rate * 2**j) for j in range(n_digits)]
        self._top = Coin.exponential(rate * 2**n_digits)

    def draw(self, entropy: Entropy) -> int:
        """One variate."""
        value = 0
        while self._top.flip(entropy):
            value += 1
        for digit in reversed(self._digits):
            value = 2 * value + digit.flip(entropy)
        return value

    def draw_many(self, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        """``n`` independent variates."""
        value = np.zeros(n, np.int64)
        going = np.flatnonzero(self._top.flip_many(n, entropy))
        while going.size:
            value[going] += 1
            going = going[self._top.flip_many(going.size, entropy)]
        # Eight digits at a time in bytes, which is where the time goes; highest first.
        for end in range(len(self._digits), 0, -8):
            digits = self._digits[max(0, end - 8) : end]
            byte = digits[-1].flip_many(n, entropy).view(np.uint8)
            for digit in reversed(digits[:-1]):
                byte += byte
                byte |= digit.flip_many(n, entropy).view(np.uint8)
            value <<= len(digits)
            value |= byte
        return value


class LaplaceSampler:
    """Draws X with P(X = k) proportional to exp(-rate |k|)."""

    def __init__(self, rate: Fraction) -> None:
        self._geometric = GeometricSampler(rate)
        self._is_nonzero = Coin.twice_logistic(rate)

    def draw(self, entropy: Entropy) -> int:
        """One variate."""
        if not self._is_nonzero.flip(entropy):
            return 0
        size = 1 + self._geometric.draw(entropy)
        return -size if entropy.word() & 1 else size

    def draw_many(self, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        """``n`` independent variates."""
        drawn = np.empty(n, np.int64)
        for start in range(0, n, _BLOCK):
            part = drawn[start : start + _BLOCK]
            part[:] = self._geometric.draw_many(part.size, entropy)
            part += 1
            part *= self._is_nonzero.flip_many(part.size, entropy)
            sign = np.unpackbits(entropy.words(-(-part.size // 8), np.uint8), count=part.size).view(np.int8)
            part *= 1 - 2 * sign
        return drawn


@lru_cache(maxsize=256)
def geometric_sampler(rate: Fraction) -> GeometricSampler:
    """The sampler for a rate; setting one up costs a millisecond, so they are kept."""
    return GeometricSampler(rate)


@lru_cache(maxsize=256)
def laplace_sampler(rate: Fraction) -> LaplaceSampler:
    """The sampler for a rate; setting one up costs a millisecond, so they are kept."""
    return LaplaceSampler(rate)


class DiscreteLaplace(AdditiveNoise):
    """Integer counts plus discrete Laplace noise: pure epsilon.

    Parameters
    ----------
    epsilon
        Cost of releasing the whole vector.
    query
        How the vector is made; its L1 sensitivity sets the noise.
    scope
        Unit, neighbouring relation and adversary of the claim.

    Notes
    -----
    Ref: PFDS Algorithm 3, SDQ §III; noise on integers instead of floats (errata S-08).

    Privacy
    -------
    epsilon-DP for the scope's unit and relation: changing one unit moves the vector by at most the query's L1 norm.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.mechanisms.sensitivity import Histogram
    >>> from shoal.privacy.events import Relation, Scope, Unit
    >>> noise = DiscreteLaplace(1.0, Histogram(), Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release"))
    >>> noise.randomise_many(np.array([10, 20, 30]), SeededEntropy(1)).shape
    (3,)
    """

    name = "discrete-laplace"

    def __init__(self, epsilon: float, query: Query, scope: Scope) -> None:
        self.epsilon = epsilon
        self.scope = scope
        self.sensitivity = query.l1(scope.relation)
        self.rate = check_epsilon(epsilon) / self.sensitivity
        self._sampler = laplace_sampler(self.rate)

    @property
    def scale(self) -> float:
        """Sensitivity / epsilon, the b of Lap(b)."""
        return float(1 / self.rate)

    def event(self) -> Event:
        parameters = {"sensitivity": float(self.sensitivity), "scale": self.scale}
        return Event(self.name, parameters, self.scope, self.epsilon)

    def variance(self) -> float:
        """2 r / (1 - r)^2 with r = exp(-rate)."""
        return 0.5 / math.sinh(float(self.rate) / 2) ** 2

    def _mean_absolute(self) -> float:
        """2 r / (1 - r^2)."""
        return 1 / math.sinh(float(self.rate))
