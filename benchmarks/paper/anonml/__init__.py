"""Test AUC of AnonML at several budgets, on rows that no choice was based on.

25 % of the rows are set aside first; the others are the people. Every figure is the mean over
seeds, which decide the assignment of questions and the noise. Small budgets get more seeds, because
their results vary more. epsilon is the whole budget of one person (replace one, against everyone):
the plain sum of everything that the person sends, or equation 6 if the row says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.measure import Measure
from benchmarks.paper.anonml.data import Example, example, in_bins
from benchmarks.paper.anonml.trials import Quality, logistic, trials, trivial
from shoal.simulation.metrics import RunMean

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
TOLERANCE = 0.01
"""Largest deficit of variant ``paper`` to an independent implementation of the same paper."""

REPEATED = ((1.0, 10), (2.0, 3), (math.inf, 1))
"""Factor of the number of seeds up to each epsilon: results vary more if it is small."""

UNITS = {"auc": "AUC", "accuracy": "accuracy"}

_THREE = {"n_partitions": 5, "subset_size": 3, "n_subsets": 2}
_ONE = {"n_partitions": 20, "subset_size": 1, "n_subsets": 2}


@dataclass(frozen=True)
class Row:
    """One line of the table: a study at several budgets.

    Parameters
    ----------
    key, title
        Name in measures, and in the table.
    study
        The example study.
    goals
        Target at each epsilon, if any.
    known
        Result of an independent implementation, if any.
    changes
        Differences from the study file, in addition to epsilon.
    quality
        AUC, or accuracy for several classes of which some are very rare.
    """

    key: str
    title: str
    study: str
    goals: Mapping[float, float] = field(default_factory=dict)
    known: Mapping[float, float] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)
    quality: Quality = "auc"


def _at(*figures: float | None) -> dict[float, float]:
    return {
        epsilon: figure
        for epsilon, figure in zip(EPSILONS, figures, strict=True)
        if figure is not None
    }


def _make_published_row(
    key: str, accounting: str, settings: dict[str, int], *figures: float
) -> Row:
    """Return a setting of the paper with the results of an independent implementation."""
    known = _at(*figures)
    sizes = "/".join(map(str, settings.values()))
    words = "plain sum" if accounting == "plain" else "equation 6"
    goals = {epsilon: figure - TOLERANCE for epsilon, figure in known.items()}
    return Row(
        key,
        f"Adult, `paper` {sizes}, {words}",
        "adult-paper",
        goals,
        known,
        {"accounting": accounting, **settings},
    )


ROWS = (
    Row(
        "adult_plus",
        "Adult, ranges and categories only",
        "adult",
        _at(0.815, 0.847, 0.863, 0.882, 0.897),
    ),
    Row(
        "adult_declared",
        "Adult, declared bins and groups",
        "adult-declared",
        _at(0.845, 0.862, 0.876, 0.890, 0.896),
    ),
    Row("bank_plus", "Bank, without duration", "bank", _at(None, 0.645, 0.69, 0.73, 0.748)),
    Row("oulad_plus", "OULAD, day 60", "oulad", _at(None, None, 0.585, 0.645, 0.672)),
    Row("phishing_plus", "Phishing", "phishing", _at(None, 0.89, 0.965, 0.976, 0.978)),
    Row("nursery_plus", "Nursery, five classes", "nursery", quality="accuracy"),
    _make_published_row(
        "adult_paper_5_3_2_eq6", "paper", _THREE, 0.787, 0.830, 0.850, 0.857, 0.857
    ),
    _make_published_row("adult_paper_20_1_2_eq6", "paper", _ONE, 0.815, 0.831, 0.842, 0.847, 0.846),
    _make_published_row(
        "adult_paper_5_3_2_plain", "plain", _THREE, 0.652, 0.738, 0.816, 0.845, 0.850
    ),
    _make_published_row(
        "adult_paper_20_1_2_plain", "plain", _ONE, 0.633, 0.753, 0.823, 0.842, 0.845
    ),
)


def measures(seeds: int = 20, only: str = "") -> Iterator[Measure]:
    """Yield the measures of rows with ``only`` in their key.

    Score, standard error and distance at each epsilon, and the score without privacy.
    """
    for row in _chosen(only):
        given, unit = example(row.study), UNITS[row.quality]
        for epsilon in EPSILONS:
            score, name = (
                _score(row, given, epsilon, seeds),
                f"{row.key}_{row.quality}_eps{epsilon:g}",
            )
            yield Measure("anonml", name, score.value, unit, "higher", row.goals.get(epsilon))
            if score.error is not None:
                yield Measure("anonml", f"{name}_se", score.error, unit, "lower")
            if epsilon in row.known:
                distance = abs(score.value - row.known[epsilon])
                yield Measure("anonml", f"{name}_distance", distance, unit, "lower", TOLERANCE)
        yield Measure(
            "anonml",
            f"{row.key}_{row.quality}_trivial",
            getattr(trivial(given), row.quality),
            unit,
            "higher",
        )
        yield Measure(
            "anonml", f"{row.key}_{row.quality}_no_privacy", _no_privacy(row, given), unit, "higher"
        )


def markdown(seeds: int = 20, only: str = "") -> Iterator[str]:
    """Yield the same as a table for the documentation, with standard errors.

    A figure in bold misses its target.
    """
    yield "| | " + " | ".join(f"{epsilon:g}" for epsilon in EPSILONS) + " | no privacy |"
    yield "|---" * (len(EPSILONS) + 2) + "|"
    for row in _chosen(only):
        given = example(row.study)
        cells = [_cell(row, epsilon, _score(row, given, epsilon, seeds)) for epsilon in EPSILONS]
        yield " | ".join([f"| {row.title}", *cells, f"{_short(_no_privacy(row, given))} |"])


def _chosen(only: str) -> Iterator[Row]:
    return (row for row in ROWS if only in row.key)


def _cell(row: Row, epsilon: float, score: RunMean) -> str:
    shown = _short(score.value) + ("" if score.error is None else f" ({_short(score.error)})")
    return f"**{shown}**" if score.value < row.goals.get(epsilon, 0.0) else shown


def _short(figure: float) -> str:
    return f"{figure:.3f}".removeprefix("0")


def _score(row: Row, given: Example, epsilon: float, seeds: int) -> RunMean:
    n = seeds * next(factor for largest, factor in REPEATED if epsilon <= largest)
    return trials(given, replace(given.params, epsilon=epsilon, **row.changes), n, row.quality)


def _no_privacy(row: Row, given: Example) -> float:
    """Return the score of logistic regression on the same rows.

    The rows are unchanged, or binned as variant ``paper`` bins them.
    """
    return float(getattr(logistic(in_bins(given) if row.known else given), row.quality))
