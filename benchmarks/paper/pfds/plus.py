"""Gain of holders by variant plus of PFDS: six tables, three settings, three budgets.

The settings are kinds of trust and noise. The partition is the paper's, uneven; epsilon is the
whole budget of one row (add or remove one). By default no holder colludes or drops out, and the
noise of a sum is that of one mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.measure import Measure
from benchmarks.paper.pfds.data import Floats, is_there, task
from benchmarks.paper.pfds.trials import (
    LOCAL,
    SUMS,
    SUMS_C33,
    SUMS_DELTA,
    SUMS_DELTA_C33,
    Errors,
    Release,
    Setting,
    Trial,
    Use,
    trials,
)

EPSILONS = (1.0, 0.5, 0.1)
SPLITS = {"retinopathy": 100}
"""Splits of a table so small that each test has only 115 rows."""
SEEDS = 20
"""Splits of any other table."""
YARDSTICKS = {
    "trivial": "most common class, or mean",
    "pooled": "all rows, no privacy",
    "own": "own rows alone",
}
USES: Mapping[Use, str] = {
    "home": "personal model",
    "model": "released model",
    "data": "logistic regression on released rows",
}


@dataclass(frozen=True, eq=False)
class Row:
    """One line of a table.

    Parameters
    ----------
    table, setting
        What is learned from, and how.
    use
        What is done with the release.
    goals
        Largest permitted error at each epsilon, if there is a target.
    """

    table: str
    setting: Setting
    use: Use = "home"
    goals: Mapping[float, float] = field(default_factory=dict)

    def name(self, epsilon: float) -> str:
        """Name in measures."""
        return f"plus_{self.table}_{self.setting.key}_{self.use}_eps{epsilon:g}"


@dataclass(frozen=True, eq=False)
class Found:
    """Results for one table.

    Parameters
    ----------
    yardsticks
        What can be had without privacy.
    errors
        By row and epsilon.
    """

    yardsticks: Mapping[str, Errors]
    errors: Mapping[tuple[Row, float], Errors]


def _at(*figures: float) -> dict[float, float]:
    return dict(zip(EPSILONS, figures, strict=False))


def _rows(
    table: str,
    local: Mapping[float, float],
    sums: Mapping[float, float],
    sums_delta: Mapping[float, float],
) -> list[Row]:
    return [
        Row(table, LOCAL, goals=local),
        Row(table, SUMS, goals=sums),
        Row(table, SUMS_DELTA, goals=sums_delta),
    ]


_ADULT = {
    LOCAL.key: _at(0.165, 0.168, 0.19),
    SUMS.key: _at(0.152, 0.154, 0.168),
    SUMS_DELTA.key: _at(0.148, 0.150, 0.160),
}
"""Targets of the model of the release alone."""
ROWS = (
    *_rows("retinopathy", {}, _at(0.405), _at(0.405)),
    *_rows(
        "phishing", _at(0.082, 0.082, 0.090), _at(0.080, 0.080, 0.088), _at(0.073, 0.076, 0.083)
    ),
    *_rows("news", _at(0.435, 0.443), _at(0.390, 0.406), _at(0.376, 0.381, 0.430)),
    *_rows("bike", _at(0.078, 0.082, 0.090), _at(0.056, 0.064, 0.088), _at(0.051, 0.056, 0.085)),
    *_rows("bank", _at(0.109, 0.111, 0.113), _at(0.103, 0.104, 0.110), _at(0.102, 0.103, 0.107)),
    *_rows("adult", _at(0.163, 0.165, 0.174), _at(0.151, 0.153, 0.164), _at(0.148, 0.150, 0.158)),
    *(
        Row("adult", setting, use, _ADULT[setting.key])
        for setting in (LOCAL, SUMS, SUMS_DELTA)
        for use in ("model", "data")
    ),
    Row("adult", SUMS_C33),
    Row("adult", SUMS_DELTA_C33),
)
"""From the smallest table to the largest. A row without a target makes no claim."""


def measures(seeds: int | None = None, only: str = "") -> Iterator[Measure]:
    """Yield error, its standard error and the share of holders who gain.

    Names begin with ``only``. The baselines of each table are included.
    """
    for table, found in _found(seeds, only):
        unit = "mse" if task(table).is_number else "error"
        for key in YARDSTICKS:
            yield Measure("pfds", f"plus_{table}_{key}", found.yardsticks[key].value, unit, "lower")
            yield Measure(
                "pfds", f"plus_{table}_{key}_se", found.yardsticks[key].uncertainty, unit, "lower"
            )
        own = found.yardsticks["own"]
        for (row, epsilon), errors in found.errors.items():
            name, goal = row.name(epsilon), row.goals.get(epsilon)
            yield Measure(
                "pfds",
                name,
                errors.value,
                unit,
                "lower",
                goal,
                "own rows alone",
                errors.value / own.value,
            )
            yield Measure("pfds", f"{name}_se", errors.uncertainty, unit, "lower")
            yield Measure("pfds", f"{name}_gain", errors.gains(own), "%", "higher")


def markdown(seeds: int | None = None, only: str = "") -> Iterator[str]:
    """Yield a table of errors for each dataset, in bold if they miss the target.

    The standard error and the share of holders who gain are included.
    """
    for table, found in _found(seeds, only):
        yield (
            f"| {table.capitalize()} | target | "
            + " | ".join(f"{epsilon:g}" for epsilon in EPSILONS)
            + " |"
        )
        yield "|---|---" + "|---:" * len(EPSILONS) + "|"
        for key, title in YARDSTICKS.items():
            yield f"| {title} | | {found.yardsticks[key].to_text()} |" + " |" * (len(EPSILONS) - 1)
        for row in dict.fromkeys(row for row, _ in found.errors):
            goals = " / ".join(f"{goal:.3f}".lstrip("0") for goal in row.goals.values())
            yield (
                f"| {USES[row.use]}, {row.setting.title} | {goals} | "
                + " | ".join(_cells(row, found))
                + " |"
            )
        yield ""


def _cells(row: Row, found: Found) -> Iterator[str]:
    for epsilon in EPSILONS:
        if (errors := found.errors.get((row, epsilon))) is None:
            yield ""
            continue
        is_missed = errors.value > row.goals.get(epsilon, math.inf)
        shown = f"**{errors.to_text()}**" if is_missed else errors.to_text()
        yield f"{shown} {errors.gains(found.yardsticks['own']):.0f} %"


def _found(seeds: int | None, only: str) -> Iterator[tuple[str, Found]]:
    for table in dict.fromkeys(row.table for row in ROWS):
        asked = [
            (row, epsilon)
            for row in ROWS
            for epsilon in EPSILONS
            if row.table == table and row.name(epsilon).startswith(only)
        ]
        if asked and is_there(task(table)):
            yield table, measure_errors(trials(table, seeds or SPLITS.get(table, SEEDS)), asked)


def measure_errors(splits: Iterable[Trial], asked: Sequence[tuple[Row, float]]) -> Found:
    """Return the errors of all requested rows, split by split."""
    yardsticks: dict[str, list[Floats]] = {key: [] for key in YARDSTICKS}
    errors: dict[tuple[Row, float], list[Floats]] = {one: [] for one in asked}
    for trial in splits:
        for key, value in {
            "trivial": [trial.trivial],
            "pooled": [trial.pooled],
            "own": trial.own,
        }.items():
            yardsticks[key].append(np.array(value))
        releases = {
            (row.setting, epsilon): Release(trial, row.setting, epsilon) for row, epsilon in asked
        }
        for row, epsilon in asked:
            errors[row, epsilon].append(releases[row.setting, epsilon].errors(row.use))
    return Found(
        {key: Errors(each) for key, each in yardsticks.items()},
        {one: Errors(each) for one, each in errors.items()},
    )
