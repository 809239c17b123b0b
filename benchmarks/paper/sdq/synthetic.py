"""The same 10,000 synthetic rows on more and more databases, at B = .1.

The noise of a secure sum stays the same, that of SuLQ grows.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.measure import Measure
from benchmarks.paper.sdq.data import make_synthetic
from benchmarks.paper.sdq.trials import (
    ID3,
    PAPER,
    PLUS,
    SULQ,
    SUMS,
    Learner,
    cross_validate,
    majority,
)
from shoal.simulation.metrics import compute_mean

N_SETS = 16
"""Number of datasets; they differ far more than runs on one of them."""
SEEDS = 4
N_ROWS = 10_000
EPSILON = 0.1
DATABASES = (10, 50, 100, 500)
LEARNERS = (SULQ, PAPER, PLUS, SUMS)
FLAT = 1.5
"""Largest difference in points between few and many databases."""
UNIT = "%"


def measures(seeds: int = SEEDS, only: str = "") -> Iterator[Measure]:
    """Yield accuracy by number of databases, mean over datasets, and its change.

    Names begin with ``synthetic_`` and a learner.
    """
    if "synthetic_majority".startswith(only):
        yield Measure("sdq", "synthetic_majority", guessing(), UNIT, "higher")
    if "synthetic_id3".startswith(only):
        yield Measure("sdq", "synthetic_id3", mean_accuracy(ID3, EPSILON, 1), UNIT, "higher")
    for learner in LEARNERS:
        if (name := f"synthetic_{learner.key}").startswith(only):
            found = [accuracies(learner, EPSILON, seeds, n_databases=n) for n in DATABASES]
            for n, values in zip(DATABASES, found, strict=True):
                yield Measure("sdq", f"{name}_n{n}", statistics.fmean(values), UNIT, "higher")
            fall = compute_mean([few - many for few, many in zip(found[0], found[-1], strict=True)])
            if learner is SULQ:
                yield Measure("sdq", f"{name}_fall", fall.value, UNIT, "higher", FLAT)
            else:
                yield Measure("sdq", f"{name}_fall", fall.value, UNIT, "lower")
                yield Measure("sdq", f"{name}_change", abs(fall.value), UNIT, "lower", FLAT)
            yield Measure("sdq", f"{name}_fall_se", fall.error or 0.0, UNIT, "lower")


def markdown(seeds: int = SEEDS, only: str = "") -> Iterator[str]:
    """Yield the same as a table, with a column for each number of databases.

    The last column is the loss from few to many databases, with its error over datasets.
    """
    found = {one.measure: one.value for one in measures(seeds, only)}
    yield (
        "| 10,000 synthetic rows, B = .1 | "
        + " | ".join(f"N = {n}" for n in DATABASES)
        + " | lost |"
    )
    yield "|---" + "|---:" * (1 + len(DATABASES)) + "|"
    for title, name in (("most common class", "synthetic_majority"), (ID3.title, "synthetic_id3")):
        if name in found:
            yield f"| {title} | {found[name]:.1f} " + "| " * len(DATABASES) + "|"
    for learner in LEARNERS:
        name = f"synthetic_{learner.key}"
        if f"{name}_fall" in found:
            cells = [f"{found[f'{name}_n{n}']:.1f}" for n in DATABASES]
            yield (
                f"| {learner.title} | {' | '.join(cells)} | {found[f'{name}_fall']:.1f} "
                f"({found[f'{name}_fall_se']:.1f}) |"
            )


def accuracies(
    learner: Learner, epsilon: float, seeds: int, n_rows: int = N_ROWS, n_databases: int = 10
) -> list[float]:
    """Return the accuracy on each synthetic dataset, mean over runs."""
    sets = (make_synthetic(number, n_rows) for number in range(N_SETS))
    return [cross_validate(learner, rows, epsilon, seeds, n_databases).value for rows in sets]


def mean_accuracy(
    learner: Learner, epsilon: float, seeds: int, n_rows: int = N_ROWS, n_databases: int = 10
) -> float:
    """Return the mean accuracy over the synthetic datasets."""
    return statistics.fmean(accuracies(learner, epsilon, seeds, n_rows, n_databases))


def guessing(n_rows: int = N_ROWS) -> float:
    """Return the share of the most common class, mean over the synthetic datasets."""
    return statistics.fmean(majority(make_synthetic(number, n_rows)) for number in range(N_SETS))
