"""Figures 5, 6 and 7 of the AnonML paper: test AUC by budget and settings.

Equation 6 and the plain sum are two accountings of the same answers: with two subsets and five
private medians the sum is 3.5 times the result of equation 6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.paper.anonml.data import Example, example, for_paper
from benchmarks.paper.anonml.trials import logistic, trials
from benchmarks.paper.figure import EPSILON, PALETTE, RAMP, Figure, Line, Panel
from shoal.protocols.anonml.params import AnonMLPaperParams

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
WIDE = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SETTINGS = {"5 partitions, 2 subsets of 3": (5, 3), "20 partitions, 2 subsets of 1": (20, 1)}
SIZES = (1, 2, 3, 4, 5)
PARTITIONS = (1, 2, 4, 8, 16, 32)
N_SUBSETS = 2
_TEST = "test AUC"
_GUESS = Line("guessing", [0], [0.5], "dotted", PALETTE["grey"])


def figure(name: str, trials: int) -> Figure:
    """Return the figure with that name, with ``trials`` trials for each point."""
    return {"anonml-5": _by_budget, "anonml-6": _by_size, "anonml-7": _by_partitions}[name](trials)


def _by_budget(n: int) -> Figure:
    """Return Figure 5: both settings on Adult and OULAD, both accountings, and ``plus``."""
    panels = []
    for title, paper, plus in (
        ("Adult", for_paper("adult-paper"), example("adult")),
        ("OULAD", for_paper("oulad"), example("oulad")),
    ):
        learned = [
            trials(plus, replace(plus.params, epsilon=epsilon), n).value for epsilon in EPSILONS
        ]
        ceiling = logistic(plus).auc
        for words, (partitions, size) in SETTINGS.items():
            at = partial(_score_paper, paper, partitions, size, n)
            lines = [
                Line("plus, plain sum", EPSILONS, learned, colour=PALETTE["blue"]),
                Line(
                    "paper, plain sum",
                    EPSILONS,
                    [at(epsilon) for epsilon in EPSILONS],
                    colour=PALETTE["orange"],
                ),
                Line(
                    "paper, equation 6",
                    EPSILONS,
                    [at(epsilon, "paper") for epsilon in EPSILONS],
                    colour=PALETTE["vermilion"],
                ),
                Line("paper, no perturbation", [0], [at(math.inf)], "dashed", PALETTE["vermilion"]),
                Line("logistic regression", [0], [ceiling], "dashed", PALETTE["black"]),
                _GUESS,
            ]
            panels.append(
                Panel(
                    f"Figure 5: {title}; {words}",
                    f"{EPSILON} (or equation 6)",
                    _TEST,
                    lines,
                    has_log_x=True,
                )
            )
    return Figure("anonml-5", panels)


def _by_size(n: int) -> Figure:
    """Return Figure 6: subsets of one to five features, with 5 and 20 partitions."""
    adult = for_paper("adult-paper")
    by_budget, by_size = [], []
    for partitions, letters in ((5, "ac"), (20, "bd")):
        found = {size: _points(adult, partitions, size, n) for size in SIZES}
        by_budget.append(
            _budget_panel(
                f"Figure 6{letters[0]}: Adult, {partitions} partitions",
                {f"subsets of {k}": found[k] for k in SIZES},
            )
        )
        by_size.append(
            _setting_panel(
                f"Figure 6{letters[1]}: Adult, {partitions} partitions",
                "features in a subset",
                found,
            )
        )
    return Figure("anonml-6", by_budget + by_size)


def _by_partitions(n: int) -> Figure:
    """Return Figure 7: one to 32 partitions, with subsets of three features."""
    adult = for_paper("adult-paper")
    found = {partitions: _points(adult, partitions, 3, n) for partitions in PARTITIONS}
    named = {f"{k} partition{'s' * (k > 1)}": points for k, points in found.items()}
    panels = [
        _budget_panel("Figure 7a: Adult, subsets of 3", named),
        _setting_panel("Figure 7b: Adult, subsets of 3", "partitions", found, has_log_x=True),
    ]
    return Figure("anonml-7", panels, columns=1)


def _score_paper(
    paper: Example, partitions: int, size: int, n: int, epsilon: float, accounting: str = "plain"
) -> float:
    """Return the mean test AUC of variant ``paper``; an infinite epsilon means no noise."""
    assert isinstance(paper.params, AnonMLPaperParams)
    changes: dict[str, Any] = {
        "n_partitions": partitions,
        "subset_size": size,
        "n_subsets": N_SUBSETS,
        "accounting": accounting,
    }
    return trials(paper, replace(paper.params, epsilon=epsilon, **changes), n).value


def _points(paper: Example, partitions: int, size: int, n: int) -> dict[float, float]:
    return {
        epsilon: _score_paper(paper, partitions, size, n, epsilon) for epsilon in (*WIDE, math.inf)
    }


def _budget_panel(title: str, found: Mapping[str, Mapping[float, float]]) -> Panel:
    lines: list[Line] = []
    for (name, points), colour in zip(found.items(), RAMP, strict=False):
        lines.append(Line(name, WIDE, [points[epsilon] for epsilon in WIDE], colour=colour))
        lines.append(Line(name, [0], [points[math.inf]], "dashed", colour))
    return Panel(
        title,
        EPSILON,
        _TEST,
        [*lines, _GUESS],
        has_log_x=True,
        top=("the same by equation 6", 2 / 7),
    )


def _setting_panel(
    title: str, x_label: str, found: Mapping[int, Mapping[float, float]], has_log_x: bool = False
) -> Panel:
    settings: Sequence[int] = list(found)
    lines = [
        Line(
            f"epsilon {epsilon:g}",
            settings,
            [found[setting][epsilon] for setting in settings],
            colour=colour,
        )
        for epsilon, colour in zip(WIDE, RAMP, strict=True)
    ]
    noiseless = Line(
        "no perturbation",
        settings,
        [found[setting][math.inf] for setting in settings],
        "dashed",
        PALETTE["black"],
    )
    return Panel(title, x_label, _TEST, [*lines, noiseless, _GUESS], has_log_x=has_log_x)
