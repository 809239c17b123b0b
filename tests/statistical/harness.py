"""Tests of distributions that say how often they fail by chance, and that are shown to catch a mutant.

Each statistical test is marked ``@statistical(alpha=...)``, its false-positive rate; the rates of the whole suite add up to at
most `BUDGET` a run (kept by the ``conftest`` beside this file). Seeds are fixed, or fresh with ``SHOAL_FRESH_SEEDS=1``; the seed of a
failing test is printed. A test compares what it draws with the law by one of the checkers below, at its alpha, and then shows
with `catches` that a mutant (half the noise, swapped chances, a reused draw) does not pass the same check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

BUDGET = 1e-6


def statistical(alpha: float) -> pytest.MarkDecorator:
    """Mark a test with its false-positive rate; the test takes the fixture ``entropy``."""
    return pytest.mark.statistical(alpha=alpha)


def fits(observed: npt.ArrayLike, chances: npt.ArrayLike, alpha: float, min_expected: float = 10.0) -> bool:
    """Chi-square: whether counts of disjoint cells fit their chances; cells with few expected are merged, and the rest is a cell.

    ``chances`` may add up to less than 1: what is missing is the chance of all other outcomes, and ``observed`` has one more
    entry then, their count.
    """
    counts, law = np.asarray(observed, float), np.asarray(chances, float)
    if counts.size == law.size + 1:
        law = np.append(law, max(0.0, 1 - law.sum()))
    n = counts.sum()
    order = np.argsort(law)
    law, counts = law[order], counts[order]
    # Every cell that is expected too seldom joins the first one; if that is still too small, it takes in the next.
    n_small = int(np.searchsorted(law * n, min_expected))
    while 0 < n_small < law.size and law[:n_small].sum() * n < min_expected:
        n_small += 1
    if n_small:
        law = np.concatenate([[law[:n_small].sum()], law[n_small:]])
        counts = np.concatenate([[counts[:n_small].sum()], counts[n_small:]])
    if law.size < 2:
        raise ValueError("fewer than two cells with enough expected counts: draw more")
    statistic = ((counts - n * law) ** 2 / (n * law)).sum()
    return bool(stats.chi2.sf(statistic, law.size - 1) >= alpha)


def is_chance(successes: int, n: int, chance: float, alpha: float) -> bool:
    """Whether a number of successes fits a chance, by the exact two-sided binomial test."""
    return bool(stats.binomtest(int(successes), int(n), float(chance)).pvalue >= alpha)


def is_mean(sample: npt.ArrayLike, mean: float, sd: float, alpha: float) -> bool:
    """Whether a sample mean fits, by the normal law of means; for variables whose fourth moment is modest."""
    values = np.asarray(sample, float)
    z = abs(values.mean() - mean) / (sd / np.sqrt(values.size))
    return bool(2 * stats.norm.sf(z) >= alpha)


def catches(check: Callable[[], bool], tries: int = 3) -> bool:
    """Whether a check rejects a mutant every time; a sample size by the power calculation makes this all but certain."""
    return not any(check() for _ in range(tries))


def tally(values: npt.ArrayLike, support: Sequence[int]) -> npt.NDArray[np.int64]:
    """How often each value of the support occurs, and at the end how often anything else does."""
    array = np.asarray(values).ravel()
    low, high = min(support), max(support)
    inside = (array >= low) & (array <= high)
    counts = np.bincount((array[inside] - low).astype(np.int64), minlength=high - low + 1)
    picked = counts[np.asarray(support) - low]
    return np.append(picked, array.size - picked.sum())
