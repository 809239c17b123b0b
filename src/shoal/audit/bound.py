"""From samples of two neighbouring inputs to a lower bound on epsilon that holds with a stated confidence.

Under (epsilon, delta)-DP every set S of outputs has P1(S) <= exp(epsilon) P0(S) + delta. So a set that is seen too often under one
input and too seldom under the other refutes a claim. S is chosen on one half of the samples and counted on the other half; the
chances behind the counts are bounded by Chernoff's inequality, which holds at any number of samples. A bound can fall
short of the truth; that it lies above it happens with a chance of at most alpha.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.errors import UsageError
from shoal.privacy.zcdp import rho_to_epsilon

Keys = npt.NDArray[np.int64]

MIN_SAMPLES, MAX_SAMPLES = 1000, 100_000_000
_DOWN = 1 - 2.0**-30
"""More than what floats and the way to epsilon, which is rounded up, can add to a rho."""


def check_effort(samples: int, confidence: float, usual: int) -> None:
    """Refuse an audit that could say nothing, or would never end."""
    if not MIN_SAMPLES <= samples <= MAX_SAMPLES:
        raise UsageError(
            "USAGE-001", f"An audit cannot be made of {samples} samples.", fix=f"Give {MIN_SAMPLES} to {MAX_SAMPLES}; {usual} is usual."
        )
    if not 0.5 <= confidence <= 1 - 1e-12:
        raise UsageError("USAGE-001", f"A confidence of {confidence} means nothing.", fix="Give one from 0.5 to 1, such as 0.999.")


def divergence(a: float, b: float) -> float:
    """Kullback-Leibler divergence between coins of chance a and b, with 0 < b < 1."""
    heads = a * math.log(a / b) if a > 0 else 0.0
    tails = (1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0.0
    return heads + tails


def chance_at_least(hits: int, n: int, alpha: float) -> float:
    """A lower bound on the chance behind ``hits`` of n independent trials, too high with a chance of at most alpha.

    Notes
    -----
    Ref: Chernoff 1952. A coin of chance p shows a share of at least s > p with a chance of at most exp(-n divergence(s, p)).
    """
    if hits == 0:
        return 0.0
    share, most = hits / n, math.log(1 / alpha) / n
    low, high = 0.0, share
    while low < (middle := (low + high) / 2) < high:
        if divergence(share, middle) > most:
            low = middle
        else:
            high = middle
    return low


def chance_at_most(hits: int, n: int, alpha: float) -> float:
    """An upper bound on the chance behind ``hits`` of n independent trials, too low with a chance of at most alpha."""
    return 1 - chance_at_least(n - hits, n, alpha)


def epsilon_at_least(hits_1: int, hits_0: int, n: int, alpha: float, delta: float = 0.0) -> float:
    """A lower bound on epsilon from how often a set of outputs was hit in n trials with either of two neighbours.

    Either chance may be off with half of alpha. Nothing is learnt below 0, as epsilon is not negative.
    """
    often = chance_at_least(hits_1, n, alpha / 2) - delta
    seldom = chance_at_most(hits_0, n, alpha / 2)
    return max(0.0, math.log(often / seldom)) if often > 0 else 0.0


@dataclass(frozen=True, slots=True)
class EpsilonBound:
    """A lower bound on epsilon, and the counts that it stands on.

    Parameters
    ----------
    epsilon
        The bound; 0 where nothing was found.
    alpha
        The chance with which it may be too high.
    hits_1, hits_0, n
        How often the chosen set was hit in n trials with the one neighbour and with the other.
    """

    epsilon: float
    alpha: float
    hits_1: int
    hits_0: int
    n: int


def bound_epsilon(first: Keys, second: Keys, alpha: float, delta: float = 0.0) -> EpsilonBound:
    """The bound from equally many independent outputs of two neighbouring inputs, each output named by an integer."""
    half = first.size // 2
    sides = [(first, second), (second, first)]
    chosen = [choose_set(ones[:half], zeros[:half], alpha, delta) for ones, zeros in sides]
    _, best_set, (ones, zeros) = max(
        ((promise, outputs, side) for (promise, outputs), side in zip(chosen, sides, strict=True)), key=lambda choice: choice[0]
    )
    n = first.size - half
    hits_1 = int(np.isin(ones[half:], best_set).sum())
    hits_0 = int(np.isin(zeros[half:], best_set).sum())
    return EpsilonBound(epsilon_at_least(hits_1, hits_0, n, alpha, delta), alpha, hits_1, hits_0, n)


def bound_rho(first: Keys, second: Keys, alpha: float, delta: float) -> EpsilonBound:
    """A lower bound on rho from the same outputs, stated as the epsilon that rho-zCDP has at delta.

    Notes
    -----
    Where neighbours have Rényi divergences of at most rho times their order, that of order 1 is at most rho, and so is the one between the
    chances of any set. Under Gaussian noise half of all outputs, those that speak for the one neighbour, show 2 / pi of rho, where
    a set that refutes an epsilon at a small delta is far out and hardly ever seen. Outputs must be numbered so that higher ones speak for
    the second neighbour; where the half lies is chosen on one half of the samples.

    Ref: Bun and Steinke 2016, Definition 1.1 and Lemma 2.2 (processing an output does not raise a divergence).
    """
    half = first.size // 2
    middle = np.median(np.concatenate([first[:half], second[:half]]))
    n = first.size - half
    hits_1, hits_0 = int((second[half:] > middle).sum()), int((first[half:] > middle).sum())
    often, seldom = chance_at_least(hits_1, n, alpha / 2), chance_at_most(hits_0, n, alpha / 2)
    rho = divergence(often, seldom) * _DOWN if often > seldom else 0.0
    return EpsilonBound(rho_to_epsilon(rho, delta) if rho > 0 else 0.0, alpha, hits_1, hits_0, n)


def choose_set(ones: Keys, zeros: Keys, alpha: float, delta: float) -> tuple[float, Keys]:
    """The set of outputs that promises the largest bound, and a rough figure for it.

    Outputs are ordered by how much likelier the first sample makes them; the best set is a head of that order (Neyman and Pearson). The
    promise is the bound with normal tails; how it is found has no influence on the validity of what other samples then show.
    """
    outputs, at = np.unique(np.concatenate([ones, zeros]), return_inverse=True)
    counts_1 = np.bincount(at[: ones.size], minlength=outputs.size)
    counts_0 = np.bincount(at[ones.size :], minlength=outputs.size)
    order = np.argsort(-(counts_1 + 1) / (counts_0 + 1), kind="stable")
    share_1 = np.cumsum(counts_1[order]) / ones.size
    share_0 = np.cumsum(counts_0[order]) / zeros.size
    z_squared = 2 * math.log(2 / alpha)
    often = share_1 - np.sqrt(z_squared * share_1 / ones.size) - delta
    seldom = share_0 + np.sqrt(z_squared * share_0 / zeros.size) + z_squared / zeros.size
    promises = np.where(often > 0, np.log(np.maximum(often, 1e-300) / seldom), -np.inf)
    best = int(np.argmax(promises))
    return float(promises[best]), outputs[order[: best + 1]]
