"""Statistical tests that declare a false-positive rate and must reject a mutant.

Each statistical test is marked ``@statistical(alpha=...)``, its false-positive rate. The rates of
the whole suite add up to at most `BUDGET` a run; ``tests/conftest.py`` checks this. Seeds are
fixed, or fresh with ``SHOAL_FRESH_SEEDS=1``; the seed of a failing test is printed.

A test compares its draws with the distribution by one of the checks below, at its alpha. Then it
shows with `catches` that a mutant (half the noise, swapped chances, a reused draw) does not pass
the same check.
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


def fits(
    observed: npt.ArrayLike, chances: npt.ArrayLike, alpha: float, min_expected: float = 10.0
) -> bool:
    """Return whether counts of disjoint cells fit their chances, by the chi-square test.

    Cells with few expected counts are merged. ``chances`` may add up to less than 1: the rest is
    the chance of all other outcomes, and ``observed`` then has one more entry, their count.
    """
    counts, expected = np.asarray(observed, float), np.asarray(chances, float)
    if counts.size == expected.size + 1:
        expected = np.append(expected, max(0.0, 1 - expected.sum()))
    n = counts.sum()
    order = np.argsort(expected)
    expected, counts = expected[order], counts[order]
    # Merge every cell with too few expected counts into the first; if that is still too small,
    # merge the next one too.
    n_small = int(np.searchsorted(expected * n, min_expected))
    while 0 < n_small < expected.size and expected[:n_small].sum() * n < min_expected:
        n_small += 1
    if n_small:
        expected = np.concatenate([[expected[:n_small].sum()], expected[n_small:]])
        counts = np.concatenate([[counts[:n_small].sum()], counts[n_small:]])
    if expected.size < 2:
        raise ValueError("fewer than two cells with enough expected counts: draw more")
    statistic = ((counts - n * expected) ** 2 / (n * expected)).sum()
    return bool(stats.chi2.sf(statistic, expected.size - 1) >= alpha)


def is_chance(successes: int, n: int, chance: float, alpha: float) -> bool:
    """Return whether a number of successes fits a chance, by the exact binomial test.

    The test is two-sided.
    """
    return bool(stats.binomtest(int(successes), int(n), float(chance)).pvalue >= alpha)


def is_mean(sample: npt.ArrayLike, mean: float, sd: float, alpha: float) -> bool:
    """Return whether a sample mean fits, by the normal approximation.

    It is for variables with a modest fourth moment.
    """
    values = np.asarray(sample, float)
    z = abs(values.mean() - mean) / (sd / np.sqrt(values.size))
    return bool(2 * stats.norm.sf(z) >= alpha)


def catches(check: Callable[[], bool], tries: int = 3) -> bool:
    """Return whether a check rejects a mutant every time.

    The sample sizes of the tests make this all but certain; each test gives its power calculation.
    """
    return not any(check() for _ in range(tries))


def tally(values: npt.ArrayLike, support: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return how often each value of the support occurs, and last, how often any other does."""
    array = np.asarray(values).ravel()
    low, high = min(support), max(support)
    inside = (array >= low) & (array <= high)
    counts = np.bincount((array[inside] - low).astype(np.int64), minlength=high - low + 1)
    picked = counts[np.asarray(support) - low]
    return np.append(picked, array.size - picked.sum())
