"""The noise of a simulated run, drawn many updates at a time by the mechanisms that a peer uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.directions import normals
from shoal.protocols.ddml.blocks import Draws
from shoal.protocols.ddml.merging import LIMIT
from shoal.protocols.ddml.step import AdditiveStep, BareStep, ClosestStep, Step

Ints = npt.NDArray[np.int64]

ONCE, POOL = 1 << 24, 1 << 22
"""A run that needs more draws than the first figure reads as many as the second again and again: they stay near the processor."""

_PIECE = 1 << 20
"""Draws that are made at a time."""

_FINE = 1 << 32


class Supply:
    """Noise for updates, one block of them after another.

    Parameters
    ----------
    step
        How a gradient is hidden.
    p
        Weights of the model.
    n_updates
        How many updates there will be.

    Notes
    -----
    Up to `ONCE` draws in all, each is used once. Beyond, `POOL` of them are read again and again: a lap through them starts anywhere, and
    the noise of every update gets a random sign of its own. The noise of each weight still has its exact law, and no two updates are
    correlated, but far-apart updates are not independent. This is for simulation only.
    """

    def __init__(self, step: Step, p: int, n_updates: int, entropy: Entropy) -> None:
        self._step, self._p, self._entropy = step, p, entropy
        self._at = self._lap_left = 0
        self._pool: npt.NDArray[Any] | None = None
        if isinstance(step, BareStep):
            self._pool = np.zeros(0, np.int32)
        elif n_updates * p > ONCE:
            drawn = self._drawn(POOL)
            # What begins near the end goes on at the beginning.
            self._pool = np.concatenate([drawn, drawn[:p]])

    def take(self, n: int) -> Draws:
        """The noise of the next n updates."""
        entropy, step = self._entropy, self._step
        values, offsets = self._values(n)
        signs = 1 - 2 * np.unpackbits(entropy.words(-(-n // 8), np.uint8), count=n).astype(np.float64)
        if not isinstance(step, ClosestStep):
            return Draws(values, np.zeros(0, np.float32), offsets, signs, np.zeros(n), np.zeros(n))
        coins = entropy.below_many(_FINE, n) / _FINE
        return Draws(np.zeros(0, np.int32), values, offsets, signs, step.mechanism.alignments(n, entropy), coins)

    def _values(self, n: int) -> tuple[npt.NDArray[Any], Ints]:
        """Draws, and where those of each update begin."""
        places = np.arange(n) * self._p
        if self._pool is None:
            return self._drawn(n * self._p), places
        if self._lap_left < n * self._p:
            self._at, self._lap_left = self._entropy.below(POOL), POOL
        offsets = (self._at + places) % POOL
        self._at += n * self._p
        self._lap_left -= n * self._p
        return self._pool, offsets

    def _drawn(self, n: int) -> npt.NDArray[Any]:
        drawn = np.empty(n, np.float32 if isinstance(self._step, ClosestStep) else np.int32)
        for start in range(0, n, _PIECE):
            part = drawn[start : start + _PIECE]
            if isinstance(self._step, ClosestStep):
                part[:] = normals(len(part), self._entropy)
            else:
                assert isinstance(self._step, AdditiveStep)
                part[:] = np.clip(self._step.noise.randomise_many(np.zeros(len(part), np.int64), self._entropy), -LIMIT, LIMIT)
        return drawn
