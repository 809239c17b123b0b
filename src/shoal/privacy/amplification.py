"""Privacy amplification by shuffling.

The plan of a study calls `amplify` for the central guarantee of a shuffled batch.

Each of n people sends one message of a local epsilon. By the clones argument, every other message
is, with chance gamma = exp(-epsilon_local), distributed like a message of the victim with either
value, and a fair coin decides which. So a reader of the shuffled batch can do no better than to
distinguish these two pairs (replace one, either direction, by symmetry):

    C ~ Bin(n - 1, gamma)    A ~ Bin(C, 1/2)
    D ~ Bernoulli(a), a = e^epsilon_local / (e^epsilon_local + 1)
    (A + D, C - A + 1 - D)   against   (A + 1 - D, C - A + D)

The delta of the pair is summed over all likely C. Invariant: every rounding and every omitted term
is added on top, so a result is never below the bound.

Ref: Feldman, McMillan, Talwar 2021, "Hiding Among the Clones", Section 3, in its numeric form. The
later paper of the same authors is not used: its erratum restricts the theorems as first published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.errors import SpecError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MAX_MESSAGES = 10**8
"""A larger batch counts as one of this size: more messages never reveal more."""

_SLACK = 1e-10
"""Bound on the relative error of `binomial_pmf` and of its sums (measured: below 1e-11)."""
_WIDTH = 12.0
_PRECISION = 1e-6
_GRAIN = 1e-12
_MIN_GAIN = 0.999


def amplify(epsilon_local: float, n: int, delta: float) -> float:
    """Return the central epsilon of n shuffled messages, one per person.

    The bound holds for every randomiser with this local epsilon.

    Parameters
    ----------
    epsilon_local
        Guarantee of each message alone; delta 0.
    n
        Number of honest messages that are released together in an order that carries no
        information, the protected one included.
    delta
        Probability with which the central guarantee may fail, in (0, 1).

    Returns
    -------
    float
        Never below the bound of the theorem and never above ``epsilon_local``, which is the result
        if the batch is too small.

    Privacy
    -------
    Unit person, relation replace, against those who see nothing but the shuffled batch; the local
    guarantee also holds.

    Examples
    --------
    >>> round(amplify(1.0, 10_000, 1e-6), 3)
    0.053
    """
    return _search_epsilon(_make_clone_distribution(epsilon_local, n), delta)


def binomial_pmf(k: Ints, n: Ints | np.int64, p: float, q: float) -> Floats:
    """Return the probabilities of k successes in n, elementwise.

    p + q = 1; both are arguments so that neither loses digits.

    Notes
    -----
    Loader's saddle-point form: the large terms cancel on paper instead of in floats, so that the
    relative error stays below 1e-11 for n up to 10^8 within a dozen standard deviations, where
    differences of log-gammas would lose eight digits.
    """
    k, n = np.broadcast_arrays(k, n)
    is_edge = (k == 0) | (k == n)
    j, m = np.where(is_edge, 1, k).astype(np.float64), np.where(is_edge, 2, n).astype(np.float64)
    i = m - j
    log_chance = (
        _stirling_error(m)
        - _stirling_error(j)
        - _stirling_error(i)
        - _deviance(j, m * p)
        - _deviance(i, m * q)
    )
    inner = np.sqrt(m / (2 * math.pi * j * i)) * np.exp(log_chance)
    # Near 1 the logarithm is computed from the other probability, which keeps all digits.
    log_p, log_q = (
        math.log(p) if p < 0.5 else math.log1p(-q),
        math.log(q) if q < 0.5 else math.log1p(-p),
    )
    return np.where(is_edge, np.exp(k * log_p + (n - k) * log_q), inner)


def _stirling_error(k: Floats) -> Floats:
    """Return the logarithm of k! minus Stirling's formula.

    The series alternates, so from 16 on the error is less than 1 / (1188 k^9).
    """
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * k**2)) / k**2) / k**2) / k
    return np.where(
        k < len(_STIRLING_TABLE),
        _STIRLING_TABLE[np.minimum(k, len(_STIRLING_TABLE) - 1).astype(np.int64)],
        series,
    )


_STIRLING_TABLE = np.array(
    [0.0]
    + [
        math.lgamma(k + 1) - (k + 0.5) * math.log(k) + k - math.log(2 * math.pi) / 2
        for k in range(1, 16)
    ]
)


def _deviance(x: Floats, mean: Floats) -> Floats:
    """Return the part x log(x / mean) + mean - x of the exponent."""
    u = (x - mean) / mean
    return mean * ((1 + u) * np.log1p(u) - u)


@dataclass(frozen=True, slots=True)
class _CloneDistribution:
    """The likely numbers of clones; computed once and used for all epsilons."""

    epsilon_local: float
    clones: Ints
    """(m,) all likely numbers of clones, consecutive."""
    chances: Floats
    """(m,) their probabilities."""
    unlikely: float
    """Bound on the probability of all other numbers."""

    def delta_at(self, epsilon: float) -> float:
        """Return the sum over C of its probability times the delta given C, rounded up.

        Given C = c, values of the first number x from a threshold on favour the first distribution
        (the likelihood ratio rises in x). There delta is (e^local - e^epsilon) / (e^local + 1) P(A
        = x - 1) minus (e^epsilon - 1) P(A >= x).
        """
        if epsilon >= self.epsilon_local:
            return 0.0
        big, ratio = math.exp(self.epsilon_local), math.exp(epsilon)
        slope = (ratio * big - 1) / ((big - 1) * (1 + ratio))
        start = np.minimum(np.ceil((self.clones + 1) * slope), self.clones + 1).astype(np.int64)
        at_start = binomial_pmf(start - 1, self.clones, 0.5, 0.5)
        beyond, doubt = _compute_tails(start, self.clones)
        gain = (big - ratio) / (big + 1)
        given = (gain + _SLACK) * at_start - math.expm1(epsilon) * np.maximum(
            beyond - doubt, 0.0
        ) * (1 - _SLACK)
        total = float((self.chances * np.clip(given, 0.0, 1.0)).sum()) * (1 + 2 * _SLACK)
        return min(1.0, total + self.unlikely)


def _check_arguments(epsilon_local: float, n: int) -> None:
    if not (math.isfinite(epsilon_local) and 0 < epsilon_local <= 64):
        raise _shuffle_error(
            f"epsilon_local = {epsilon_local}", "The local epsilon is positive and at most 64."
        )
    if n < 1:
        raise _shuffle_error(f"n = {n}", "The batch contains at least the protected message.")


def _make_clone_distribution(epsilon_local: float, n: int) -> _CloneDistribution:
    _check_arguments(epsilon_local, n)
    others = min(n, MAX_MESSAGES) - 1
    p, q = math.exp(-epsilon_local), -math.expm1(-epsilon_local)
    mean, reach = others * p, _WIDTH * math.sqrt(others * p * q) + 30
    low, high = max(0, math.floor(mean - reach)), min(others, math.ceil(mean + reach))
    clones = np.arange(low, high + 1, dtype=np.int64)
    unlikely = _chernoff_bound(low - 1, others, p, q) + _chernoff_bound(high + 1, others, p, q)
    return _CloneDistribution(
        epsilon_local, clones, binomial_pmf(clones, np.int64(others), p, q), unlikely
    )


def _chernoff_bound(k: int, n: int, p: float, q: float) -> float:
    """Bound the probability of k or further out, on k's side of the mean.

    The bound is 0 if k is out of range.
    """
    if not 0 <= k <= n:
        return 0.0
    exponent = sum(x * math.log(x / mean) for x, mean in ((k, n * p), (n - k, n * q)) if x)
    return math.exp(-exponent * (1 - 1e-6))


def _compute_tails(start: Ints, clones: Ints) -> tuple[Floats, Floats]:
    """Return P(A >= x) for A ~ Bin(c, 1/2), and a bound on the error.

    The values c are consecutive, and x stays or moves by one from each to the next.

    Notes
    -----
    Each tail follows from the one before: one coin more adds P(A = x - 1) / 2, and a step of x
    takes P(A = x) away.
    """
    # The far end is omitted: the subtracted term may be too small, never too large.
    end = min(int(clones[0]), int(start[0]) + math.ceil(_WIDTH * math.sqrt(clones[0]))) + 1
    first = np.arange(start[0], end, dtype=np.int64)
    opening = float(binomial_pmf(first, clones[0], 0.5, 0.5).sum())
    x, c = start[:-1], clones[:-1]
    coin = binomial_pmf(x - 1, c, 0.5, 0.5) / 2
    step = np.where(start[1:] > x, binomial_pmf(x, c + 1, 0.5, 0.5), 0.0)
    tails = opening + np.concatenate([[0.0], np.cumsum(coin - step)])
    return tails, _SLACK * (opening + np.concatenate([[0.0], np.cumsum(coin + step)]))


def _search_epsilon(distribution: _CloneDistribution, delta: float) -> float:
    """Return the smallest epsilon found that has a small enough delta.

    Each candidate is proved separately.
    """
    if not 0 < delta < 1:
        raise _shuffle_error(
            f"delta = {delta}",
            "Amplification by shuffling needs a probability of failure between 0 and 1.",
        )
    low, high = 0.0, distribution.epsilon_local
    while high - low > max(_PRECISION * high, _GRAIN):
        middle = (low + high) / 2
        if distribution.delta_at(middle) <= delta:
            high = middle
        else:
            low = middle
    return high if high < _MIN_GAIN * distribution.epsilon_local else distribution.epsilon_local


def _shuffle_error(what: str, why: str) -> SpecError:
    return SpecError("SHUFFLE-001", f"{what} cannot be used for a shuffled batch.", why=why)
