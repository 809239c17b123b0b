"""Noise for blocks of updates.

`simulate` draws it here, with the mechanisms that a peer uses, for many updates per call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.k_closest import draw_normals
from shoal.protocols.ddml.merging import MAX_WEIGHT
from shoal.protocols.ddml.noisy_step import AdditiveStep, ClosestStep, NoiselessStep, UpdateStep
from shoal.protocols.ddml.population.arrays import NoiseDraws

Ints = npt.NDArray[np.int64]

ONCE, POOL = 1 << 24, 1 << 22
"""A run that needs more than `ONCE` draws reuses `POOL` draws, which stay in the cache."""

_PIECE = 1 << 20
"""Most draws per call of a mechanism."""

_FINE = 1 << 32


class NoiseStream:
    """Noise for updates, one block after another.

    Parameters
    ----------
    step
        Perturbs a gradient.
    p
        Number of weights of the model.
    n_updates
        Total number of updates.

    Notes
    -----
    Up to `ONCE` draws in total, each is used once. Beyond, `POOL` of them are reused: each pass
    through them starts at a random position, and the noise of every update has a separate random
    sign. The noise of each weight still has its exact distribution, and no two updates are
    correlated, but distant updates are not independent. This is for simulation only.
    """

    def __init__(self, step: UpdateStep, p: int, n_updates: int, entropy: Entropy) -> None:
        self._step, self._p, self._entropy = step, p, entropy
        self._at = self._lap_left = 0
        self._pool: npt.NDArray[Any] | None = None
        if isinstance(step, NoiselessStep):
            self._pool = np.zeros(0, np.int32)
        elif n_updates * p > ONCE:
            drawn = self._draw_values(POOL)
            # The noise of an update that starts near the end continues at the beginning.
            self._pool = np.concatenate([drawn, drawn[:p]])

    def take(self, n: int) -> NoiseDraws:
        """Return the noise of the next n updates."""
        entropy, step = self._entropy, self._step
        values, offsets = self._take_values(n)
        signs = 1 - 2 * np.unpackbits(entropy.words(-(-n // 8), np.uint8), count=n).astype(
            np.float64
        )
        if not isinstance(step, ClosestStep):
            return NoiseDraws(
                values, np.zeros(0, np.float32), offsets, signs, np.zeros(n), np.zeros(n)
            )
        coins = entropy.below_many(_FINE, n) / _FINE
        return NoiseDraws(
            np.zeros(0, np.int32),
            values,
            offsets,
            signs,
            step.mechanism.draw_alignments(n, entropy),
            coins,
        )

    def _take_values(self, n: int) -> tuple[npt.NDArray[Any], Ints]:
        """Return draws, and the offset of each update in them."""
        starts = np.arange(n) * self._p
        if self._pool is None:
            return self._draw_values(n * self._p), starts
        if self._lap_left < n * self._p:
            self._at, self._lap_left = self._entropy.below(POOL), POOL
        offsets = (self._at + starts) % POOL
        self._at += n * self._p
        self._lap_left -= n * self._p
        return self._pool, offsets

    def _draw_values(self, n: int) -> npt.NDArray[Any]:
        drawn = np.empty(n, np.float32 if isinstance(self._step, ClosestStep) else np.int32)
        for start in range(0, n, _PIECE):
            part = drawn[start : start + _PIECE]
            if isinstance(self._step, ClosestStep):
                part[:] = draw_normals(len(part), self._entropy)
            else:
                assert isinstance(self._step, AdditiveStep)
                part[:] = np.clip(
                    self._step.noise.randomise_many(np.zeros(len(part), np.int64), self._entropy),
                    -MAX_WEIGHT,
                    MAX_WEIGHT,
                )
        return drawn
