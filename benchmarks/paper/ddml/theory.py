"""Theorem 1 and Lemma 2 of the DDML paper on the instances themselves.

One weight, noise only, many independent runs. Instances start equal and without updates; after 8
k^2 updates less than a millionth of that remains. A deviation of five standard errors, in any of
the ten figures, has a probability of about 6 in a million.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from benchmarks.measure import Measure
from shoal.entropy import SeededEntropy
from shoal.mechanisms.laplace import get_laplace_sampler
from shoal.protocols.ddml.analysis import survival
from shoal.protocols.ddml.merging import add_step, merge_update, steady_variance

INSTANCES = (2, 5, 10, 20, 30)
RUNS = 10_000
MAX_ERRORS = 5.0
RATE = Fraction(1, 1000)
NOISE = 2 * 1000.0**2 - 1 / 6
"""Variance of discrete Laplace noise of that rate, in units of the grid."""


def measures(only: str = "", runs: int = RUNS) -> Iterator[Measure]:
    """Yield for each k the spread of the instances and the share of surviving updates.

    Both are compared with theory.
    """
    for k in INSTANCES:
        if (name := f"theory_k{k}").startswith(only):
            spreads, survives = run(k, 8 * k**2, runs, SeededEntropy(name))
            yield from _against(
                f"{name}_spread", spreads / NOISE, steady_variance(k, 1.0), "sigma^2"
            )
            yield from _against(f"{name}_survival", survives, survival(k), "of updates")


def markdown(only: str = "") -> Iterator[str]:
    """Yield the same as a table, with a row for each k."""
    found = {one.measure: one.value for one in measures(only)}
    yield (
        "| k | spread, sigma^2 | k/2 | standard errors apart | updates that survive | 1/k | "
        "standard errors apart |"
    )
    yield "|---:" * 7 + "|"
    for k in INSTANCES:
        if f"theory_k{k}_spread" in found:
            cells = [
                found[f"theory_k{k}_{what}{end}"]
                for what in ("spread", "survival")
                for end in ("", "_theory", "_distance")
            ]
            yield f"| {k} | {' | '.join(f'{cell:.3g}' for cell in cells)} |"


def run(
    k: int, n: int, runs: int, entropy: SeededEntropy
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the variance of the instances of each run after n updates, and survival.

    Survival is 1 if an instance still contains the first update of the run.
    """
    each, noise = np.arange(runs), get_laplace_sampler(RATE)
    instances, carries = np.zeros((k, runs), np.int32), np.zeros((k, runs), bool)
    carries[0] = True
    for _ in range(n):
        drawn, discarded = entropy.below_many(k, runs), entropy.below_many(k, runs)
        update = add_step(instances[drawn, each], noise.draw_many(runs, entropy))
        instances[discarded, each] = merge_update(instances[discarded, each], update, 1.0)
        carries[discarded, each] = carries[drawn, each]
    return instances.var(axis=0, ddof=1), carries.max(axis=0).astype(np.float64)


def _against(
    name: str, values: npt.NDArray[np.float64], theory: float, unit: str
) -> Iterator[Measure]:
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    yield Measure("ddml", name, float(values.mean()), unit, "lower")
    yield Measure("ddml", f"{name}_theory", theory, unit, "lower")
    yield Measure(
        "ddml",
        f"{name}_distance",
        abs(float(values.mean()) - theory) / error,
        "standard errors",
        "lower",
        MAX_ERRORS,
    )
