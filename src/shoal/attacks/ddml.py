"""Models that a cheating device may send back instead of its honest update.

``drawn`` is the instance that it was given, ``update`` what an honest device would send: the instance and a noisy step. All are ``(p,)``
weights in units of the study's grid, kept in range. What is false here is the *output*. A false *input*, such as made-up rows, passes
through the same noise as a true one, and no filter can tell the two apart more often than epsilon allows.
"""

from __future__ import annotations

import numpy as np

from shoal.entropy import Entropy
from shoal.protocols.ddml.merging import LIMIT, Weights, add, to_grid


def random(update: Weights, entropy: Entropy) -> Weights:
    """Weights that are uniform over the range of the update's."""
    reach = int(np.abs(update.astype(np.int64)).max())
    return to_grid(entropy.below_many(2 * reach + 1, update.size).astype(np.float64) - reach)


def negated(update: Weights) -> Weights:
    """The opposite of the whole model."""
    return scaled(update, -1)


def scaled(update: Weights, factor: float) -> Weights:
    """The whole model, after the noise, times a factor."""
    return to_grid(factor * update.astype(np.float64))


def stretched(drawn: Weights, update: Weights, factor: float) -> Weights:
    """The step alone, after the noise, times a factor: as if the device counted that many times."""
    return to_grid(drawn + factor * (update.astype(np.float64) - drawn))


def constant(update: Weights, value: int) -> Weights:
    """The same value for each weight."""
    return np.full_like(update, np.clip(value, -LIMIT, LIMIT))


def one_coordinate(update: Weights, where: int, size: int) -> Weights:
    """An honest update but for one weight, which is moved."""
    step = np.zeros(update.size, np.int64)
    step[where] = size
    return add(update, step)


def slow_drift(drawn: Weights, size: float) -> Weights:
    """A step without noise, with every weight moved by the same small amount; sent again and again, it adds up."""
    return to_grid(drawn + np.full(drawn.size, size))


def stale(old: Weights, drawn: Weights, update: Weights) -> Weights:
    """The honest step on an instance that was drawn long ago."""
    return add(old, update.astype(np.int64) - drawn)


def replayed(earlier: Weights) -> Weights:
    """An update that was sent before, sent again as a new one, under an id of its own."""
    return earlier.copy()
