"""Discrete Gaussian noise in shares: each of several parties adds a little, and the sum is a discrete Gaussian to a hair.

A sum of discrete Gaussians is not one itself. Let P be the law of n shares of variance parameter s, and G the discrete Gaussian of n s.
The sum of k shares and one more has, at x, the chance exp(-x^2 / (2 (k + 1) s)) times a sum over all integers of a bell of variance
c = s k / (k + 1) that is centred somewhere between two integers, up to a constant. By Poisson summation that sum is
theta(u) = 1 + 2 q cos(2 pi u) + 2 q^4 cos(4 pi u) + ... with q = exp(-2 pi^2 c): largest at an integer, least half-way. By Jacobi's
product the logarithm of their ratio is 4 (artanh(q) + artanh(q^3) + ...), at most 4 q / (1 - q^2)^2. A bounded factor stays bounded when
a share is added, so log(P / G) has a range of at most r, the sum of these over k = 1, ..., n - 1: from s = 4 on less than 10^-16.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import MechanismError
from shoal.mechanisms.base import MAX_EPSILON, MIN_EPSILON, check_delta
from shoal.mechanisms.exact import float_up
from shoal.mechanisms.gaussian import gaussian_sampler, gaussian_variance
from shoal.mechanisms.sensitivity import Query, check_positive
from shoal.mechanisms.shares import check_honest
from shoal.privacy.events import Event, Scope
from shoal.privacy.zcdp import TINIEST, rho_to_epsilon

Ints = npt.NDArray[np.int64]

MIN_RHO = 1e-18

_BITS = 21
_WIDE = 16
_ERROR = 2.0**-38
"""More than the roundings lose: that of an exponent of 745, beyond which floats know nothing but 0, moves the exponential by 2^-41."""


def log_range(sigma_squared: Fraction, n_shares: int) -> float:
    """r: the most by which log(P / G) differs between any two integers, P the law of the sum and G its discrete Gaussian; rounded up."""
    k = np.arange(1.0, n_shares)
    exponent = 2 * math.pi**2 * float(sigma_squared) * k / (k + 1)
    terms = 4 * np.exp(-exponent) / np.expm1(-2 * exponent) ** 2
    return float(terms.sum()) * (1 + _ERROR) + (n_shares - 1) * TINIEST


def rho_of_shares(sigma_squared: Fraction, n_shares: int, l2_squared: Fraction, dimension: int) -> float:
    """The zero-concentrated guarantee of a vector with that many shares on each number, rounded up.

    Notes
    -----
    rho = (D / sqrt(n s) + r sqrt(d))^2 / 2 with the L2 sensitivity D and d numbers. Three steps lead from the noise to the noise moved by
    D: P to G, G to G moved, and back to P. A pair of laws whose log-ratio has range r is r^2/8-zCDP on each number (its cumulants
    K(alpha) = log E exp(alpha log-ratio) vanish at 0 and 1, and K'' is at most r^2/4 by Hoeffding's lemma), and the roots of the rhos of
    three steps add up (Bun and Steinke 2016, Lemma 5.2 with the best orders). The middle step is D^2 / (2 n s).

    Ref: Kairouz, Liu, Steinke 2021 (The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure Aggregation), Theorem 1,
    the second of its bounds, there for s >= 1/4 and with tau = 10 (q_1 + ... + q_{n-1}) for r; this r is less, and holds for every s.
    """
    moved = l2_squared / (n_shares * sigma_squared)
    ragged = log_range(sigma_squared, n_shares) * math.sqrt(dimension)
    more = ragged * (math.sqrt(moved) + ragged / 2) * (1 + _ERROR)
    return float_up(moved / 2 + Fraction(more))


def share_sigma_squared(rho: float, n_shares: int, l2_squared: Fraction, dimension: int) -> Fraction:
    """The least variance parameter of a share, of 21 significant bits, with which the guarantee of the sum is at most rho.

    Where shares would be narrow, it is what makes r small that counts: then they are wider than D^2 / (2 n rho).
    """

    def is_enough(sigma_squared: Fraction) -> bool:
        return rho_of_shares(sigma_squared, n_shares, l2_squared, dimension) <= rho

    high = Fraction(2) ** (math.floor(math.log2(l2_squared / (2 * n_shares * Fraction(rho)))) - 1)
    while not is_enough(high):
        high *= 2
    unit = high / (1 << _BITS)
    below = range((1 << _BITS - 1) + 1, 1 << _BITS)
    return (below.start + bisect_left(below, True, key=lambda steps: is_enough(steps * unit))) * unit


def _check_rho(rho: float) -> float:
    if not MIN_RHO <= rho <= MAX_EPSILON:
        raise MechanismError(
            "MECH-001",
            f"rho = {rho} cannot be used.",
            why=f"A mechanism takes a rho from {MIN_RHO:g} to {MAX_EPSILON:g}.",
            fix="epsilon 1 at delta 1e-6 is a rho of 0.024.",
        )
    return rho


class SharedGaussian:
    """Discrete Gaussian noise for a vector of sums, in shares: rho-zCDP against all who know all shares but n_honest.

    Parameters
    ----------
    rho, delta
        Most that releasing the whole vector may cost, and where its epsilon is read off.
    query
        How the vector is made; its L2 sensitivity sets the noise.
    scope
        Unit, neighbouring relation and adversary of the claim.
    n_honest
        m: shares that are sure to be in the sum and unknown to the adversary. 1 is full noise from everyone.
    dimension
        Numbers in the vector; fewer will do if a unit never changes more than that many.

    Notes
    -----
    A share is a discrete Gaussian on the integers, drawn exactly. Ref: `rho_of_shares`; Kairouz, Liu, Steinke 2021, Theorem 1.

    Privacy
    -------
    rho-zCDP with the bound of `rho_of_shares`, never more than was asked for, and so (epsilon, delta)-DP for the scope's unit and relation.
    Take any m of the shares that the adversary does not know. Everything else in the sum (the adversary's own shares, and honest
    shares beyond m) is independent of them and of the data: adding it is post-processing. With fewer than m there is no claim.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.mechanisms.sensitivity import SignedCells
    >>> from shoal.privacy.events import Relation, Scope, Unit
    >>> scope = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release and up to 3 colluding holders")
    >>> noise = SharedGaussian(0.02, 1e-6, SignedCells(14, 256), scope, n_honest=7, dimension=500)
    >>> noise.share(4, SeededEntropy(1)).shape, round(noise.sigma), round(noise.event().epsilon, 2)
    ((4,), 4789, 0.9)
    """

    name = "gaussian-shares"

    def __init__(self, rho: float, delta: float, query: Query, scope: Scope, n_honest: int, dimension: int) -> None:
        self.delta = check_delta(delta)
        check_positive("dimension", dimension)
        self.scope = scope
        self.n_honest = check_honest(n_honest)
        self.dimension = dimension
        self.l2_squared = query.l2_squared(scope.relation)
        self.sigma_squared = share_sigma_squared(_check_rho(rho), n_honest, self.l2_squared, dimension)
        self.rho = rho_of_shares(self.sigma_squared, n_honest, self.l2_squared, dimension)
        self._sampler = gaussian_sampler(self.sigma_squared)

    @property
    def sigma(self) -> float:
        """The scale of the noise of n_honest shares; that of one is the root of ``sigma_squared``."""
        return math.sqrt(self.n_honest * self.sigma_squared)

    @property
    def epsilon(self) -> float:
        """The epsilon of the whole vector at its delta, rounded up."""
        return max(MIN_EPSILON, rho_to_epsilon(self.rho, self.delta))

    def event(self) -> Event:
        parameters = {
            "sensitivity": math.sqrt(self.l2_squared),
            "sigma": self.sigma,
            "n_honest": self.n_honest,
            "dimension": self.dimension,
        }
        return Event(self.name, parameters, self.scope, self.epsilon, self.delta, self.rho)

    def share(self, n: int, entropy: Entropy) -> Ints:
        """One party's shares for n of the sums."""
        return self._sampler.draw_many(n, entropy)

    def summed(self, n: int, n_shares: int, entropy: Entropy) -> Ints:
        """The sum of n_shares independent shares, for each of n sums; for simulations.

        From a variance parameter of 16 on it is one draw of the discrete Gaussian of all of them, whose chances are off by a part of
        less than 10^-60 (`log_range`), however many there are. Below, every share is drawn.
        """
        check_positive("n_shares", n_shares)
        if self.sigma_squared >= _WIDE:
            return gaussian_sampler(n_shares * self.sigma_squared).draw_many(n, entropy)
        total = np.zeros(n, np.int64)
        for _ in range(n_shares):
            total += self.share(n, entropy)
        return total

    def variance(self, n_shares: int | None = None) -> float:
        """Variance of the noise on one sum of n_shares shares; n_honest of them unless told."""
        return gaussian_variance(self.sigma_squared) * (self.n_honest if n_shares is None else n_shares)
