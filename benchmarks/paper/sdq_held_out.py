"""The quarter of Nursery and of Adult on which nothing was chosen: learned from the other rows, at several budgets."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measure import Measure
from benchmarks.paper.sdq_budgets import EPSILONS, UNIT
from benchmarks.paper.sdq_data import STUDIES, example, held_apart, is_there
from benchmarks.paper.sdq_trials import BAYES, PLUS, PLUS_C3, SUMS_C5, Accuracy, Learner, tried

LEARNERS = (PLUS, PLUS_C3, SUMS_C5, BAYES)
SEEDS = 20


def measures(seeds: int = SEEDS, only: str = "") -> Iterator[Measure]:
    """Names that begin with ``only``: accuracy on those rows, and its deviation over runs."""
    for table, learner, epsilon, found in _found(seeds, only):
        name = _name(table, learner, epsilon)
        yield Measure("sdq", name, found.value, UNIT, "higher")
        if seeds > 1:
            yield Measure("sdq", f"{name}_sd", found.deviation, UNIT, "lower")


def markdown(seeds: int = SEEDS, only: str = "") -> Iterator[str]:
    """The same as a table."""
    cells: dict[str, list[str]] = {}
    for table, learner, _, found in _found(seeds, only):
        cells.setdefault(f"{table.capitalize()}, {learner.title}", []).append(found.to_text())
    yield "| rows that nothing was chosen on | " + " | ".join(f"{epsilon:g}" for epsilon in EPSILONS) + " |"
    yield "|---" + "|---:" * len(EPSILONS) + "|"
    for title, shown in cells.items():
        yield f"| {title} | " + " | ".join(shown) + " |"


def _found(seeds: int, only: str) -> Iterator[tuple[str, Learner, float, Accuracy]]:
    for table in filter(is_there, STUDIES):
        asked, unseen = held_apart(example(table))
        for learner in LEARNERS:
            for epsilon in EPSILONS:
                if _name(table, learner, epsilon).startswith(only):
                    yield table, learner, epsilon, tried(learner, asked, unseen, epsilon, seeds)


def _name(table: str, learner: Learner, epsilon: float) -> str:
    return f"held_out_{table}_{learner.key}_eps{epsilon:g}"
