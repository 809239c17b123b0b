"""The same 10,000 made-up rows on ever more databases, at B = .1: the noise of a secure sum stays, that of SuLQ grows."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from benchmarks.measure import Measure
from benchmarks.paper.sdq_data import made_up
from benchmarks.paper.sdq_trials import ID3, PAPER, PLUS, SULQ, SUMS, Learner, cross_validated, majority
from shoal.sim.scores import mean_of

N_SETS = 16
"""They differ far more than runs on one of them do."""
SEEDS = 4
N_ROWS = 10_000
EPSILON = 0.1
DATABASES = (10, 50, 100, 500)
LEARNERS = (SULQ, PAPER, PLUS, SUMS)
FLAT = 1.5
"""Most points between few and many databases."""
UNIT = "%"


def measures(seeds: int = SEEDS, only: str = "") -> Iterator[Measure]:
    """Names that begin with ``synthetic_`` and a learner: accuracy by number of databases, mean over datasets, and how much it changes."""
    if "synthetic_majority".startswith(only):
        yield Measure("sdq", "synthetic_majority", guessing(), UNIT, "higher")
    if "synthetic_id3".startswith(only):
        yield Measure("sdq", "synthetic_id3", mean_accuracy(ID3, EPSILON, 1), UNIT, "higher")
    for learner in LEARNERS:
        if (name := f"synthetic_{learner.key}").startswith(only):
            found = [accuracies(learner, EPSILON, seeds, n_databases=n) for n in DATABASES]
            for n, values in zip(DATABASES, found, strict=True):
                yield Measure("sdq", f"{name}_n{n}", statistics.fmean(values), UNIT, "higher")
            fall = mean_of([few - many for few, many in zip(found[0], found[-1], strict=True)])
            if learner is SULQ:
                yield Measure("sdq", f"{name}_fall", fall.value, UNIT, "higher", FLAT)
            else:
                yield Measure("sdq", f"{name}_fall", fall.value, UNIT, "lower")
                yield Measure("sdq", f"{name}_change", abs(fall.value), UNIT, "lower", FLAT)
            yield Measure("sdq", f"{name}_fall_se", fall.error or 0.0, UNIT, "lower")


def markdown(seeds: int = SEEDS, only: str = "") -> Iterator[str]:
    """The same as a table, a column for each number of databases, and how much is lost from few to many, with its error over datasets."""
    found = {one.measure: one.value for one in measures(seeds, only)}
    yield "| 10,000 made-up rows, B = .1 | " + " | ".join(f"N = {n}" for n in DATABASES) + " | lost |"
    yield "|---" + "|---:" * (1 + len(DATABASES)) + "|"
    for title, name in (("most common class", "synthetic_majority"), (ID3.title, "synthetic_id3")):
        if name in found:
            yield f"| {title} | {found[name]:.1f} " + "| " * len(DATABASES) + "|"
    for learner in LEARNERS:
        name = f"synthetic_{learner.key}"
        if f"{name}_fall" in found:
            cells = [f"{found[f'{name}_n{n}']:.1f}" for n in DATABASES]
            yield f"| {learner.title} | {' | '.join(cells)} | {found[f'{name}_fall']:.1f} ({found[f'{name}_fall_se']:.1f}) |"


def accuracies(learner: Learner, epsilon: float, seeds: int, n_rows: int = N_ROWS, n_databases: int = 10) -> list[float]:
    """Of each of the made-up datasets, mean over runs."""
    sets = (made_up(number, n_rows) for number in range(N_SETS))
    return [cross_validated(learner, rows, epsilon, seeds, n_databases).value for rows in sets]


def mean_accuracy(learner: Learner, epsilon: float, seeds: int, n_rows: int = N_ROWS, n_databases: int = 10) -> float:
    """Mean over the made-up datasets."""
    return statistics.fmean(accuracies(learner, epsilon, seeds, n_rows, n_databases))


def guessing(n_rows: int = N_ROWS) -> float:
    """The most common class, mean over the made-up datasets."""
    return statistics.fmean(majority(made_up(number, n_rows)) for number in range(N_SETS))
