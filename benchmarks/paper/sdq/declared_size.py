"""A declared size that differs from the true one: Nursery, ten databases.

The rules of variant ``plus`` use the declared size only.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.measure import Measure
from benchmarks.paper.sdq.budgets import EPSILONS, UNIT
from benchmarks.paper.sdq.data import example, is_there
from benchmarks.paper.sdq.trials import PLUS, SEEDS, Accuracy, cross_validate

FACTORS = (0.5, 0.75, 1.0, 1.1, 1.5, 2.0)
"""Declared rows for each true row."""


def measures(seeds: int = SEEDS, only: str = "") -> Iterator[Measure]:
    """Yield accuracy by declared size, for names that begin with ``only``."""
    for factor, epsilon, found in _found(seeds, only):
        yield Measure("sdq", _name(factor, epsilon), found.value, UNIT, "higher")


def markdown(seeds: int = SEEDS, only: str = "") -> Iterator[str]:
    """Yield the same as a table."""
    cells: dict[float, list[str]] = {}
    for factor, _, found in _found(seeds, only):
        cells.setdefault(factor, []).append(found.to_text())
    yield (
        "| declared, of the true size | "
        + " | ".join(f"{epsilon:g}" for epsilon in EPSILONS)
        + " |"
    )
    yield "|---:" * (1 + len(EPSILONS)) + "|"
    for factor, shown in cells.items():
        yield f"| {factor:g} | " + " | ".join(shown) + " |"


def _found(seeds: int, only: str) -> Iterator[tuple[float, float, Accuracy]]:
    for factor in FACTORS if is_there("nursery") else ():
        for epsilon in EPSILONS:
            if _name(factor, epsilon).startswith(only):
                yield (
                    factor,
                    epsilon,
                    cross_validate(PLUS, example("nursery"), epsilon, seeds, declared=factor),
                )


def _name(factor: float, epsilon: float) -> str:
    return f"declared_{factor:g}_nursery_{PLUS.key}_eps{epsilon:g}"
