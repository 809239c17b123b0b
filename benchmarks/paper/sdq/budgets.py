"""Nursery and Adult on ten databases at several budgets: accuracy by ten folds.

epsilon is B, the whole budget of one row for all rounds (add or remove one, against the miner and
the databases that may collude).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from benchmarks.measure import Measure
from benchmarks.paper.sdq.data import example, is_there
from benchmarks.paper.sdq.trials import (
    BAYES,
    DEEP_ID3,
    ID3,
    PAPER,
    PAPER_C3,
    PLUS,
    PLUS_C3,
    SEEDS,
    SULQ,
    SUMS_C5,
    Accuracy,
    Learner,
    cross_validate,
    majority,
)

EPSILONS = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0)
TOLERANCE = 4.0
"""Largest difference of variant ``paper`` from an independent implementation, in points."""
UNIT = "%"


@dataclass(frozen=True)
class Row:
    """One line of a table.

    Parameters
    ----------
    table, learner
        The table to learn from, and the learner.
    goals
        Target at each epsilon, if any.
    known
        Result of an independent implementation, if any.
    """

    table: str
    learner: Learner
    goals: Mapping[float, float] = field(default_factory=dict)
    known: Mapping[float, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name in measures."""
        return f"{self.table}_{self.learner.key}"

    @property
    def epsilons(self) -> tuple[float, ...]:
        """Budgets at which it is measured; a learner without noise is measured once."""
        return EPSILONS if self.learner.is_private else (math.inf,)


def _at(*figures: float) -> dict[float, float]:
    return dict(zip(EPSILONS, figures, strict=True))


ROWS = (
    Row("nursery", ID3),
    Row("nursery", DEEP_ID3),
    Row("nursery", SULQ),
    Row("nursery", PAPER, known=_at(30.5, 32, 41, 46, 75, 80)),
    Row("nursery", PAPER_C3),
    Row("nursery", PLUS, _at(66, 70, 86, 88, 90.5, 92)),
    Row("nursery", PLUS_C3, _at(65, 68, 85, 87, 90, 91.5)),
    Row("nursery", SUMS_C5),
    Row("nursery", BAYES),
    Row("adult", ID3),
    Row("adult", DEEP_ID3),
    Row("adult", SULQ),
    Row("adult", PAPER),
    Row("adult", PLUS, _at(77.5, 79, 81, 83, 84, 84.5)),
    Row("adult", PLUS_C3),
    Row("adult", SUMS_C5),
    Row("adult", BAYES),
)


def measures(seeds: int = SEEDS, only: str = "") -> Iterator[Measure]:
    """Yield the measures with names that begin with ``only``.

    Accuracy and its deviation over runs, and the distance of ``paper`` from known results and from
    SuLQ.
    """
    for table in _tables():
        if (name := f"{table}_majority").startswith(only):
            yield Measure("sdq", name, majority(example(table)), UNIT, "higher")
        reached = {}
        for row, epsilon, found in _found(table, seeds, only):
            name = _name(row, epsilon)
            yield Measure("sdq", name, found.value, UNIT, "higher", row.goals.get(epsilon))
            if seeds > 1:
                yield Measure("sdq", f"{name}_sd", found.deviation, UNIT, "lower")
            if epsilon in row.known:
                yield Measure(
                    "sdq",
                    f"{name}_distance",
                    abs(found.value - row.known[epsilon]),
                    UNIT,
                    "lower",
                    TOLERANCE,
                )
            reached[row.learner.key, epsilon] = found.value
            if row.learner is PAPER and (SULQ.key, epsilon) in reached:
                above = found.value - reached[SULQ.key, epsilon]
                yield Measure(
                    "sdq", f"{name}_above_sulq", above, UNIT, "higher", 0.0 if row.known else None
                )


def markdown(seeds: int = SEEDS, only: str = "") -> Iterator[str]:
    """Yield a table for each dataset.

    A figure in bold misses its target, or is too far from the known result.
    """
    is_first = True
    for table in _tables():
        cells: dict[str, list[str]] = {}
        for row, epsilon, found in _found(table, seeds, only):
            cells.setdefault(row.learner.title, []).append(_cell(row, epsilon, found))
        if not cells:
            continue
        if not is_first:
            yield ""
        is_first = False
        yield (
            f"| {table.capitalize()} | " + " | ".join(f"{epsilon:g}" for epsilon in EPSILONS) + " |"
        )
        yield "|---" + "|---:" * len(EPSILONS) + "|"
        for title, shown in {
            "most common class": [f"{majority(example(table)):.1f}"],
            **cells,
        }.items():
            yield f"| {title} | " + " | ".join(shown + [""] * (len(EPSILONS) - len(shown))) + " |"


def _tables() -> Iterator[str]:
    return (table for table in dict.fromkeys(row.table for row in ROWS) if is_there(table))


def _found(table: str, seeds: int, only: str) -> Iterator[tuple[Row, float, Accuracy]]:
    for row in ROWS:
        for epsilon in row.epsilons:
            if row.table == table and _name(row, epsilon).startswith(only):
                yield row, epsilon, cross_validate(row.learner, example(table), epsilon, seeds)


def _name(row: Row, epsilon: float) -> str:
    return f"{row.name}_eps{epsilon:g}" if row.learner.is_private else row.name


def _cell(row: Row, epsilon: float, found: Accuracy) -> str:
    is_missed = (
        found.value < row.goals.get(epsilon, 0.0)
        or abs(found.value - row.known.get(epsilon, found.value)) > TOLERANCE
    )
    return f"**{found.to_text()}**" if is_missed else found.to_text()
