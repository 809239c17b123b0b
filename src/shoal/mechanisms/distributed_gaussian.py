"""Discrete Gaussian noise, drawn in shares by several parties.

Each party adds a share; the sum is almost a discrete Gaussian. PFDS's holders call it.

A sum of discrete Gaussians is not a discrete Gaussian. Let P be the distribution of n shares of
variance parameter s, and G the discrete Gaussian of n s. The sum of k shares and one more has, at
x, the probability exp(-x^2 / (2 (k + 1) s)) times a sum over all integers of a bell of variance c =
s k / (k + 1) with a centre between two integers, up to a constant. By Poisson summation that sum is
theta(u) = 1 + 2 q cos(2 pi u) + 2 q^4 cos(4 pi u) + ... with q = exp(-2 pi^2 c): largest at an
integer, least half-way. By Jacobi's product the logarithm of their ratio is 4 (artanh(q) +
artanh(q^3) + ...), at most 4 q / (1 - q^2)^2. A bounded factor stays bounded when a share is added,
so log(P / G) has a range of at most r, the sum of these over k = 1, ..., n - 1: from s = 4 on less
than 10^-16.
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
from shoal.mechanisms.distributed_laplace import check_n_honest
from shoal.mechanisms.exact import float_up
from shoal.mechanisms.gaussian import compute_gaussian_variance, get_gaussian_sampler
from shoal.mechanisms.sensitivity import Query, check_positive
from shoal.privacy.accountant import MIN_DELTA, rho_to_epsilon
from shoal.privacy.events import Event, Scope

Ints = npt.NDArray[np.int64]

MIN_RHO = 1e-18

_BITS = 21
_WIDE = 16
_ERROR = 2.0**-38
"""Larger than all rounding errors.

That of an exponent of 745, beyond which the exponential is 0, changes the exponential by 2^-41.
"""


def bound_log_range(sigma_squared: Fraction, n_shares: int) -> float:
    """Return r, a bound on the difference of log(P / G) between any two integers, rounded up.

    P is the distribution of the sum and G its discrete Gaussian.
    """
    k = np.arange(1.0, n_shares)
    exponent = 2 * math.pi**2 * float(sigma_squared) * k / (k + 1)
    terms = 4 * np.exp(-exponent) / np.expm1(-2 * exponent) ** 2
    return float(terms.sum()) * (1 + _ERROR) + (n_shares - 1) * MIN_DELTA


def compute_shares_rho(
    sigma_squared: Fraction, n_shares: int, l2_squared: Fraction, dimension: int
) -> float:
    """Return the zero-concentrated guarantee of a vector with n_shares shares on each number.

    It is rounded up.

    Notes
    -----
    rho = (D / sqrt(n s) + r sqrt(d))^2 / 2 with the L2 sensitivity D and d numbers. Three steps
    lead from the noise to the noise moved by D: P to G, G to G moved, and back to P. A pair of
    distributions with a log-ratio of range r is r^2/8-zCDP on each number (its cumulants K(alpha) =
    log E exp(alpha log-ratio) vanish at 0 and 1, and K'' is at most r^2/4 by Hoeffding's lemma),
    and the roots of the rhos of three steps add up (Bun and Steinke 2016, Lemma 5.2 with the best
    orders). The middle step is D^2 / (2 n s).

    Ref: Kairouz, Liu, Steinke 2021 (The Distributed Discrete Gaussian Mechanism for Federated
    Learning with Secure Aggregation), Theorem 1, the second of its bounds, there for s >= 1/4 and
    with tau = 10 (q_1 + ... + q_{n-1}) for r; this r is smaller, and valid for every s.
    """
    moved = l2_squared / (n_shares * sigma_squared)
    ragged = bound_log_range(sigma_squared, n_shares) * math.sqrt(dimension)
    more = ragged * (math.sqrt(moved) + ragged / 2) * (1 + _ERROR)
    return float_up(moved / 2 + Fraction(more))


def compute_share_sigma_squared(
    rho: float, n_shares: int, l2_squared: Fraction, dimension: int
) -> Fraction:
    """Return the least variance parameter of a share at which the guarantee is at most rho.

    It has 21 significant bits. If shares would be narrow, r decides: then they are wider than D^2 /
    (2 n rho).
    """

    def is_enough(sigma_squared: Fraction) -> bool:
        return compute_shares_rho(sigma_squared, n_shares, l2_squared, dimension) <= rho

    high = Fraction(2) ** (math.floor(math.log2(l2_squared / (2 * n_shares * Fraction(rho)))) - 1)
    while not is_enough(high):
        high *= 2
    unit = high / (1 << _BITS)
    below = range((1 << _BITS - 1) + 1, 1 << _BITS)
    return (
        below.start + bisect_left(below, True, key=lambda steps: is_enough(steps * unit))
    ) * unit


def _check_rho(rho: float) -> float:
    if not MIN_RHO <= rho <= MAX_EPSILON:
        raise MechanismError(
            "MECH-001",
            f"rho = {rho} cannot be used.",
            why=f"A mechanism takes a rho from {MIN_RHO:g} to {MAX_EPSILON:g}.",
            fix="Use a rho near 0.024, which is epsilon 1 at delta 1e-6.",
        )
    return rho


class DistributedGaussian:
    """Discrete Gaussian noise for a vector of sums, in shares: rho-zCDP.

    The guarantee is against every adversary that knows all shares but n_honest.

    Parameters
    ----------
    rho, delta
        Largest cost of releasing the whole vector, and the delta at which its epsilon is stated.
    query
        How the vector is made; its L2 sensitivity sets the noise.
    scope
        Unit, neighbouring relation and adversary of the claim.
    n_honest
        m: shares that are certainly in the sum and unknown to the adversary. With 1, each party
        adds the full noise.
    dimension
        Numbers in the vector; a smaller number is enough if a unit never changes more numbers.

    Notes
    -----
    A share is a discrete Gaussian on the integers, drawn exactly. Ref: `compute_shares_rho`;
    Kairouz, Liu, Steinke 2021, Theorem 1.

    Privacy
    -------
    rho-zCDP with the bound of `compute_shares_rho`, never more than the requested one, and so
    (epsilon, delta)-DP for the scope's unit and relation. Take any m of the shares that the
    adversary does not know. All other terms of the sum (the adversary's shares, and honest shares
    beyond m) are independent of them and of the data: adding them is post-processing. With fewer
    than m there is no claim.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.mechanisms.sensitivity import SignedCells
    >>> from shoal.privacy.events import Relation, Scope, Unit
    >>> scope = Scope(
    ...     Unit.RECORD,
    ...     Relation.ADD_REMOVE,
    ...     "all who read the release and up to 3 colluding holders",
    ... )
    >>> noise = DistributedGaussian(
    ...     0.02, 1e-6, SignedCells(14, 256), scope, n_honest=7, dimension=500
    ... )
    >>> share = noise.draw_share(4, SeededEntropy(1))
    >>> share.shape, round(noise.sigma), round(noise.event().epsilon, 2)
    ((4,), 4789, 0.9)
    """

    name = "gaussian-shares"

    def __init__(
        self, rho: float, delta: float, query: Query, scope: Scope, n_honest: int, dimension: int
    ) -> None:
        self.delta = check_delta(delta)
        check_positive("dimension", dimension)
        self.scope = scope
        self.n_honest = check_n_honest(n_honest)
        self.dimension = dimension
        self.l2_squared = query.l2_squared(scope.relation)
        self.sigma_squared = compute_share_sigma_squared(
            _check_rho(rho), n_honest, self.l2_squared, dimension
        )
        self.rho = compute_shares_rho(self.sigma_squared, n_honest, self.l2_squared, dimension)
        self._sampler = get_gaussian_sampler(self.sigma_squared)

    @property
    def sigma(self) -> float:
        """The scale of the noise of n_honest shares; one share has sqrt(``sigma_squared``)."""
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

    def draw_share(self, n: int, entropy: Entropy) -> Ints:
        """Draw one party's shares for n of the sums."""
        return self._sampler.draw_many(n, entropy)

    def draw_sum(self, n: int, n_shares: int, entropy: Entropy) -> Ints:
        """Draw the sum of n_shares shares, for each of n sums; for simulations.

        From a variance parameter of 16 on it is one draw of the discrete Gaussian of all of them,
        with probabilities that differ by a part of less than 10^-60 (`bound_log_range`) for any
        number of shares. Below, each share is drawn.
        """
        check_positive("n_shares", n_shares)
        if self.sigma_squared >= _WIDE:
            return get_gaussian_sampler(n_shares * self.sigma_squared).draw_many(n, entropy)
        total = np.zeros(n, np.int64)
        for _ in range(n_shares):
            total += self.draw_share(n, entropy)
        return total

    def variance(self, n_shares: int | None = None) -> float:
        """Return the variance of the noise on one sum of n_shares shares, by default n_honest."""
        return compute_gaussian_variance(self.sigma_squared) * (
            self.n_honest if n_shares is None else n_shares
        )
