"""Who wins where several outcomes are equal: a public rule that favours none."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.protocols.pfds.params import Ints

_STEP, _FIRST, _SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def winners(tally: npt.NDArray[Any]) -> Ints:
    """The outcome with the most in each row of ``(n, n_outcomes)``; of equal ones any, by the row's number alone.

    Notes
    -----
    Noise on integers makes counts of small leaves equal often, which real-valued noise never does. To let the first outcome win would turn
    leaves without rows into votes for it (errata P-08). Everyone who reads the counts finds the same winners.

    Examples
    --------
    >>> winners(np.array([[3, 1], [0, 2]])).tolist(), int(winners(np.zeros((10_000, 2))).sum())
    ([0, 1], 4918)
    """
    won: Ints = np.argmax(tally, axis=1)
    is_best = tally == np.take_along_axis(tally, won[:, np.newaxis], axis=1)
    tied = np.flatnonzero(np.count_nonzero(is_best, axis=1) > 1)
    n_outcomes = tally.shape[1]
    lots = _mixed(tied[:, np.newaxis] * n_outcomes + np.arange(n_outcomes))
    won[tied] = np.argmax(np.where(is_best[tied], lots, 0), axis=1)
    return won


def _mixed(numbers: Ints) -> npt.NDArray[np.uint64]:
    """Numbers that look like chance, never 0: the output function of SplitMix64 (Steele, Lea, Flood 2014)."""
    mixed = (numbers.astype(np.uint64) + np.uint64(1)) * _STEP
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))
