"""k-closest: report a unit vector as one of M random directions.

DDML's devices call it. Each of the k directions nearest to the private one is more likely to be
reported than each other.

The choice is exact: a Bernoulli sample decides between near and far, and a uniform integer chooses
among them. Floats decide which directions are near, but this does not affect privacy: for any k of
the M that count as near, each is more likely by the same factor. The directions themselves do not
depend on the data, so publishing or hiding them changes nothing. No digit that is sent depends on
the data in any other way.

Random directions are not secret: a mechanism that chooses among random directions is private for
any directions. So they may be drawn in single precision, which changes their utility by less than a
millionth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import MechanismError
from shoal.mechanisms.base import check_epsilon
from shoal.mechanisms.bernoulli import BernoulliSampler
from shoal.mechanisms.exact import log_up
from shoal.mechanisms.frequency_oracle import WORD
from shoal.mechanisms.subset_selection import compute_keep_numerator
from shoal.privacy.events import Event, Scope

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

_BLOCK = 1 << 15
_N_NODES = 1 << 15
_MAX_X = 12.0
"""Nodes lie at x from -12 to 12; beyond, every integrand is negligible."""
_MAX_DEVIATIONS = 13.0
"""Largest relevant angle, in standard deviations of a coordinate of a random direction."""
_TINY = 1e-300


def draw_normals(n: int, entropy: Entropy) -> Floats:
    """Draw ``(n,)`` independent standard normal numbers, for simulations.

    Notes
    -----
    Ref: Box and Muller 1958. The radius is made of 23 bits and ends at 5.8, so that none is
    infinite, nor zero.
    """
    return _draw_singles(n, entropy).astype(np.float64)


def draw_directions(n: int, p: int, entropy: Entropy) -> Singles:
    """Draw ``(n, p)`` rows in independent uniform directions; their lengths are arbitrary."""
    return _draw_singles(n * p, entropy).reshape(n, p)


def _draw_singles(n: int, entropy: Entropy) -> Singles:
    drawn = np.empty(n, np.float32)
    for start in range(0, n, _BLOCK):
        part = drawn[start : start + _BLOCK]
        half = -(-part.size // 2)
        words = entropy.words(2 * half, np.uint32)
        # Half a unit above 23 bits is exact in single precision: the number is never rounded to 1,
        # which would give a radius of 0.
        chance = ((words[:half] >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(
            2.0**-23
        )
        radius = np.sqrt(np.float32(-2) * np.log(chance))
        angle = words[half:].astype(np.float32) * np.float32(2 * math.pi / 2**32)
        part[:half] = radius * np.cos(angle)
        part[half:] = (radius * np.sin(angle))[: part.size - half]
    return drawn


@dataclass(frozen=True, eq=False)
class CosineDistribution:
    """The distribution of T = <v, u> for a fixed direction v and a uniform direction u.

    It is given on nodes from -1 to 1, for p dimensions.

    Parameters
    ----------
    values
        t of each node, rising.
    mass
        Weights of the nodes: their sum with any smooth function is its mean.
    cdf
        Probability that T is below t. By symmetry, read backwards, the probability that it is
        above.
    partial_mean
        Mean of T if it is above t, and of 0 otherwise.

    Notes
    -----
    The angle from the equator has the density c cos^(p-2). Nodes are equidistant in x, with the
    angle equal to its largest relevant value times tanh x: every integrand vanishes at both ends,
    and the plain sum is almost exact. Means of the largest of up to 4,096 are right to a part in
    10^6.
    """

    values: Floats
    mass: Floats
    cdf: Floats
    partial_mean: Floats

    @cached_property
    def _log_cdf(self) -> Floats:
        # If the probability underflows, so does the mass that it is multiplied with.
        return np.log(np.maximum(self.cdf, _TINY))

    def compute_top_sum(self, n: int, k: int) -> float:
        """Return the expected sum of the k largest of n independent T.

        Notes
        -----
        It is n times the mean of T if T is among them. Integrated by parts, that is the mean of
        ``partial_mean`` at the border between the k largest and the rest.
        """
        return n * float(np.sum(self.partial_mean * self._border_density(n, k)))

    def compute_mixture_cdf(self, n: int, k: int, near: float) -> Floats:
        """Return the probability of less than t, at each node, for a mixture.

        The mixture is any of the k largest of n with probability ``near``, and any of the others
        otherwise.
        """
        among = _integrate(_integrate(self._border_density(n, k)) * self.mass)
        chances = near * n / k * among + (1 - near) * n / (n - k) * (self.cdf - among)
        return np.maximum.accumulate(chances / chances[-1])

    def _border_density(self, n: int, k: int) -> Floats:
        """Return the distribution of the k-th largest of n - 1.

        It is the rate at which the probability to be among the k largest of n grows with t.
        """
        log_size = math.lgamma(n) - math.lgamma(k) - math.lgamma(n - k)
        density: Floats = (
            np.exp(log_size + (n - k - 1) * self._log_cdf + (k - 1) * self._log_cdf[::-1])
            * self.mass
        )
        return density


@lru_cache(maxsize=16)
def make_cosine_distribution(p: int) -> CosineDistribution:
    """Return the cached distribution in p >= 2 dimensions; making it takes milliseconds."""
    x = np.linspace(-_MAX_X, _MAX_X, _N_NODES)
    # The distance to the pole, without loss of digits if it is tiny; in many dimensions no
    # direction is near a pole.
    reach = min(math.pi / 2, _MAX_DEVIATIONS / math.sqrt(p))
    from_pole = math.pi / 2 - reach + reach * 2 / (1 + np.exp(2 * np.abs(x)))
    log_cosine = np.log(np.sin(from_pole))
    mass = np.exp((p - 2) * log_cosine) / np.cosh(x) ** 2
    cdf = _integrate(mass)
    total = float(cdf[-1])
    density = 1 / (total * reach * (x[1] - x[0]))
    partial_mean = density * np.exp((p - 1) * log_cosine) / (p - 1)
    return CosineDistribution(
        np.sign(x) * np.cos(from_pole), mass / total, cdf / total, partial_mean
    )


def _integrate(values: Floats) -> Floats:
    """Return the integral up to each node, in steps of 1, by cubics through four nodes.

    The integrand vanishes at both ends.
    """
    padded = np.pad(values, (2, 1))
    pieces = 13 * (padded[1:-2] + padded[2:-1]) - padded[:-3] - padded[3:]
    integral: Floats = np.cumsum(pieces) / 24
    return integral


_DEFAULT_DIRECTIONS, _MIN_DIRECTIONS, _MAX_DIRECTIONS = 256, 16, 4096
_MAX_NUMBERS = 1 << 24
"""Directions of a report take at most 64 MiB, and about a tenth of a second."""


def choose_n_directions(epsilon: float, dimension: int) -> int:
    """Return M: 256, doubled for each 1.5 of epsilon above 4; fewer in large dimensions.

    Notes
    -----
    Compared with infinitely many, 256 directions have 0.7 % more variance at epsilon 1 and 1.5 % at
    4. At 8, where they would have 11 %, there are 2,048, with 1.7 %; at 12 there are 4,096, with 11
    %. Fewer are used if they would take too long.
    """
    wanted = min(_MAX_DIRECTIONS, _DEFAULT_DIRECTIONS << max(0, math.ceil((epsilon - 4) / 1.5)))
    affordable = 1 << max(1, _MAX_NUMBERS // dimension).bit_length() - 1
    return max(_MIN_DIRECTIONS, min(wanted, affordable))


@dataclass(frozen=True)
class _KClosestSetting:
    """The parameters k and q, and their alignment.

    ``near`` is the numerator over 2^64 of the probability that a near direction is reported.
    """

    k: int
    near: int
    alignment: float


@lru_cache(maxsize=64)
def _find_best_setting(epsilon: Fraction, p: int, M: int) -> _KClosestSetting:
    """Return the setting of largest alignment.

    Notes
    -----
    The sum of the k largest is concave in k, and the alignment is that sum over a linear function
    of k: it rises to its maximum and then falls.
    """
    law = make_cosine_distribution(p)
    low, high = 1, M - 1
    while low < high:
        middle = (low + high) // 2
        if (
            _make_setting(epsilon, law, M, middle).alignment
            < _make_setting(epsilon, law, M, middle + 1).alignment
        ):
            low = middle + 1
        else:
            high = middle
    return _make_setting(epsilon, law, M, low)


def _make_setting(epsilon: Fraction, law: CosineDistribution, M: int, k: int) -> _KClosestSetting:
    near = compute_keep_numerator(epsilon, M, k)
    # The mean over all M is zero: the surplus of the near ones is the deficit of the far ones.
    gain = Fraction(near, WORD * k) - Fraction(WORD - near, WORD * (M - k))
    return _KClosestSetting(k, near, float(gain) * law.compute_top_sum(M, k))


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
        m: the expected inner product of the reported direction with the private one; a report
        divided by it is unbiased.

    Notes
    -----
    An exact relative of PrivUnit (Bhowmick et al. 2018), similar to subset selection (Ye and Barg
    2018): a cap of the sphere becomes the k nearest of M directions. The second moment of an
    unbiased report, 1 / m^2, is between .98 and 1.01 of that of PrivUnit with Gaussian noise for p
    = 51 or 97 and epsilon 1 or 4.

    Privacy
    -------
    epsilon-DP for one report, under replacement of the direction by any other: given the M
    directions, each is reported with probability q / k if it is near and (1 - q) / (M - k) if not.
    q is a multiple of 2^-64, and the price is that of the realised ratio.

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
                "MECH-001",
                f"dimension = {dimension}: a direction has at least 2 coordinates.",
                fix="Use discrete Laplace noise for a single number.",
            )
        self.epsilon = epsilon
        self.dimension = dimension
        self.scope = scope
        self.n_directions = choose_n_directions(epsilon, dimension)
        self._setting = _find_best_setting(exact, dimension, self.n_directions)
        self.n_near = self._setting.k
        self.alignment = self._setting.alignment
        self._near_sampler = BernoulliSampler.dyadic(self._setting.near)

    @property
    def near_chance(self) -> Fraction:
        """q, the exact probability that a near direction is reported."""
        return self._near_sampler.chance

    def event(self) -> Event:
        """Return one report for the accountant, priced by its realised probabilities.

        The price is never above the requested epsilon.
        """
        M, k, q = self.n_directions, self.n_near, self.near_chance
        parameters = {
            "dimension": self.dimension,
            "directions": M,
            "near": k,
            "near_numerator": self._setting.near,
        }
        return Event(self.name, parameters, self.scope, log_up(q * (M - k) / ((1 - q) * k)))

    def randomise(self, direction: Floats, entropy: Entropy) -> Floats:
        """Return the reported direction, a unit vector, for the private one.

        The M directions are new for each report: two reports share nothing.
        """
        public = draw_directions(self.n_directions, self.dimension, entropy)
        reported: Floats = public[
            self.choose(self.compute_products(public, direction), entropy)
        ].astype(np.float64)
        reported /= np.linalg.norm(reported)
        return reported

    def compute_products(self, public: Singles, direction: Floats) -> Singles:
        """Return ``(M,)`` inner products of the private direction with the public ones."""
        products: Singles = public @ direction.astype(np.float32)
        products /= np.sqrt(np.einsum("ij,ij->i", public, public))
        return products

    def choose(self, products: Singles, entropy: Entropy) -> int:
        """Choose the reported direction by the inner products with the private one.

        This is the only step of a report that depends on private data.
        """
        n_far = self.n_directions - self.n_near
        order = np.argpartition(products, n_far)
        if self._near_sampler.sample(entropy):
            return int(order[n_far + entropy.below(self.n_near)])
        return int(order[entropy.below(n_far)])

    def draw_alignments(self, n: int, entropy: Entropy) -> Floats:
        """Draw ``(n,)`` inner products of n independent reports with their private direction.

        The reports are not drawn. Given the inner product, the rest of a report is uniform on the
        sphere orthogonal to the private direction, which is enough to simulate a population.
        """
        uniform = (
            (entropy.words(n, np.uint64) >> np.uint64(11)).astype(np.float64) + 0.5
        ) * 2.0**-53
        law, chances = self._alignment_distribution
        return np.interp(uniform, chances, law)

    @property
    def _alignment_distribution(self) -> tuple[Floats, Floats]:
        return _compute_alignment_quantiles(
            self.dimension, self.n_directions, self.n_near, float(self.near_chance)
        )

    def variance(self) -> float:
        """Return the mean variance of one coordinate of a report divided by the alignment."""
        return (1 / self.alignment**2 - 1) / self.dimension

    def expected_error(self, n: int = 1) -> float:
        """Return the root mean square error of the mean of n unbiased reports."""
        return math.sqrt(self.dimension * self.variance() / n)


@lru_cache(maxsize=16)
def _compute_alignment_quantiles(p: int, M: int, k: int, near: float) -> tuple[Floats, Floats]:
    """Return values of the inner product of a report with the private direction.

    The second array is the probability to be below each.
    """
    law = make_cosine_distribution(p)
    return law.values, law.compute_mixture_cdf(M, k, near)
