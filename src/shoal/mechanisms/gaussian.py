"""Discrete Gaussian noise.

Exact at every scale. The distribution is P(Y = y) proportional to exp(-y^2 / (2 sigma^2)) on the
integers. A draw takes discrete Laplace candidates with the integer scale t = floor(sigma) + 1 and
accepts a candidate y with probability exp(-(|y| - sigma^2 / t)^2 / (2 sigma^2)); about three of
four are accepted. Candidates and acceptance are exact, and so is the result.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.base import AdditiveNoise, check_delta, check_epsilon
from shoal.mechanisms.bernoulli import sample_bernoulli_exp, sample_bernoulli_exp_many
from shoal.mechanisms.exact import float_up
from shoal.mechanisms.laplace import get_laplace_sampler
from shoal.mechanisms.sensitivity import BoundedSum, Query
from shoal.privacy.accountant import MIN_DELTA, epsilon_to_rho, rho_to_delta
from shoal.privacy.events import Event, Scope

_BLOCK = 1 << 15
_SIGMA_BITS = 20
_REACH = 40
"""Sums over the support end at 40 sigma; less than exp(-800) of the mass is beyond."""
_MAX_SIGMA = 1 << 16
_ERROR = 2.0**-38
_GAIN_ERROR = 2.0**-46


class GaussianSampler:
    """Sampler of Y with P(Y = y) proportional to exp(-y^2 / (2 sigma_squared)).

    Parameters
    ----------
    sigma_squared
        Exact, positive.

    Notes
    -----
    Ref: Canonne, Kamath, Steinke 2020 (The Discrete Gaussian for Differential Privacy), Algorithm
    3.
    """

    def __init__(self, sigma_squared: Fraction) -> None:
        self.sigma_squared = sigma_squared
        self._t = math.isqrt(math.floor(sigma_squared)) + 1
        self._candidates = get_laplace_sampler(Fraction(1, self._t))
        self._middle = float(sigma_squared / self._t)
        self._half = float(1 / (2 * sigma_squared))

    def exponent(self, candidate: int) -> Fraction:
        """Return x such that a candidate is accepted with probability exp(-x)."""
        return (abs(candidate) - self.sigma_squared / self._t) ** 2 / (2 * self.sigma_squared)

    def draw(self, entropy: Entropy) -> int:
        """Draw one variate."""
        while True:
            candidate = self._candidates.draw(entropy)
            if sample_bernoulli_exp(self.exponent(candidate), entropy):
                return candidate

    def draw_many(self, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        """Draw ``n`` independent variates."""
        drawn = np.empty(n, np.int64)
        done = 0
        while done < n:
            kept = self._draw_block(min(_BLOCK, 32 + (n - done) * 3 // 2), entropy)[: n - done]
            drawn[done : done + kept.size] = kept
            done += kept.size
        return drawn

    def _draw_block(self, n_candidates: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        """Return the accepted candidates of one block.

        The error of the exponent as a float is at most 2^-51 (|y| + sigma)^2 / sigma^2. If the
        exponent is at most 64, |y| is below 13 sigma, and the error is below 2^-42. The exponent
        grows with |y|, so beyond that it stays above 60.
        """
        candidates = self._candidates.draw_many(n_candidates, entropy)
        x = (np.abs(candidates) - self._middle) ** 2 * self._half
        return candidates[
            sample_bernoulli_exp_many(x, lambda i: self.exponent(int(candidates[i])), entropy)
        ]


@lru_cache(maxsize=256)
def get_gaussian_sampler(sigma_squared: Fraction) -> GaussianSampler:
    """Return the cached sampler for a sigma^2; making one takes milliseconds."""
    return GaussianSampler(sigma_squared)


def compute_sigma_squared(rho: float, l2_squared: Fraction) -> Fraction:
    """Return the least sigma^2 with l2_squared / (2 sigma^2) <= rho.

    It is rounded up to 21 significant bits.
    """
    min_variance = l2_squared / (2 * Fraction(rho))
    unit = Fraction(2) ** (math.floor(math.log2(min_variance)) - _SIGMA_BITS)
    return math.ceil(min_variance / unit) * unit


def compute_gaussian_variance(sigma_squared: Fraction) -> float:
    """Return the sum of y^2 P(y).

    It is a little below sigma^2, and equal to it in floats from sigma = 2 on (Poisson summation).
    """
    return compute_gaussian_moment(sigma_squared, 2) if sigma_squared < 4 else float(sigma_squared)


def compute_gaussian_moment(sigma_squared: Fraction, power: int) -> float:
    """Return the sum of |y|^power P(y), term by term."""
    y = np.arange(1.0, math.ceil(_REACH * math.sqrt(sigma_squared)) + 2)
    weight = np.exp(-(y**2) / (2 * float(sigma_squared)))
    return 2 * math.fsum(y**power * weight) / (1 + 2 * math.fsum(weight))


def compute_count_delta(sigma_squared: Fraction, sensitivity: int, epsilon: float) -> float:
    """Bound the delta at epsilon of one integer with discrete Gaussian noise from above.

    The integer differs by at most ``sensitivity`` between neighbours.

    The tight curve is the sum over y > epsilon sigma^2 / D - D / 2 of P(y) - exp(epsilon) P(y + D),
    in which every term is positive. It rises with D: the best test is a threshold, and a larger
    shift moves more mass across it. It needs about 40 sigma terms; beyond sigma = 2^16 the bound by
    zCDP, which is always valid, replaces it.

    Notes
    -----
    Ref: Canonne, Kamath, Steinke 2020, Theorem 7.
    """
    rho = float_up(Fraction(sensitivity**2) / (2 * sigma_squared))
    if sigma_squared > _MAX_SIGMA**2:
        return rho_to_delta(rho, epsilon)
    reach = math.isqrt(math.ceil(_REACH**2 * sigma_squared)) + 2
    half = float(1 / (2 * sigma_squared))
    mass = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) * half).sum()
    first = (
        math.floor(Fraction(epsilon) * sigma_squared / sensitivity - Fraction(sensitivity, 2)) + 1
    )
    y = np.arange(max(first, -reach), max(first, 0) + reach + 1.0)
    chance = np.exp(-(y**2) * half) / mass
    gain = -np.expm1(epsilon - (2 * y + sensitivity) * sensitivity * half)
    # A probability has a relative error of 800 * 2^-51, a gain an error of 2^-51 (1 + epsilon), and
    # the omitted terms are far less.
    delta = float((chance * (gain + _GAIN_ERROR * (1 + epsilon))).sum()) * (1 + _ERROR)
    return min(1.0, max(MIN_DELTA, delta))


class DiscreteGaussian(AdditiveNoise):
    """Integer counts plus discrete Gaussian noise: (epsilon, delta), and zCDP.

    Parameters
    ----------
    epsilon, delta
        Cost of releasing the whole vector.
    query
        How the vector is made; its L2 sensitivity sets the noise.
    scope
        Unit, neighbouring relation and adversary of the claim.

    Notes
    -----
    Ref: Canonne, Kamath, Steinke 2020 (The Discrete Gaussian for Differential Privacy), Theorem 14,
    Corollary 13.

    Privacy
    -------
    rho-zCDP with rho = (L2 sensitivity)^2 / (2 sigma^2), which is (epsilon, delta)-DP for the
    scope's unit and relation; sigma is rounded up, so that neither number exceeds the requested
    one.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.mechanisms.sensitivity import CellCounts
    >>> from shoal.privacy.events import Relation, Scope, Unit
    >>> noise = DiscreteGaussian(
    ...     1.0,
    ...     1e-6,
    ...     CellCounts(20),
    ...     Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release"),
    ... )
    >>> noise.randomise_many(np.array([10, 20, 30]), SeededEntropy(1)).shape, round(noise.sigma, 1)
    ((3,), 20.3)
    """

    name = "discrete-gaussian"

    def __init__(self, epsilon: float, delta: float, query: Query, scope: Scope) -> None:
        check_epsilon(epsilon)
        self.epsilon = epsilon
        self.delta = check_delta(delta)
        self.query = query
        self.scope = scope
        self.l2_squared = query.l2_squared(scope.relation)
        self.sigma_squared = compute_sigma_squared(epsilon_to_rho(epsilon, delta), self.l2_squared)
        self._sampler = get_gaussian_sampler(self.sigma_squared)

    @property
    def sigma(self) -> float:
        """The scale of the noise, which is almost its standard deviation."""
        return math.sqrt(self.sigma_squared)

    @property
    def rho(self) -> float:
        """The zero-concentrated guarantee, rounded up."""
        return float_up(self.l2_squared / (2 * self.sigma_squared))

    def event(self) -> Event:
        parameters = {"sensitivity": math.sqrt(self.l2_squared), "sigma": self.sigma}
        return Event(self.name, parameters, self.scope, self.epsilon, self.delta, self.rho)

    def delta_at(self, epsilon: float) -> float:
        """Bound the delta of this release at another epsilon from above.

        The bound is the tight curve if a unit changes a single number. Otherwise it is by zCDP,
        because the effect of discrete noise depends on the direction of a change.
        """
        if isinstance(self.query, BoundedSum) or self.l2_squared == 1:
            return compute_count_delta(
                self.sigma_squared, math.isqrt(int(self.l2_squared)), epsilon
            )
        return rho_to_delta(self.rho, epsilon)

    def variance(self) -> float:
        return compute_gaussian_variance(self.sigma_squared)

    def _mean_absolute_noise(self) -> float:
        if self.sigma_squared < 2**16:
            return compute_gaussian_moment(self.sigma_squared, 1)
        # Euler-Maclaurin: the sum of y exp(-y^2 / (2 sigma^2)) over y > 0 is sigma^2 - 1/12 - 1 /
        # (240 sigma^2) - ...
        return self.sigma * math.sqrt(2 / math.pi) * (1 - 1 / (12 * float(self.sigma_squared)))
