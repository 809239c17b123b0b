"""DDML's theorems: Theorem 1, Lemma 2, the noise of the mean, and later updates."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest

from shoal.entropy import SeededEntropy
from shoal.mechanisms.laplace import get_laplace_sampler
from shoal.protocols.ddml.analysis import early_chance, survival
from shoal.protocols.ddml.merging import (
    add_step,
    draw_instances,
    find_blend_factor,
    merge_update,
    steady_variance,
)
from tests.statistical.harness import catches, fits, is_chance, is_mean, statistical

ALPHA = 1e-9
MEANS = ALPHA / 40
"""Alpha for means of squares. They are skewed, and this far out the normal approximation is off by
a factor of several.
"""

RUNS = 20_000
RATE = Fraction(1, 1000)
NOISE = 2 * 1000.0**2
"""Variance of discrete Laplace noise of this rate, in units of the grid; it is less by a sixth of a
unit.
"""


@dataclass(frozen=True)
class MergeOptions:
    """How updates are merged; each mutant changes one field."""

    merge: str = "discard"
    same: bool = False
    rate: Fraction = RATE
    start: float = 1.0


@dataclass(frozen=True)
class InstanceRuns:
    """Independent runs of one weight: instances before and after, and the first one's traces."""

    before: npt.NDArray[np.int32]
    after: npt.NDArray[np.int32]
    later: npt.NDArray[np.int64]

    @property
    def spreads(self) -> npt.NDArray[np.float64]:
        return self.after.var(axis=0, ddof=1)

    @property
    def moves(self) -> npt.NDArray[np.float64]:
        return self.after.mean(axis=0) - self.before.mean(axis=0)


def run(k: int, n: int, entropy: SeededEntropy, options: MergeOptions) -> InstanceRuns:
    """Run ``RUNS`` times k instances for n updates, and follow one update.

    The update was just merged into the first instance. ``later`` has, for each run and instance,
    the number of updates merged after it, and -1 if the instance does not carry it.
    """
    part, runs = find_blend_factor(options.merge), np.arange(RUNS)
    before = draw_instances(k, RUNS, options.start * NOISE * steady_variance(k, part), entropy)
    instances, later = before.copy(), np.full((k, RUNS), -1)
    later[0] = 0
    for _ in range(n):
        drawn = entropy.below_many(k, RUNS)
        discarded = drawn if options.same else entropy.below_many(k, RUNS)
        update = add_step(
            instances[drawn, runs], get_laplace_sampler(options.rate).draw_many(RUNS, entropy)
        )
        instances[discarded, runs] = merge_update(instances[discarded, runs], update, part)
        ages = later[drawn, runs]
        later[discarded, runs] = np.where(ages >= 0, ages + 1, -1)
    return InstanceRuns(before, instances, later)


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("merge", ["discard", "blend"])
def test_instance_spread_stays_at_steady_variance_and_returns(
    merge: str, entropy: SeededEntropy
) -> None:
    k, n = 5, 60
    part = find_blend_factor(merge)
    steady = NOISE * steady_variance(k, part)

    def fits_theory(options: MergeOptions, expected: float = steady) -> bool:
        spreads = run(k, n, entropy, options).spreads
        return is_mean(spreads, expected, float(spreads.std()), MEANS)

    assert fits_theory(MergeOptions(merge))
    # The instances are equal at first; this part of the difference remains after each update.
    kept = 1 - 2 * part * (k * (1 - part) + part) / k**2
    assert fits_theory(MergeOptions(merge, start=0.0), steady * (1 - kept**n))
    # If an update replaces the instance that was drawn, its noise never leaves. With a fifth more
    # noise the spread is a fifth wider.
    assert catches(lambda: fits_theory(MergeOptions(merge, same=True)))
    assert catches(lambda: fits_theory(MergeOptions(merge, rate=RATE * 10 / 11)))


@statistical(alpha=ALPHA)
def test_update_survives_with_chance_of_lemma_2(entropy: SeededEntropy) -> None:
    k, n = 5, 12

    def count_survivors(options: MergeOptions, after: int) -> int:
        return int((run(k, after, entropy, options).later >= 0).any(axis=0).sum())

    assert is_chance(count_survivors(MergeOptions(), n), RUNS, survival(k, n), ALPHA / 2)
    # After 400 updates less than 10^-13 of the difference from 1/k remains.
    assert is_chance(count_survivors(MergeOptions(), 400), RUNS, survival(k), ALPHA / 2)
    assert catches(
        lambda: is_chance(
            count_survivors(MergeOptions(same=True), n), RUNS, survival(k, n), ALPHA / 2
        )
    )
    assert catches(
        lambda: is_chance(count_survivors(MergeOptions(), n - 4), RUNS, survival(k, n), ALPHA / 2)
    )


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("merge", ["discard", "blend"])
def test_replacing_multiplies_noise_of_mean_by_k_and_blending_does_not(
    merge: str, entropy: SeededEntropy
) -> None:
    k, n = 5, 40
    part = find_blend_factor(merge)
    per_update = NOISE * (part / k) ** 2

    def fits_theory(options: MergeOptions, times: float) -> bool:
        squares = run(k, n, entropy, options).moves ** 2
        return is_mean(squares, n * per_update * times, float(squares.std()), MEANS)

    times = k / (k * (1 - part) + part)
    assert fits_theory(MergeOptions(merge), times)
    assert catches(lambda: fits_theory(MergeOptions(merge, rate=RATE * 10 / 13), times))
    assert catches(lambda: fits_theory(MergeOptions(merge), 1.5 * times))


@statistical(alpha=ALPHA)
def test_number_of_later_updates_is_binomial(entropy: SeededEntropy) -> None:
    k, n = 5, 20
    up_to = [early_chance(k, n, later) for later in range(n + 1)]
    chances = np.diff([0.0, *up_to, 1.0])

    def fits_theory(updates: int) -> bool:
        # Draw one instance of each run, as a reader does.
        later = run(k, updates, entropy, MergeOptions()).later[
            entropy.below_many(k, RUNS), np.arange(RUNS)
        ]
        return fits(np.bincount(np.where(later < 0, n + 1, later), minlength=n + 2), chances, ALPHA)

    assert fits_theory(n)
    # The mutant omits three updates.
    assert catches(lambda: fits_theory(n - 3))
