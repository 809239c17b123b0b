"""How an update that comes back enters the k instances. Weights are integers on the study's grid."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.gaussian import gaussian_sampler
from shoal.protocols.ddml.passes import in_one_piece, passes_for

Weights = npt.NDArray[np.int32]

BLEND = 0.1
"""beta: the part of the way that ``blend`` moves an instance towards an update."""

LIMIT = (1 << 31) - 1
"""Weights lie between -LIMIT and LIMIT; what would leave that range stays at its end."""


def to_grid(values: npt.NDArray[np.float64]) -> Weights:
    """Numbers in units of the grid as weights: rounded to the nearest, kept in range."""
    rounded: Weights = np.clip(np.rint(values), -LIMIT, LIMIT).astype(np.int32)
    return rounded


def add(weights: Weights, step: npt.NDArray[np.int64]) -> Weights:
    """Weights after a step in units of the grid, kept in range."""
    moved: Weights = np.clip(weights.astype(np.int64) + step, -LIMIT, LIMIT).astype(np.int32)
    return moved


def part_of(merge: str) -> float:
    """beta: the part of the way that an instance moves towards an update; all of it where the update replaces the instance."""
    return BLEND if merge == "blend" else 1.0


def merged(instance: Weights, update: Weights, part: float) -> Weights:
    """The instance after an update: B_j + beta (w - B_j), rounded to the nearest; the update itself where beta is 1.

    Notes
    -----
    Ref: DDML Algorithm 2 for beta = 1; errata D-06. Replacing an instance multiplies the noise of the mean, per unit of signal, by k;
    blending by k / (k (1 - beta) + beta) only. The message is the same, and so is the guarantee.
    """
    if part == 1:
        return update
    passes = passes_for(instance.size)
    if passes is not None:
        blended = np.empty(instance.size, np.int32)
        passes.blend(in_one_piece(instance), in_one_piece(update), part, blended)
        return blended
    old, moved = instance.astype(np.float64), update.astype(np.float64)
    moved -= old
    moved *= part
    moved += old
    # Between the two, and so in range.
    rounded: Weights = np.rint(moved, out=moved).astype(instance.dtype)
    return rounded


def steady_variance(k: int, part: float) -> float:
    """The variance among the k instances (divisor k - 1) that neither grows nor shrinks, for noise of variance 1 in each update.

    Notes
    -----
    Ref: DDML Theorem 1: k/2 for beta = 1. For any beta the mean squared difference D of two instances goes, in one update of one of them,
    to D - D beta (k (1 - beta) + beta) / k + beta^2 in the pairs that it belongs to; the variance is D / 2. Updates that were drawn
    before others were merged raise it where they replace an instance, and hardly where they are blended in (errata D-07).

    Examples
    --------
    >>> steady_variance(20, 1.0), round(steady_variance(20, 0.1), 4)
    (10.0, 0.0552)
    """
    return 0.0 if k == 1 else k * part / (2 * (k * (1 - part) + part))


def initial(k: int, p: int, variance: float, entropy: Entropy) -> Weights:
    """``(k, p)`` instances to begin with: around zero, with the variance, in units of the grid, that will remain.

    Notes
    -----
    Ref: DDML §III-C, model initialisation.
    """
    if variance < 1:
        return np.zeros((k, p), np.int32)
    return to_grid(gaussian_sampler(Fraction(round(variance))).draw_many(k * p, entropy).astype(np.float64)).reshape(k, p)
