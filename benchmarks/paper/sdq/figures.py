"""Figure 3 of the SDQ paper: accuracy by rows, budget and databases, and on Nursery.

In addition to the paper's three algorithms it shows variant ``plus`` and the score of guessing. The
direct secure sum is ID3 without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.paper.figure import PALETTE, Figure, Line, Panel
from benchmarks.paper.sdq.budgets import EPSILONS
from benchmarks.paper.sdq.data import example
from benchmarks.paper.sdq.synthetic import (
    DATABASES,
    EPSILON,
    N_ROWS,
    N_SETS,
    guessing,
    mean_accuracy,
)
from benchmarks.paper.sdq.trials import (
    ID3,
    N_DATABASES,
    PAPER,
    PLUS,
    SULQ,
    Learner,
    cross_validate,
    majority,
)

TRIALS = 1
"""Cross-validations of each synthetic dataset for each point.

Nursery has the same number of them as all synthetic datasets together.
"""
ROWS = (100, 250, 500, 1000, 2500, 5000)
"""Rows of each database."""
EPSILON_AXIS = "epsilon per record, add or remove one, plain sum"
_ACCURACY = "accuracy, %"
_LEARNERS = ((PLUS, "plus", "blue"), (PAPER, "SDQ, paper", "orange"), (SULQ, "SuLQ", "vermilion"))
_NOISELESS, _GUESS = "direct secure sum, no privacy", "guessing"


def figure(name: str, trials: int) -> Figure:
    """Return the figure with that name, one panel."""
    panel = {"sdq-3a": _by_rows, "sdq-3b": _by_budget, "sdq-3c": _by_databases, "sdq-3d": _nursery}[
        name
    ](trials)
    return Figure(name, [panel], columns=1)


def _by_rows(trials: int) -> Panel:
    def at(learner: Learner, n: float) -> float:
        return mean_accuracy(learner, EPSILON, trials, int(n) * N_DATABASES)

    guessed = [guessing(n * N_DATABASES) for n in ROWS]
    title = f"Figure 3a: synthetic rows, {N_DATABASES} databases, B = {EPSILON:g}"
    return _panel(title, "rows of each database", ROWS, at, [at(ID3, n) for n in ROWS], guessed)


def _by_budget(trials: int) -> Panel:
    def at(learner: Learner, epsilon: float) -> float:
        return mean_accuracy(learner, epsilon, trials)

    title = f"Figure 3b: synthetic rows, {N_DATABASES} databases of {N_ROWS // N_DATABASES:,}"
    return _panel(title, EPSILON_AXIS, EPSILONS, at, [at(ID3, EPSILON)], [guessing()])


def _by_databases(trials: int) -> Panel:
    def at(learner: Learner, n: float) -> float:
        return mean_accuracy(learner, EPSILON, trials, n_databases=int(n))

    title = f"Figure 3c: {N_ROWS:,} synthetic rows, B = {EPSILON:g}"
    return _panel(title, "databases", DATABASES, at, [at(ID3, N_DATABASES)], [guessing()])


def _nursery(trials: int) -> Panel:
    rows = example("nursery")

    def at(learner: Learner, epsilon: float) -> float:
        return cross_validate(learner, rows, epsilon, trials * N_SETS).value

    return _panel(
        f"Figure 3d: Nursery, {N_DATABASES} databases",
        EPSILON_AXIS,
        EPSILONS,
        at,
        [at(ID3, EPSILON)],
        [majority(rows)],
    )


def _panel(
    title: str,
    x_label: str,
    x: Sequence[float],
    at: Callable[[Learner, float], float],
    noiseless: Sequence[float],
    guessed: Sequence[float],
) -> Panel:
    """Return a panel: private lines solid, lines without privacy dashed, guessing dotted.

    A line that does not depend on x is one number.
    """
    lines = [
        Line(name, x, [at(learner, value) for value in x], colour=PALETTE[colour])
        for learner, name, colour in _LEARNERS
    ]
    for name, y, style, colour in (
        (_NOISELESS, noiseless, "dashed", "black"),
        (_GUESS, guessed, "dotted", "grey"),
    ):
        lines.append(Line(name, x if len(y) > 1 else [0], y, style, PALETTE[colour]))  # type: ignore[arg-type]
    return Panel(title, x_label, _ACCURACY, lines, has_log_x=True)
