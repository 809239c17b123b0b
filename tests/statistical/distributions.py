"""Distributions to compare with: of a sampler's own thresholds, and of the formulas.

The statistical tests and the unit tests of `shoal.mechanisms` call these functions. A realised
distribution must use only the chances that the sampler draws with, never the formula.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from shoal.mechanisms.bernoulli import BernoulliSampler
from shoal.mechanisms.laplace import GeometricSampler, LaplaceSampler
from tests.statistical.harness import fits, tally

Pmf = npt.NDArray[np.float64]


def realised_geometric(sampler: GeometricSampler, n: int) -> Pmf:
    """Return P(0), ..., P(n - 1) of a geometric sampler, from its Bernoulli samplers."""
    pmf = np.array([1.0])
    for digit in sampler._digits:
        tails, heads = 1 - _chance(digit), _chance(digit)
        pmf = np.concatenate([pmf * tails, pmf * heads])
    top = _chance(sampler._top)
    blocks = [pmf * (1 - top) * top**k for k in range(-(-n // pmf.size))]
    return np.concatenate(blocks)[:n]


def realised_laplace(sampler: LaplaceSampler, n: int) -> Pmf:
    """Return P(-n), ..., P(n) of a discrete Laplace sampler, from its Bernoulli samplers.

    The sign is fair.
    """
    side = realised_geometric(sampler._geometric, n) * _chance(sampler._nonzero_sampler) / 2
    return np.concatenate([side[::-1], [1 - _chance(sampler._nonzero_sampler)], side])


def geometric(rate: float, n: int) -> Pmf:
    """Return P(0), ..., P(n - 1) by the formula."""
    return -math.expm1(-rate) * np.exp(-rate * np.arange(n))


def laplace(rate: float, n: int) -> Pmf:
    """Return P(-n), ..., P(n) by the formula."""
    return math.tanh(rate / 2) * np.exp(-rate * np.abs(np.arange(-n, n + 1)))


def gaussian(sigma_squared: float, n: int) -> Pmf:
    """Return P(-n), ..., P(n) by the formula."""
    reach = max(n, math.ceil(40 * math.sqrt(sigma_squared)))
    mass = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * sigma_squared)).sum()
    return np.exp(-(np.arange(-n, n + 1.0) ** 2) / (2 * sigma_squared)) / mass


def noisy_max(scores: tuple[int, ...], noise: Pmf) -> Pmf:
    """Return the chance of each winner of argmax(score + noise), first index on ties.

    It sums over every value of the winner.
    """
    reach = max(scores) + noise.size
    chances_to_win = []
    for i, score in enumerate(scores):
        at = _shift(noise, score, reach)
        for j, other in enumerate(scores):
            if j != i:
                up_to = np.cumsum(_shift(noise, other, reach))
                at = at * (up_to if j > i else np.concatenate([[0.0], up_to[:-1]]))
        chances_to_win.append(at.sum())
    return np.array(chances_to_win)


def fits_pmf(
    drawn: npt.ArrayLike, first: int, pmf: Pmf, alpha: float, min_expected: float = 30.0
) -> bool:
    """Return whether a sample fits a distribution on first, first + 1, ... and the rest.

    Neighbouring values are grouped until each group has enough expected draws to be tested.
    """
    values = np.asarray(drawn)
    counts = tally(values, range(first, first + pmf.size))
    chances = np.append(pmf, max(0.0, 1 - pmf.sum()))
    starts, expected = [0], 0.0
    for i, chance in enumerate(chances):
        if expected >= min_expected:
            starts.append(i)
            expected = 0.0
        expected += chance * values.size
    if expected < min_expected:
        starts.pop()
    return fits(np.add.reduceat(counts, starts), np.add.reduceat(chances, starts), alpha)


def _shift(noise: Pmf, by: int, reach: int) -> Pmf:
    return np.concatenate([np.zeros(by), noise, np.zeros(reach)])[:reach]


def _chance(sampler: BernoulliSampler) -> float:
    return float(sampler.chance)
