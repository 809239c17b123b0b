"""Forecasts against real studies on the rows that were not public.

Each setting is a study, a number of public rows, a size and an epsilon. A **unit** is one setting
with one random division of its table: the forecast is made from the public rows, and four studies
run on the others. Given the tables, units are independent: each has a new division and new noise.
Results within a unit are dependent, because all four studies are compared with the same intervals.
The covered share of a unit therefore counts as one number between 0 and 1, with any distribution.

By Hoeffding (1963, Theorem 1), the mean of S such numbers, each with a mean of at least p, is at
most x < p with a chance of at most exp(-S KL(x, p)). That gives the least mean coverage at which
the test passes: 0.55 of 40 units at a level of 0.9. The limits on the widths were chosen on other
settings, before these were run.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from operator import ge
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.paper.anonml.data import DATA, ROOT
from shoal.data.tables import read_table_file
from shoal.entropy import SeededEntropy
from shoal.simulation.forecast.intervals import PredictionInterval
from shoal.simulation.forecast.points import ForecastConfig, ForecastPoints, count_rows
from shoal.simulation.forecast.sources import PublicRows
from shoal.simulation.forecast.trials import ForecastTrial, ForecastTrialResult, run_trial
from shoal.simulation.metrics import compute_errors, compute_scores
from shoal.simulation.pfds import simulate_release
from shoal.simulation.registry import make_simulation_params, run
from shoal.simulation.run import RunTask, Split
from shoal.simulation.sweep import vary
from shoal.study.loader import load_study
from shoal.study.spec import Study
from tests.statistical.harness import statistical

ALPHA = 1e-7
LEVEL = 0.9
N_DIVISIONS, N_REAL, N_UNSEEN, REPEATS = 2, 4, 3_000, 12
WRONG = 16
"""Factor on epsilon in a forecast that the test must reject."""

HALF_WIDTH = 0.045
"""Limit: the median half-width of an interval of accuracy, over all units."""
PART_OF_GAP = 0.35
"""Limit: the median half-width of an interval of RMSE, as a part of the gap between guessing and no
privacy.
"""

TABLES = {
    "adult": "adult",
    "bank": "bank_marketing",
    "oulad": "mooc_dropout_oulad",
    "phishing": "phishing_websites",
    "nursery": "nursery",
    "bike": "bike_sharing_hour",
}
pytestmark = pytest.mark.skipif(
    not all((DATA / f"{name}.csv.gz").exists() for name in TABLES.values()),
    reason="the datasets are not in $SHOAL_DATA or ../shared/data; `make data` fetches them",
)


@dataclass(frozen=True)
class Setting:
    """An example study at a size and an epsilon, with the number of public rows."""

    example: str
    n_public: int
    size: int
    epsilon: float


SETTINGS = (
    Setting("adult", 4_000, 6_000, 1.5),
    Setting("adult-declared", 8_000, 5_000, 1.0),
    Setting("adult-paper", 5_000, 6_000, 3.0),
    Setting("bank", 6_000, 8_000, 1.5),
    Setting("oulad", 5_000, 6_000, 1.0),
    Setting("phishing", 2_500, 3_000, 1.5),
    Setting("nursery", 3_000, 4_000, 3.0),
    Setting("adult-ddml", 4_000, 2_000, 3.0),
    Setting("adult-ddml", 6_000, 4_000, 2.0),
    Setting("phishing-ddml", 2_000, 2_000, 3.0),
    Setting("phishing-ddml", 3_000, 1_500, 4.0),
    Setting("nursery-sdq", 3_000, 3_000, 1.0),
    Setting("nursery-sdq", 2_000, 5_000, 0.5),
    Setting("adult-sdq", 5_000, 4_000, 0.5),
    Setting("adult-sdq", 4_000, 10_000, 0.3),
    Setting("adult-pfds", 5_000, 5_000, 1.0),
    Setting("adult-pfds-sums", 5_000, 6_000, 0.5),
    Setting("adult-pfds-sums", 3_000, 2_000, 1.0),
    Setting("bike-pfds", 4_000, 5_000, 1.0),
    Setting("bike-pfds", 5_000, 3_000, 2.0),
)
"""All four protocols, six tables; the studies are neither hopeless nor sure of the best result."""


@dataclass(frozen=True)
class MeasureForecast:
    """One measure of a unit: forecasts for the right and a wrong epsilon, and four results.

    ``gap`` is the scale of the measure.
    """

    measure: str
    right: PredictionInterval
    wrong: PredictionInterval
    real: tuple[float, ...]
    gap: float

    def compute_coverage(self, *, part: float = 1.0, is_wrong: bool = False) -> float:
        """Return the share of the studies in the interval, which may be made narrower."""
        interval = self.wrong if is_wrong else self.right
        low, high = (
            interval.value + part * (end - interval.value) for end in (interval.low, interval.high)
        )
        return sum(low <= one <= high for one in self.real) / len(self.real)


Unit = tuple[MeasureForecast, ...]


def compute_least_coverage(n_units: int, level: float, alpha: float) -> float:
    """Return the mean coverage below which units fall with a chance of at most alpha.

    This holds if intervals cover at their level.
    """

    def log_chance(x: float) -> float:
        return -n_units * (x * math.log(x / level) + (1 - x) * math.log((1 - x) / (1 - level)))

    low, high = 1e-9, level
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if log_chance(middle) <= math.log(alpha) else (low, middle)
    return low


def compute_mean_coverage(units: list[Unit], kind: int, **how: Any) -> float:
    """Return the mean coverage over units of a kind of measure.

    The kinds are 0 for accuracy and RMSE, and 1 for AUC and R squared, which some units do not
    have.
    """
    return statistics.fmean(
        unit[kind].compute_coverage(**how) for unit in units if len(unit) > kind
    )


def test_coverage_bound_is_at_most_binomial_bound() -> None:
    def compute_binomial_tail(most: int) -> float:
        return sum(math.comb(40, k) * LEVEL**k * (1 - LEVEL) ** (40 - k) for k in range(most + 1))

    n = math.floor(40 * compute_least_coverage(40, LEVEL, ALPHA))
    assert 0.4 < n / 40 < 0.6 and compute_binomial_tail(n) <= ALPHA < compute_binomial_tail(n + 3)


@statistical(alpha=2 * ALPHA)
def test_forecast_intervals_cover_real_studies_and_are_narrow(entropy: SeededEntropy) -> None:
    units = [
        run_unit(setting, entropy.spawn(i, j).below(1 << 32))
        for i in range(N_DIVISIONS)
        for j, setting in enumerate(SETTINGS)
    ]
    least = [
        compute_least_coverage(sum(len(unit) > kind for unit in units), LEVEL, ALPHA)
        for kind in (0, 1)
    ]
    found, narrow, wrong = (
        [compute_mean_coverage(units, kind, **how) for kind in (0, 1)]
        for how in ({}, {"part": 0.25}, {"is_wrong": True})
    )
    halves = {
        measure: [
            (seen.right.high - seen.right.low) / 2 / seen.gap
            for unit in units
            for seen in unit
            if seen.measure == measure
        ]
        for measure in ("accuracy", "rmse")
    }
    medians = {measure: statistics.median(values) for measure, values in halves.items()}
    print(
        f"covered {found}, said {LEVEL}, least {least}; a quarter of the width {narrow}; epsilon "
        f"x {WRONG} {wrong}; medians {medians}"
    )
    assert all(map(ge, found, least))
    assert medians["accuracy"] < HALF_WIDTH and medians["rmse"] < PART_OF_GAP
    # Each mutant must fail at least one of the two checks.
    assert not all(map(ge, narrow, least))
    assert not all(map(ge, wrong, least))


def run_unit(setting: Setting, seed: int) -> Unit:
    """Divide a table, forecast from its public part, and run studies on the rest."""
    study, columns, labels = read_example(setting.example)
    order = shuffle(len(labels), seed, "division")
    public, others = order[: setting.n_public], order[setting.n_public :]
    rows = PublicRows(
        {name: column[public] for name, column in columns.items()},
        labels[public],
        np.arange(len(public)),
        seed,
    )
    points = ForecastPoints(
        study,
        rows,
        ForecastConfig(LEVEL, REPEATS, seed, N_UNSEEN),
        lambda trials: [run_forecast_trial(trial, rows) for trial in trials],
    )
    right, wrong = (
        {"size": setting.size, "epsilon": setting.epsilon * factor} for factor in (1, WRONG)
    )
    points.add([right, wrong])
    params, n_rows = make_simulation_params(vary(study, right)), count_rows(vary(study, right))
    real = []
    for repeat in range(N_REAL):
        drawn = others[shuffle(len(others), seed, "study", repeat)]
        asked, unseen = drawn[:n_rows], drawn[n_rows : n_rows + N_UNSEEN]
        assert len(asked) == n_rows and len(unseen) == N_UNSEEN
        real.append(
            run_study(
                RunTask(params, seed + 1, repeat),
                Split(*select_rows(columns, labels, asked), *select_rows(columns, labels, unseen)),
            )
        )
    return tuple(
        MeasureForecast(
            measure,
            *points.compute_intervals(measure, [right, wrong]),
            tuple(one[measure] for one in real),
            compute_gap(points.score_baselines(right)) if measure == "rmse" else 1.0,
        )
        for measure in list_measures(study)
    )


def compute_gap(baselines: dict[str, dict[str, float]]) -> float:
    return baselines["mean_label"]["rmse"] - baselines["without_privacy"]["rmse"]


def list_measures(study: Study) -> tuple[str, ...]:
    """Return the measures to check.

    AUC is a mean over the classes of the test rows. If a class is as rare as in Nursery, one row
    changes it much, so AUC is left out there.
    """
    n_classes = len(study.label.values or ())
    return (
        ("rmse", "r_squared")
        if not n_classes
        else ("accuracy", "auc")
        if n_classes == 2
        else ("accuracy",)
    )


def run_forecast_trial(trial: ForecastTrial, rows: PublicRows) -> ForecastTrialResult:
    return run_trial(replace(trial, engine="numba" if find_spec("numba") else "numpy"), rows)


def run_study(task: RunTask, split: Split) -> dict[str, float]:
    """Return the scores of a study as `shoal simulate` runs it.

    For PFDS the personal models are left out, because they take long.
    """
    if not hasattr(task.params, "n_holders"):
        return vars(run(task, split).scores)
    model = simulate_release(task, split).model
    if split.test_labels.dtype.kind == "f":
        return vars(compute_errors(model.predict(split.test_columns), split.test_labels))
    return vars(
        compute_scores(
            model.probabilities(split.test_columns),
            model.decide(split.test_columns),
            split.test_labels,
        )
    )


@cache
def read_example(example: str) -> tuple[Study, dict[str, npt.NDArray[Any]], npt.NDArray[Any]]:
    study = load_study(ROOT / "examples" / f"{example}.toml")
    table = read_table_file(DATA / f"{TABLES[example.partition('-')[0]]}.csv.gz")
    if example == "oulad":
        # People who have left the course by day 60 are not part of the task.
        stays = np.array([float(day or "inf") > 60 for day in table["date_unregistration"]])
        table = {name: column[stays] for name, column in table.items()}
    schema = study.schema()
    return study, schema.encode(table), schema.encode_label(table)


def select_rows(
    columns: dict[str, npt.NDArray[Any]], labels: npt.NDArray[Any], rows: npt.NDArray[np.int64]
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[Any]]:
    return {name: column[rows] for name, column in columns.items()}, labels[rows]


def shuffle(n: int, seed: int, *labels: str | int) -> npt.NDArray[np.int64]:
    return np.argsort(SeededEntropy(seed).spawn(*labels).words(n, np.uint64), kind="stable")
