"""Lower bounds on epsilon from samples of the outputs for two neighbouring inputs.

All audits call this module. Under (epsilon, delta)-DP each set S of outputs satisfies
P1(S) <= exp(epsilon) P0(S) + delta. A set that is too frequent under one input and too rare
under the other refutes a claim. S is chosen on one half of the samples and counted on the other
half; a change must keep the two halves apart. Chernoff's inequality bounds the probabilities
behind the counts, for any number of samples. A bound can be below the true epsilon; it is above
it with probability at most alpha.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.errors import UsageError
from shoal.privacy.accountant import rho_to_epsilon

Keys = npt.NDArray[np.int64]

MIN_SAMPLES, MAX_SAMPLES = 1000, 100_000_000
_DOWN = 1 - 2.0**-30
"""A factor that removes more from a rho than floats and the rounding up to epsilon can add."""


def check_effort(samples: int, confidence: float, usual: int) -> None:
    """Raise UsageError if the samples or the confidence are out of range."""
    if not MIN_SAMPLES <= samples <= MAX_SAMPLES:
        raise UsageError(
            "USAGE-001",
            f"{samples} samples: the number is out of range.",
            fix=f"Give {MIN_SAMPLES} to {MAX_SAMPLES}; the default is {usual}.",
        )
    if not 0.5 <= confidence <= 1 - 1e-12:
        raise UsageError(
            "USAGE-001",
            f"A confidence of {confidence} is out of range.",
            fix="Give a number from 0.5 to below 1, such as 0.999.",
        )


def compute_divergence(a: float, b: float) -> float:
    """Return the Kullback-Leibler divergence between Bernoulli(a) and Bernoulli(b), 0 < b < 1."""
    heads = a * math.log(a / b) if a > 0 else 0.0
    tails = (1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0.0
    return heads + tails


def lower_bound_chance(hits: int, n: int, alpha: float) -> float:
    """Return a lower bound on the probability behind ``hits`` of n independent trials.

    The bound is too high with probability at most alpha.

    Notes
    -----
    Ref: Chernoff 1952. A Bernoulli(p) variable has a share of at least s > p of successes with
    probability at most exp(-n divergence(s, p)).
    """
    if hits == 0:
        return 0.0
    share, most = hits / n, math.log(1 / alpha) / n
    low, high = 0.0, share
    while low < (middle := (low + high) / 2) < high:
        if compute_divergence(share, middle) > most:
            low = middle
        else:
            high = middle
    return low


def upper_bound_chance(hits: int, n: int, alpha: float) -> float:
    """Return an upper bound on the probability behind ``hits`` of n independent trials.

    The bound is too low with probability at most alpha.
    """
    return 1 - lower_bound_chance(n - hits, n, alpha)


def lower_bound_epsilon(
    hits_1: int, hits_0: int, n: int, alpha: float, delta: float = 0.0
) -> float:
    """Return a lower bound on epsilon from the counts of one set of outputs.

    The set was hit ``hits_1`` and ``hits_0`` times in n trials with each of two neighbours. Each
    of the two probabilities may be wrong with probability alpha / 2. The bound is at least 0, as
    epsilon is not negative.
    """
    often = lower_bound_chance(hits_1, n, alpha / 2) - delta
    seldom = upper_bound_chance(hits_0, n, alpha / 2)
    return max(0.0, math.log(often / seldom)) if often > 0 else 0.0


@dataclass(frozen=True, slots=True)
class EpsilonBound:
    """A lower bound on epsilon, and the counts that it follows from.

    Parameters
    ----------
    epsilon
        The bound; 0 if the samples show no difference.
    alpha
        Probability that the bound is too high.
    hits_1, hits_0, n
        How often the chosen set was hit in n trials with each of the two neighbours.
    """

    epsilon: float
    alpha: float
    hits_1: int
    hits_0: int
    n: int


def bound_epsilon(first: Keys, second: Keys, alpha: float, delta: float = 0.0) -> EpsilonBound:
    """Return a lower bound on epsilon from independent outputs of two neighbouring inputs.

    Both samples have the same size, and each output is named by an integer.
    """
    half = first.size // 2
    sides = [(first, second), (second, first)]
    chosen = [choose_set(ones[:half], zeros[:half], alpha, delta) for ones, zeros in sides]
    _, best_set, (ones, zeros) = max(
        (
            (estimate, outputs, side)
            for (estimate, outputs), side in zip(chosen, sides, strict=True)
        ),
        key=lambda choice: choice[0],
    )
    n = first.size - half
    hits_1 = int(np.isin(ones[half:], best_set).sum())
    hits_0 = int(np.isin(zeros[half:], best_set).sum())
    return EpsilonBound(
        lower_bound_epsilon(hits_1, hits_0, n, alpha, delta), alpha, hits_1, hits_0, n
    )


def bound_rho(first: Keys, second: Keys, alpha: float, delta: float) -> EpsilonBound:
    """Return a lower bound on rho, stated as the epsilon of rho-zCDP at delta.

    Notes
    -----
    If the Rényi divergences of neighbours are at most rho times their order, the divergence of
    order 1 is at most rho, and so is the divergence between the probabilities of any set. Under
    Gaussian noise the half of all outputs that is likelier for one neighbour shows 2 / pi of rho. A
    set that refutes an epsilon at a small delta is in the far tail and is hardly ever seen. Outputs
    must be numbered so that higher ones are likelier for the second neighbour; the cut between the
    halves is chosen on one half of the samples.

    Ref: Bun and Steinke 2016, Definition 1.1 and Lemma 2.2 (processing an output does not raise a
    divergence).
    """
    half = first.size // 2
    middle = np.median(np.concatenate([first[:half], second[:half]]))
    n = first.size - half
    hits_1, hits_0 = int((second[half:] > middle).sum()), int((first[half:] > middle).sum())
    often, seldom = (
        lower_bound_chance(hits_1, n, alpha / 2),
        upper_bound_chance(hits_0, n, alpha / 2),
    )
    rho = compute_divergence(often, seldom) * _DOWN if often > seldom else 0.0
    return EpsilonBound(rho_to_epsilon(rho, delta) if rho > 0 else 0.0, alpha, hits_1, hits_0, n)


def choose_set(ones: Keys, zeros: Keys, alpha: float, delta: float) -> tuple[float, Keys]:
    """Return the set of outputs with the largest expected bound, and an estimate of the bound.

    Outputs are sorted by their likelihood ratio in the first sample; the best set is a prefix of
    that order (Neyman and Pearson). The estimate is the bound with normal tails. The choice does
    not affect the validity of the bound, which other samples give.
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
    estimates = np.where(often > 0, np.log(np.maximum(often, 1e-300) / seldom), -np.inf)
    best = int(np.argmax(estimates))
    return float(estimates[best]), outputs[order[: best + 1]]
