"""DDML's theorems on the instances themselves: Theorem 1, Lemma 2, the noise of the mean, and how many updates lie on another."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from shoal.entropy import SeededEntropy
from shoal.mechanisms.laplace import laplace_sampler
from shoal.protocols.ddml.analysis import early_chance, survival
from shoal.protocols.ddml.merging import add, initial, merged, part_of, steady_variance
from statistical.harness import catches, fits, is_chance, is_mean, statistical

ALPHA = 1e-9
MEANS = ALPHA / 40
"""For means of squares: they are skewed, and the normal law of means is off by a factor of several so far out."""

RUNS = 20_000
RATE = Fraction(1, 1000)
NOISE = 2 * 1000.0**2
"""Variance of discrete Laplace noise of that rate, in units of the grid; it is less by a sixth of a unit."""


@dataclass(frozen=True)
class Ways:
    """How updates are merged; the mutants change one of them."""

    merge: str = "discard"
    same: bool = False
    rate: Fraction = RATE
    start: float = 1.0


@dataclass(frozen=True)
class Run:
    """Independent runs of one weight: the instances and the first of them to be updated, before and after, and its traces."""

    before: npt.NDArray[np.int32]
    after: npt.NDArray[np.int32]
    later: npt.NDArray[np.int64]

    @property
    def spreads(self) -> npt.NDArray[np.float64]:
        return self.after.var(axis=0, ddof=1)

    @property
    def moves(self) -> npt.NDArray[np.float64]:
        return self.after.mean(axis=0) - self.before.mean(axis=0)


def run(k: int, n: int, entropy: SeededEntropy, ways: Ways) -> Run:
    """``RUNS`` times k instances after n updates; an update that was just merged into the first instance is followed.

    ``later`` has, for each run and instance, how many updates lie on it, and -1 where the instance does not carry it.
    """
    part, runs = part_of(ways.merge), np.arange(RUNS)
    before = initial(k, RUNS, ways.start * NOISE * steady_variance(k, part), entropy)
    instances, later = before.copy(), np.full((k, RUNS), -1)
    later[0] = 0
    for _ in range(n):
        drawn = entropy.below_many(k, RUNS)
        discarded = drawn if ways.same else entropy.below_many(k, RUNS)
        update = add(instances[drawn, runs], laplace_sampler(ways.rate).draw_many(RUNS, entropy))
        instances[discarded, runs] = merged(instances[discarded, runs], update, part)
        ages = later[drawn, runs]
        later[discarded, runs] = np.where(ages >= 0, ages + 1, -1)
    return Run(before, instances, later)


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("merge", ["discard", "blend"])
def test_the_spread_of_the_instances_stays_and_comes_back(merge: str, entropy: SeededEntropy) -> None:
    k, n = 5, 60
    part = part_of(merge)
    steady = NOISE * steady_variance(k, part)

    def holds(ways: Ways, expected: float = steady) -> bool:
        spreads = run(k, n, entropy, ways).spreads
        return is_mean(spreads, expected, float(spreads.std()), MEANS)

    assert holds(Ways(merge))
    # Instances that are all alike at first; of the difference this much is left after each update.
    kept = 1 - 2 * part * (k * (1 - part) + part) / k**2
    assert holds(Ways(merge, start=0.0), steady * (1 - kept**n))
    # Put back where it was drawn, an update's noise never leaves; and with a fifth more noise the spread is a fifth wider.
    assert catches(lambda: holds(Ways(merge, same=True)))
    assert catches(lambda: holds(Ways(merge, rate=RATE * 10 / 11)))


@statistical(alpha=ALPHA)
def test_an_update_survives_as_often_as_lemma_2_says(entropy: SeededEntropy) -> None:
    k, n = 5, 12

    def survivors(ways: Ways, after: int) -> int:
        return int((run(k, after, entropy, ways).later >= 0).any(axis=0).sum())

    assert is_chance(survivors(Ways(), n), RUNS, survival(k, n), ALPHA / 2)
    # After 400 updates less than 10^-13 of the difference from 1/k is left.
    assert is_chance(survivors(Ways(), 400), RUNS, survival(k), ALPHA / 2)
    assert catches(lambda: is_chance(survivors(Ways(same=True), n), RUNS, survival(k, n), ALPHA / 2))
    assert catches(lambda: is_chance(survivors(Ways(), n - 4), RUNS, survival(k, n), ALPHA / 2))


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("merge", ["discard", "blend"])
def test_replacing_multiplies_the_noise_of_the_mean_by_k_and_blending_does_not(merge: str, entropy: SeededEntropy) -> None:
    k, n = 5, 40
    part = part_of(merge)
    per_update = NOISE * (part / k) ** 2

    def holds(ways: Ways, times: float) -> bool:
        squares = run(k, n, entropy, ways).moves ** 2
        return is_mean(squares, n * per_update * times, float(squares.std()), MEANS)

    times = k / (k * (1 - part) + part)
    assert holds(Ways(merge), times)
    assert catches(lambda: holds(Ways(merge, rate=RATE * 10 / 13), times))
    assert catches(lambda: holds(Ways(merge), 1.5 * times))


@statistical(alpha=ALPHA)
def test_how_many_updates_lie_on_another_is_binomial(entropy: SeededEntropy) -> None:
    k, n = 5, 20
    up_to = [early_chance(k, n, later) for later in range(n + 1)]
    chances = np.diff([0.0, *up_to, 1.0])

    def holds(updates: int) -> bool:
        # One instance of each run, as a reader draws it.
        later = run(k, updates, entropy, Ways()).later[entropy.below_many(k, RUNS), np.arange(RUNS)]
        return fits(np.bincount(np.where(later < 0, n + 1, later), minlength=n + 2), chances, ALPHA)

    assert holds(n)
    # The mutant forgets three updates.
    assert catches(lambda: holds(n - 3))
