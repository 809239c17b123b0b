"""The quarter of Nursery and of Adult that no choice was based on, at several budgets.

The models are learned from the other rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measure import Measure
from benchmarks.paper.sdq.budgets import EPSILONS, UNIT
from benchmarks.paper.sdq.data import STUDIES, example, is_there, split_held_out
from benchmarks.paper.sdq.trials import BAYES, PLUS, PLUS_C3, SUMS_C5, Accuracy, Learner, score

LEARNERS = (PLUS, PLUS_C3, SUMS_C5, BAYES)
SEEDS = 20


def measures(seeds: int = SEEDS, only: str = "") -> Iterator[Measure]:
    """Yield accuracy on those rows and its deviation, for names that begin with ``only``."""
    for table, learner, epsilon, found in _found(seeds, only):
        name = _name(table, learner, epsilon)
        yield Measure("sdq", name, found.value, UNIT, "higher")
        if seeds > 1:
            yield Measure("sdq", f"{name}_sd", found.deviation, UNIT, "lower")


def markdown(seeds: int = SEEDS, only: str = "") -> Iterator[str]:
    """Yield the same as a table."""
    cells: dict[str, list[str]] = {}
    for table, learner, _, found in _found(seeds, only):
        cells.setdefault(f"{table.capitalize()}, {learner.title}", []).append(found.to_text())
    yield ("| held-out rows | " + " | ".join(f"{epsilon:g}" for epsilon in EPSILONS) + " |")
    yield "|---" + "|---:" * len(EPSILONS) + "|"
    for title, shown in cells.items():
        yield f"| {title} | " + " | ".join(shown) + " |"


def _found(seeds: int, only: str) -> Iterator[tuple[str, Learner, float, Accuracy]]:
    for table in filter(is_there, STUDIES):
        asked, unseen = split_held_out(example(table))
        for learner in LEARNERS:
            for epsilon in EPSILONS:
                if _name(table, learner, epsilon).startswith(only):
                    yield table, learner, epsilon, score(learner, asked, unseen, epsilon, seeds)


def _name(table: str, learner: Learner, epsilon: float) -> str:
    return f"held_out_{table}_{learner.key}_eps{epsilon:g}"
