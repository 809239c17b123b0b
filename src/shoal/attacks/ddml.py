"""Dishonest DDML updates: models that a device may send instead of its honest update.

Tests of the spam filter and `python -m benchmarks run ddml --only spam` use them. ``drawn`` is the
instance that the device was given. ``update`` is what an honest device would send: the instance
plus a noisy step. All are ``(p,)`` weights in units of the study's grid, kept in range.

Only the *output* is false here. A false *input*, such as invented rows, passes through the same
noise as a true one, and no filter can distinguish the two better than epsilon allows.
"""

from __future__ import annotations

import numpy as np

from shoal.entropy import Entropy
from shoal.protocols.ddml.merging import MAX_WEIGHT, Weights, add_step, round_to_grid


def make_random_update(update: Weights, entropy: Entropy) -> Weights:
    """Return weights that are uniform over the range of the update's weights."""
    reach = int(np.abs(update.astype(np.int64)).max())
    return round_to_grid(entropy.below_many(2 * reach + 1, update.size).astype(np.float64) - reach)


def negate_update(update: Weights) -> Weights:
    """Return the negated model."""
    return scale_update(update, -1)


def scale_update(update: Weights, factor: float) -> Weights:
    """Return the whole model, noise included, times a factor."""
    return round_to_grid(factor * update.astype(np.float64))


def stretch_step(drawn: Weights, update: Weights, factor: float) -> Weights:
    """Return the model with its noisy step times a factor, as if the device counted repeatedly."""
    return round_to_grid(drawn + factor * (update.astype(np.float64) - drawn))


def make_constant_update(update: Weights, value: int) -> Weights:
    """Return a model with the same value for each weight."""
    return np.full_like(update, np.clip(value, -MAX_WEIGHT, MAX_WEIGHT))


def move_one_weight(update: Weights, where: int, size: int) -> Weights:
    """Return an honest update with one weight changed."""
    step = np.zeros(update.size, np.int64)
    step[where] = size
    return add_step(update, step)


def make_slow_drift(drawn: Weights, size: float) -> Weights:
    """Return a step without noise that moves every weight by the same small amount.

    If it is sent repeatedly, it adds up.
    """
    return round_to_grid(drawn + np.full(drawn.size, size))


def make_stale_update(old: Weights, drawn: Weights, update: Weights) -> Weights:
    """Return the honest step on an instance that was drawn long ago."""
    return add_step(old, update.astype(np.int64) - drawn)


def replay_update(earlier: Weights) -> Weights:
    """Return an earlier update, to be sent again under a new id."""
    return earlier.copy()
