"""Privacy amplification by shuffling: what the crowd adds when nobody can tell whose message is whose.

Each of n people sends one message of a local epsilon. By the clones argument, every other message is, with chance
gamma = exp(-epsilon_local), as good as a message of the victim's with either value, a fair coin deciding which. So a reader of the
shuffled batch can do no better than tell these two pairs apart (replace one, either direction, by symmetry):

    C ~ Bin(n - 1, gamma)    A ~ Bin(C, 1/2)    D ~ Bernoulli(a), a = e^epsilon_local / (e^epsilon_local + 1)
    (A + D, C - A + 1 - D)   against   (A + 1 - D, C - A + D)

For binary random response gamma = 2 / (e^epsilon_local + 1), the chance that a message is a coin; this pair still tells a reader
more than the batch does, and for crowds of up to `MAX_EXACT` the exact figure, the worst over all data of the others, is computed
instead. The delta of the pair is summed over all likely C, and every rounding and everything left out is added on top, so
an answer is never below the bound.

Ref: Feldman, McMillan, Talwar 2021, "Hiding Among the Clones", Section 3, in its numeric form.
The later paper of the same authors is not used: its erratum restricts the theorems as first published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shoal.errors import SpecError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MAX_MESSAGES = 10**8
"""A larger crowd is counted as one of this size, which is safe: more messages never reveal more."""

MAX_EXACT = 1_000
"""Largest crowd of binary random response that is computed exactly; beyond it, a bound."""

_SLACK = 1e-10
"""Bound on the relative error of `binomial_pmf` (measured: below 1e-11), and so of sums of it."""
_WIDTH = 12.0
_PRECISION = 1e-6
_GRAIN = 1e-12
_WORTH_SAYING = 0.999


def amplify(epsilon_local: float, n: int, delta: float) -> float:
    """The central epsilon of n shuffled messages, one per person, of any randomiser with this local epsilon.

    Parameters
    ----------
    epsilon_local
        Guarantee of each message by itself; delta 0.
    n
        Honest messages that are released at once, in an order that says nothing, the protected one included.
    delta
        Chance with which the central guarantee may fail, in (0, 1).

    Returns
    -------
    float
        Never below the bound of the theorem and never above ``epsilon_local``, which it is in a crowd too small to hide in.

    Privacy
    -------
    Unit person, relation replace, against those who see nothing but the shuffled batch; the local guarantee holds besides.

    Examples
    --------
    >>> round(amplify(1.0, 10_000, 1e-6), 3)
    0.053
    """
    return _search(_crowd(epsilon_local, n, is_binary=False), delta)


def amplify_binary(epsilon_local: float, n: int, delta: float) -> float:
    """`amplify` for binary random response alone (one bit, kept or flipped), for which the crowd hides better.

    Notes
    -----
    Met by two people, an upper bound for more: the pair also tells how many clones there are, which the batch does not.

    Examples
    --------
    >>> round(amplify_binary(1.0, 10_000, 1e-6), 3)
    0.043
    """
    bound = _search(_crowd(epsilon_local, n, is_binary=True), delta)
    # A larger crowd reveals no more than a part of it: the rest can be added by whoever reads the part.
    return min(bound, _search(_bits(epsilon_local, min(n, MAX_EXACT)), delta))


def delta_of(epsilon: float, epsilon_local: float, n: int, *, is_binary: bool = False) -> float:
    """The delta that goes with a central epsilon, rounded up; 0 from ``epsilon_local`` on.

    For binary random response it is exact up to `MAX_EXACT` messages, and a bound beyond.
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise _refused(f"epsilon = {epsilon}", "The central epsilon is a finite number, zero or more.")
    bound = _crowd(epsilon_local, n, is_binary=is_binary).delta(epsilon)
    return min(bound, _bits(epsilon_local, min(n, MAX_EXACT)).delta(epsilon)) if is_binary else bound


def binomial_pmf(k: Ints, n: Ints | np.int64, p: float, q: float) -> Floats:
    """Chances of k successes in n, elementwise, for p + q = 1 given apart so that neither loses digits.

    Notes
    -----
    Loader's saddle-point form: the large terms cancel on paper instead of in floats, so that the relative error stays
    below 1e-11 for n up to 10^8 within a dozen standard deviations, where differences of log-gammas would lose eight digits.
    """
    k, n = np.broadcast_arrays(k, n)
    is_edge = (k == 0) | (k == n)
    j, m = np.where(is_edge, 1, k).astype(np.float64), np.where(is_edge, 2, n).astype(np.float64)
    i = m - j
    log_chance = _stirling_error(m) - _stirling_error(j) - _stirling_error(i) - _deviance(j, m * p) - _deviance(i, m * q)
    inner = np.sqrt(m / (2 * math.pi * j * i)) * np.exp(log_chance)
    # Near 1 the other chance gives the logarithm with all its digits.
    log_p, log_q = math.log(p) if p < 0.5 else math.log1p(-q), math.log(q) if q < 0.5 else math.log1p(-p)
    return np.where(is_edge, np.exp(k * log_p + (n - k) * log_q), inner)


def _stirling_error(k: Floats) -> Floats:
    """The logarithm of k! less Stirling's formula; the series alternates, so from 16 on it is off by less than 1 / (1188 k^9)."""
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * k**2)) / k**2) / k**2) / k
    return np.where(k < len(_SMALL), _SMALL[np.minimum(k, len(_SMALL) - 1).astype(np.int64)], series)


_SMALL = np.array([0.0] + [math.lgamma(k + 1) - (k + 0.5) * math.log(k) + k - math.log(2 * math.pi) / 2 for k in range(1, 16)])


def _deviance(x: Floats, mean: Floats) -> Floats:
    """The part x log(x / mean) + mean - x of the exponent."""
    u = (x - mean) / mean
    return mean * ((1 + u) * np.log1p(u) - u)


@dataclass(frozen=True, slots=True)
class _Crowd:
    """How many clones there are likely to be, once for all epsilons."""

    epsilon_local: float
    clones: Ints
    """(m,) all likely numbers of clones, consecutive."""
    chances: Floats
    """(m,) their chances."""
    unlikely: float
    """Bound on the chance of all other numbers."""

    def delta(self, epsilon: float) -> float:
        """Sum over C of its chance times the delta given C, rounded up.

        Given C = c, the first number x of the pair is in favour exactly from a threshold on (the likelihood ratio rises in x), and
        delta = (e^local - e^epsilon) / (e^local + 1) P(A = x - 1) - (e^epsilon - 1) P(A >= x) there.
        """
        if epsilon >= self.epsilon_local:
            return 0.0
        big, ratio = math.exp(self.epsilon_local), math.exp(epsilon)
        slope = (ratio * big - 1) / ((big - 1) * (1 + ratio))
        start = np.minimum(np.ceil((self.clones + 1) * slope), self.clones + 1).astype(np.int64)
        at_start = binomial_pmf(start - 1, self.clones, 0.5, 0.5)
        beyond, doubt = _tails(start, self.clones)
        gain = (big - ratio) / (big + 1)
        given = (gain + _SLACK) * at_start - math.expm1(epsilon) * np.maximum(beyond - doubt, 0.0) * (1 - _SLACK)
        total = float((self.chances * np.clip(given, 0.0, 1.0)).sum()) * (1 + 2 * _SLACK)
        return min(1.0, total + self.unlikely)


@dataclass(frozen=True, slots=True)
class _Bits:
    """Binary random response among others of whom everything is known: all that a shuffled batch shows is its number of ones."""

    epsilon_local: float
    ones: Floats
    """(m, n) chances of how many ones the others send; a row for each number of them whose true bit is 1, up to half."""

    def delta(self, epsilon: float) -> float:
        """The worst over all data of the others, and both directions, rounded up; turning every bit around gives the other rows."""
        if epsilon >= self.epsilon_local:
            return 0.0
        flipped, ratio = 1 / (math.exp(self.epsilon_local) + 1), math.exp(epsilon)
        zero = np.pad(self.ones, ((0, 0), (0, 1))) * (1 - flipped) + np.pad(self.ones, ((0, 0), (1, 0))) * flipped
        one = np.pad(self.ones, ((0, 0), (0, 1))) * flipped + np.pad(self.ones, ((0, 0), (1, 0))) * (1 - flipped)
        gains = [np.maximum(a - ratio * b + _SLACK * (a + ratio * b), 0.0).sum(axis=1).max() for a, b in ((zero, one), (one, zero))]
        return min(1.0, float(max(gains)))


@lru_cache(maxsize=4)
def _bits(epsilon_local: float, n: int) -> _Bits:
    _check(epsilon_local, n)
    flipped, kept = 1 / (math.exp(epsilon_local) + 1), 1 / (math.exp(-epsilon_local) + 1)
    rows = []
    for n_ones in range((n - 1) // 2 + 1):
        n_zeros = n - 1 - n_ones
        true_ones = binomial_pmf(np.arange(n_ones + 1), np.int64(n_ones), kept, flipped)
        rows.append(np.convolve(true_ones, binomial_pmf(np.arange(n_zeros + 1), np.int64(n_zeros), flipped, kept)))
    return _Bits(epsilon_local, np.array(rows))


def _check(epsilon_local: float, n: int) -> None:
    if not (math.isfinite(epsilon_local) and 0 < epsilon_local <= 64):
        raise _refused(f"epsilon_local = {epsilon_local}", "The local epsilon is positive and at most 64.")
    if n < 1:
        raise _refused(f"n = {n}", "The batch holds at least the protected message.")


def _crowd(epsilon_local: float, n: int, *, is_binary: bool) -> _Crowd:
    _check(epsilon_local, n)
    others = min(n, MAX_MESSAGES) - 1
    if is_binary:
        p, q = 2 / (math.exp(epsilon_local) + 1), math.tanh(epsilon_local / 2)
    else:
        p, q = math.exp(-epsilon_local), -math.expm1(-epsilon_local)
    mean, reach = others * p, _WIDTH * math.sqrt(others * p * q) + 30
    low, high = max(0, math.floor(mean - reach)), min(others, math.ceil(mean + reach))
    clones = np.arange(low, high + 1, dtype=np.int64)
    unlikely = _chernoff(low - 1, others, p, q) + _chernoff(high + 1, others, p, q)
    return _Crowd(epsilon_local, clones, binomial_pmf(clones, np.int64(others), p, q), unlikely)


def _chernoff(k: int, n: int, p: float, q: float) -> float:
    """Bound on the chance of k or further out, on k's side of the mean; 0 where there is nothing."""
    if not 0 <= k <= n:
        return 0.0
    exponent = sum(x * math.log(x / mean) for x, mean in ((k, n * p), (n - k, n * q)) if x)
    return math.exp(-exponent * (1 - 1e-6))


def _tails(start: Ints, clones: Ints) -> tuple[Floats, Floats]:
    """P(A >= x) for A ~ Bin(c, 1/2), for consecutive c whose x stands still or moves by one, and a bound on the error.

    Notes
    -----
    Each tail follows from the one before: one coin more adds P(A = x - 1) / 2, and a step of x takes P(A = x) away.
    """
    # The far end is left out: what is subtracted may be too small, never too large.
    end = min(int(clones[0]), int(start[0]) + math.ceil(_WIDTH * math.sqrt(clones[0]))) + 1
    first = np.arange(start[0], end, dtype=np.int64)
    opening = float(binomial_pmf(first, clones[0], 0.5, 0.5).sum())
    x, c = start[:-1], clones[:-1]
    coin = binomial_pmf(x - 1, c, 0.5, 0.5) / 2
    step = np.where(start[1:] > x, binomial_pmf(x, c + 1, 0.5, 0.5), 0.0)
    tails = opening + np.concatenate([[0.0], np.cumsum(coin - step)])
    return tails, _SLACK * (opening + np.concatenate([[0.0], np.cumsum(coin + step)]))


def _search(crowd: _Crowd | _Bits, delta: float) -> float:
    """The smallest epsilon found whose delta is small enough; each candidate is proved by itself."""
    if not 0 < delta < 1:
        raise _refused(f"delta = {delta}", "Shuffling amplifies only up to a chance of failure, between 0 and 1.")
    low, high = 0.0, crowd.epsilon_local
    while high - low > max(_PRECISION * high, _GRAIN):
        middle = (low + high) / 2
        if crowd.delta(middle) <= delta:
            high = middle
        else:
            low = middle
    return high if high < _WORTH_SAYING * crowd.epsilon_local else crowd.epsilon_local


def _refused(what: str, why: str) -> SpecError:
    return SpecError("SHUFFLE-001", f"{what} cannot be used for a shuffled batch.", why=why)
