"""Discrete Laplace and geometric noise.

Exact at every scale. A geometric variable G with P(G = g) = (1 - r) r^g, r = exp(-rate), has
independent binary digits: digit j is 1 with probability 1 / (1 + exp(rate 2^j)), and the part above
digit J is again geometric, with ratio r^(2^J). So a draw takes a few Bernoulli samples, without
rejection, and is unbounded: nothing is cut off.

A discrete Laplace variable is 0 with probability (1 - r) / (1 + r), and otherwise a fair sign times
1 + G.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import MechanismError
from shoal.mechanisms.base import AdditiveNoise, check_epsilon
from shoal.mechanisms.bernoulli import BernoulliSampler
from shoal.mechanisms.sensitivity import Query
from shoal.privacy.events import Event, Scope

_BLOCK = 1 << 15
_TOP_RATE = 4
_MIN_RATE = Fraction(1, 1 << 40)


class GeometricSampler:
    """Sampler of G >= 0 with P(G = g) proportional to exp(-rate g).

    Parameters
    ----------
    rate
        Exact, positive. A rate below 2^-40 is rejected, since values might not fit into 64 bits.
    """

    def __init__(self, rate: Fraction) -> None:
        if rate < _MIN_RATE:
            raise MechanismError(
                "MECH-001",
                f"The noise would have a scale of {float(1 / rate):.3g}, more than 2**40.",
                fix="Use a larger epsilon, or a smaller clip or fewer tables.",
            )
        # Above digit J the rate is at least _TOP_RATE: a second step is rare, so the top takes
        # about one sample.
        n_digits = max(0, math.ceil(math.log2(_TOP_RATE / rate)))
        self._digits = [BernoulliSampler.logistic(rate * 2**j) for j in range(n_digits)]
        self._top = BernoulliSampler.exponential(rate * 2**n_digits)

    def draw(self, entropy: Entropy) -> int:
        """Draw one variate."""
        value = 0
        while self._top.sample(entropy):
            value += 1
        for digit in reversed(self._digits):
            value = 2 * value + digit.sample(entropy)
        return value

    def draw_many(self, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        """Draw ``n`` independent variates."""
        value = np.zeros(n, np.int64)
        active = np.flatnonzero(self._top.sample_many(n, entropy))
        while active.size:
            value[active] += 1
            active = active[self._top.sample_many(active.size, entropy)]
        # Eight digits at a time, in bytes, for speed; highest first.
        for end in range(len(self._digits), 0, -8):
            digits = self._digits[max(0, end - 8) : end]
            byte = digits[-1].sample_many(n, entropy).view(np.uint8)
            for digit in reversed(digits[:-1]):
                byte += byte
                byte |= digit.sample_many(n, entropy).view(np.uint8)
            value <<= len(digits)
            value |= byte
        return value


class LaplaceSampler:
    """Sampler of X with P(X = k) proportional to exp(-rate |k|)."""

    def __init__(self, rate: Fraction) -> None:
        self._geometric = GeometricSampler(rate)
        self._nonzero_sampler = BernoulliSampler.twice_logistic(rate)

    def draw(self, entropy: Entropy) -> int:
        """Draw one variate."""
        if not self._nonzero_sampler.sample(entropy):
            return 0
        size = 1 + self._geometric.draw(entropy)
        return -size if entropy.word() & 1 else size

    def draw_many(self, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        """Draw ``n`` independent variates."""
        drawn = np.empty(n, np.int64)
        for start in range(0, n, _BLOCK):
            part = drawn[start : start + _BLOCK]
            part[:] = self._geometric.draw_many(part.size, entropy)
            part += 1
            part *= self._nonzero_sampler.sample_many(part.size, entropy)
            sign = np.unpackbits(entropy.words(-(-part.size // 8), np.uint8), count=part.size).view(
                np.int8
            )
            part *= 1 - 2 * sign
        return drawn


@lru_cache(maxsize=256)
def get_geometric_sampler(rate: Fraction) -> GeometricSampler:
    """Return the cached sampler for a rate; making one takes a millisecond."""
    return GeometricSampler(rate)


@lru_cache(maxsize=256)
def get_laplace_sampler(rate: Fraction) -> LaplaceSampler:
    """Return the cached sampler for a rate; making one takes a millisecond."""
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
    epsilon-DP for the scope's unit and relation: changing one unit moves the vector by at most the
    query's L1 norm.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.mechanisms.sensitivity import CellCounts
    >>> from shoal.privacy.events import Relation, Scope, Unit
    >>> noise = DiscreteLaplace(
    ...     1.0, CellCounts(), Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
    ... )
    >>> noise.randomise_many(np.array([10, 20, 30]), SeededEntropy(1)).shape
    (3,)
    """

    name = "discrete-laplace"

    def __init__(self, epsilon: float, query: Query, scope: Scope) -> None:
        self.epsilon = epsilon
        self.scope = scope
        self.sensitivity = query.l1(scope.relation)
        self.rate = check_epsilon(epsilon) / self.sensitivity
        self._sampler = get_laplace_sampler(self.rate)

    @property
    def scale(self) -> float:
        """Sensitivity / epsilon, the b of Lap(b)."""
        return float(1 / self.rate)

    def event(self) -> Event:
        parameters = {"sensitivity": float(self.sensitivity), "scale": self.scale}
        return Event(self.name, parameters, self.scope, self.epsilon)

    def variance(self) -> float:
        """Return 2 r / (1 - r)^2 with r = exp(-rate)."""
        return 0.5 / math.sinh(float(self.rate) / 2) ** 2

    def _mean_absolute_noise(self) -> float:
        """Return 2 r / (1 - r^2)."""
        return 1 / math.sinh(float(self.rate))
