"""Theory: survival of updates, instance variance, the paper's adversaries.

Only the local epsilon is ever claimed. Documentation, forecasts and tests use the rest: each figure
of the paper, and each correction of it, can be computed. Noise is measured in the variance of one
update's noise on one weight, steps in gamma.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_CELLS = 128
"""Grid cells in the sensitivity 2 gamma, for numerical distributions.

Twice the number changes the fifth digit.
"""

_HALVINGS = 60


def survival(k: int, updates: int | None = None) -> float:
    """Return the probability that one of the k instances still contains a merged update.

    ``updates`` is the number of later updates; None for the limit.

    Notes
    -----
    Ref: DDML Lemma 2, for ``discard``; errata D-11. If i instances contain it, i + 1 or i - 1
    contain it after the next update, each with probability i (k - i) / k^2.

    Examples
    --------
    >>> survival(20), round(survival(20, 0), 3), round(survival(20, 400), 3)
    (0.05, 1.0, 0.069)
    """
    if updates is None:
        return 1 / k
    carriers = np.arange(k + 1)
    moves = carriers * (k - carriers) / k**2
    chain = np.diag(1 - 2 * moves) + np.diag(moves[:-1], 1) + np.diag(moves[1:], -1)
    return float(1 - np.linalg.matrix_power(chain, updates)[1, 0])


def early_chance(k: int, updates: int, later: int) -> float:
    """Return the probability to draw a given update with at most T others on top of it.

    Parameters
    ----------
    updates
        Number of updates merged since.
    later
        T.

    Notes
    -----
    Ref: DDML §IV-D, which replaces T by its mean; errata D-03. A random instance contains the
    update with probability 1/k at any time, and then T is binomial: at each update an instance is
    replaced with probability 1/k, by one that contains one more.

    Examples
    --------
    >>> early_chance(20, 0, 0), round(early_chance(20, 100, 3), 4)
    (0.05, 0.0129)
    """
    chances = [
        math.comb(updates, t) * (1 - 1 / k) ** (updates - t) / k**t
        for t in range(min(later, updates) + 1)
    ]
    return math.fsum(chances) / k


@dataclass(frozen=True)
class InstanceDynamics:
    """The dynamics of the instances if updates return after others were merged.

    Parameters
    ----------
    pace
        Movement of the mean of the instances in one update, for a step of 1.
    variance
        Variance among the instances (divisor k - 1).
    noise
        Variance of the mean, relative to that of a single model which moves at the same pace and is
        passed from device to device.
    """

    pace: float
    variance: float
    noise: float


def compute_dynamics(k: int, blend_factor: float, in_flight: int = 0) -> InstanceDynamics:
    """Return the dynamics of k instances under noise alone.

    Each update was drawn ``in_flight`` merges before it is merged.

    Parameters
    ----------
    blend_factor
        beta.
    in_flight
        s: the number of updates in flight.

    Notes
    -----
    Ref: DDML Theorem 1, which assumes s = 0; errata D-06, D-07. Let c_h be the mean squared
    difference of a random instance now and one h updates ago, and D that of two different ones now.
    One update gives D = beta (1 + c_s), c_0 = D (k - 1) / k and, from h = 1 on, c_h = c_{h-1} +
    (beta (c_{|s+1-h|} - c_{h-1}) - beta (1 - beta) c_s + beta^2) / k. The sum of the instances and
    beta times all updates in flight has no drift except the step's, and moves by beta (B_i + noise
    - B_j): that gives pace and noise. For ``discard`` they are 1 / (k + s) and k + s; for s = 0
    beta / k and k / (k (1 - beta) + beta).

    Examples
    --------
    >>> [
    ...     round(compute_dynamics(20, blend_factor, in_flight).noise, 2)
    ...     for blend_factor in (1.0, 0.1)
    ...     for in_flight in (0, 100)
    ... ]
    [20.0, 120.0, 1.1, 1.11]
    """
    s, pace = in_flight, blend_factor / (k + blend_factor * in_flight)
    if k == 1:
        return InstanceDynamics(pace, 0.0, 1.0)
    equations, constants = np.eye(s + 1), np.zeros(s + 1)
    equations[0, s] -= blend_factor * (k - 1) / k
    constants[0] = blend_factor * (k - 1) / k
    for h in range(1, s + 1):
        equations[h, h - 1] -= 1 - blend_factor / k
        equations[h, s + 1 - h] -= blend_factor / k
        equations[h, s] += blend_factor * (1 - blend_factor) / k
        constants[h] = blend_factor**2 / k
    apart = np.linalg.solve(equations, constants)
    difference = blend_factor * (1 + float(apart[s]))
    return InstanceDynamics(pace, difference / 2, 1 + float(apart[0]))


@dataclass(frozen=True)
class ExpectedLosses:
    """The paper's expected losses in parts of epsilon.

    They are averages over the draws of the aggregator, and no guarantees.

    Parameters
    ----------
    internal
        Against adversary II, who reads all instances right after an update.
    late
        Against adversary III, who reads T updates of an instance later.
    """

    internal: float
    late: float


def paper_factors(k: int, later: float) -> ExpectedLosses:
    """Return the table of section IV.

    Notes
    -----
    Ref: DDML §IV-A; errata D-02, D-03, D-08 to D-10: one weight, and none of them can be relied on.

    Examples
    --------
    >>> paper_factors(20, 100)
    ExpectedLosses(internal=0.475, late=0.005)
    """
    return ExpectedLosses((k - 1) / (2 * k), 1 / (k * math.sqrt(later)))


def internal_loss(p: int, epsilon: float) -> float:
    """Return the loss of one weight, others known, against adversary II with two instances.

    The model has p weights; the loss is epsilon/2 only for p = 1.

    Notes
    -----
    Ref: DDML Lemma 1, second scenario; errata D-02. The other weights show which instance was
    first: at best with odds e^((p - 1) epsilon) to 1. For given odds and a distance of the
    instances of x gamma in the weight itself, the probability of the observation is, as a function
    of the gradient a, a sum of two exponentials between kinks at -x and x. Its maximum lies at a
    kink or an end, and so does its minimum at the x with the largest ratio.

    Examples
    --------
    >>> [round(internal_loss(p, math.log(3)) / math.log(3), 2) for p in (1, 3, 5, 33)]
    [0.5, 0.77, 0.97, 1.0]
    """
    rate, log_odds = epsilon / 2, (p - 1) * epsilon
    x = np.linspace(0, 1, 1001)

    def log_chance(a: Floats) -> Floats:
        logs: Floats = np.logaddexp(log_odds - rate * np.abs(x + a), -rate * np.abs(x - a))
        return logs

    ends = [log_chance(a) for a in (-np.ones_like(x), -x, x, np.ones_like(x))]
    return float((np.max(ends, axis=0) - np.min(ends, axis=0)).max())


def overwritten_guess_rate(k: int, p: int, epsilon: float) -> float:
    """Return how often adversary II guesses a gradient's sign after the pre-image is gone.

    The gradient is -1 in all weights, or 1 in all; a rate of 1/2 is perfect privacy. The value is
    approximate.

    Notes
    -----
    Ref: DDML Lemma 1, first scenario, which claims a loss of 0; errata D-08. The update is compared
    with the mean of the k - 1 other instances, which is close to the pre-image: a normal
    approximation over the weights.

    Examples
    --------
    >>> round(overwritten_guess_rate(20, 33, math.log(32)), 2)
    0.98
    """
    deviation = math.sqrt(8) / epsilon * math.sqrt(1 + k**2 / (2 * (k - 1)))
    return 0.5 * math.erfc(-math.sqrt(p / 2) / deviation)


def late_loss(later: int, epsilon: float, delta: float) -> float:
    """Return the exact loss, at delta, of one weight of an update with T others on top.

    T + 1 Laplace variables perturb it; T is ``later``.

    Notes
    -----
    Ref: DDML Lemma 3; errata D-03. The distribution is the inverse transform of a power of the
    characteristic function of discrete Laplace noise.
    """
    ratio = math.exp(-epsilon / _CELLS)
    deviation = math.sqrt(2 * ratio * (later + 1)) / (1 - ratio)
    size = 1 << math.ceil(math.log2(40 * deviation + _CELLS * (1 + 60 / epsilon)))
    angles = 2 * math.pi * np.arange(size // 2 + 1) / size
    law = np.fft.irfft(
        ((1 - ratio) ** 2 / (1 - 2 * ratio * np.cos(angles) + ratio**2)) ** (later + 1), size
    )
    moved = np.roll(law, _CELLS)
    low, high = 0.0, epsilon
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        is_enough = np.maximum(law - math.exp(middle) * moved, 0).sum() <= delta
        low, high = (low, middle) if is_enough else (middle, high)
    return high


def printed_late_loss(later: int, epsilon: float, delta: float) -> float:
    """Return the loss of Lemma 3 as printed.

    Examples
    --------
    >>> (
    ...     [round(printed_late_loss(t, math.log(32), 1e-6), 3) for t in (100, 1000)],
    ...     [round(late_loss(t, math.log(32), 1e-6), 3) for t in (100, 1000)],
    ... )
    ([0.888, 0.281], [0.971, 0.3])
    """
    return epsilon * math.sqrt(math.log(1 / (2 * delta)) / (2 * later))


def corrected_late_loss(later: int, epsilon: float, delta: float) -> float:
    """Return the loss of Lemma 3 with the sensitivity 2 gamma and the exact root.

    It still uses the central limit theorem.

    Notes
    -----
    Ref: DDML Lemma 3; errata D-10.
    """
    return (
        epsilon**2
        / (2 * later)
        * (1 + math.sqrt(1 + 4 * later * math.log(1 / (2 * delta)) / epsilon**2))
    )
