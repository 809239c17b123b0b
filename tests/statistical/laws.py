"""Laws to compare with: from the thresholds that a sampler really uses, and from the formulas."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from shoal.mechanisms.coins import Coin
from shoal.mechanisms.laplace import GeometricSampler, LaplaceSampler
from statistical.harness import fits, tally

Law = npt.NDArray[np.float64]


def realised_geometric(sampler: GeometricSampler, n: int) -> Law:
    """P(0), ..., P(n - 1) of a geometric sampler, from the chances of its coins."""
    law = np.array([1.0])
    for digit in sampler._digits:
        tails, heads = 1 - _chance(digit), _chance(digit)
        law = np.concatenate([law * tails, law * heads])
    top = _chance(sampler._top)
    blocks = [law * (1 - top) * top**k for k in range(-(-n // law.size))]
    return np.concatenate(blocks)[:n]


def realised_laplace(sampler: LaplaceSampler, n: int) -> Law:
    """P(-n), ..., P(n) of a discrete Laplace sampler, from the chances of its coins and a fair sign."""
    side = realised_geometric(sampler._geometric, n) * _chance(sampler._is_nonzero) / 2
    return np.concatenate([side[::-1], [1 - _chance(sampler._is_nonzero)], side])


def geometric(rate: float, n: int) -> Law:
    """P(0), ..., P(n - 1) by the formula."""
    return -math.expm1(-rate) * np.exp(-rate * np.arange(n))


def laplace(rate: float, n: int) -> Law:
    """P(-n), ..., P(n) by the formula."""
    return math.tanh(rate / 2) * np.exp(-rate * np.abs(np.arange(-n, n + 1)))


def gaussian(sigma_squared: float, n: int) -> Law:
    """P(-n), ..., P(n) by the formula."""
    reach = max(n, math.ceil(40 * math.sqrt(sigma_squared)))
    mass = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * sigma_squared)).sum()
    return np.exp(-(np.arange(-n, n + 1.0) ** 2) / (2 * sigma_squared)) / mass


def noisy_max(scores: tuple[int, ...], noise: Law) -> Law:
    """The chance of each winner of argmax(score + noise), first index on ties, by summing over every value of the winner."""
    reach = max(scores) + noise.size
    found = []
    for i, score in enumerate(scores):
        at = _shifted(noise, score, reach)
        for j, other in enumerate(scores):
            if j != i:
                up_to = np.cumsum(_shifted(noise, other, reach))
                at = at * (up_to if j > i else np.concatenate([[0.0], up_to[:-1]]))
        found.append(at.sum())
    return np.array(found)


def looks_like(drawn: npt.ArrayLike, first: int, law: Law, alpha: float, min_expected: float = 30.0) -> bool:
    """Whether a sample fits a law on first, first + 1, ... and the rest, in groups of neighbours with enough expected to be judged."""
    values = np.asarray(drawn)
    counts = tally(values, range(first, first + law.size))
    chances = np.append(law, max(0.0, 1 - law.sum()))
    starts, expected = [0], 0.0
    for i, chance in enumerate(chances):
        if expected >= min_expected:
            starts.append(i)
            expected = 0.0
        expected += chance * values.size
    if expected < min_expected:
        starts.pop()
    return fits(np.add.reduceat(counts, starts), np.add.reduceat(chances, starts), alpha)


def _shifted(noise: Law, by: int, reach: int) -> Law:
    return np.concatenate([np.zeros(by), noise, np.zeros(reach)])[:reach]


def _chance(coin: Coin) -> float:
    return float(coin.chance)
