"""Prediction intervals: their width, their sides and their coverage."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from shoal.errors import UsageError
from shoal.simulation.forecast.intervals import PredictionInterval, RepeatedRuns, compute_intervals
from shoal.simulation.forecast.trials import ForecastTrialResult
from shoal.simulation.run import Split


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


class Rows:
    """The part of a source that an interval uses."""

    def __init__(self, n_folds: int = 4, pool: float = math.inf) -> None:
        self.n_folds, self.pool = n_folds, pool

    def draw(self, n_rows: int, repeat: int, part: float = 1.0) -> Split:
        raise AssertionError("an interval is computed from runs that were made, and draws nothing")

    def count_populations(self, n_rows: int) -> float:
        return self.pool / n_rows

    def is_repeated(self, n_rows: int) -> bool:
        return self.count_populations(n_rows) < 2


def repeated(
    values: Sequence[float],
    n_rows: int = 100,
    without: Any = 0.0,
    measure: str = "accuracy",
    n_unseen: int = 500,
) -> RepeatedRuns:
    """Return runs with given scores; ``without`` is added if a group is left out."""
    shifts = np.broadcast_to(np.asarray(without, float), (len(values), 6))
    runs = [
        ForecastTrialResult(
            {measure: value}, tuple({measure: value + shift} for shift in row), n_unseen
        )
        for value, row in zip(values, shifts.tolist(), strict=True)
    ]
    return RepeatedRuns(n_rows, runs)


def one(
    values: Sequence[float],
    source: Rows,
    level: float = 0.9,
    *,
    measure: str = "accuracy",
    **how: Any,
) -> PredictionInterval:
    told = {key: how.pop(key) for key in ("n_rows", "without", "n_unseen_runs") if key in how}
    return compute_intervals(
        [repeated(values, measure=measure, **told)],
        source,
        measure,
        level,
        row_share=how.pop("row_share", 0.0),
        **how,
    )[0]


def test_interval_of_symmetric_runs_is_students_for_one_more_run() -> None:
    found = one([0.6, 0.8], Rows(n_folds=1))
    # Degrees of freedom: 1; Student's t at 95 %: 6.3138.
    assert found.value == pytest.approx(0.7)
    assert (
        found.low
        == pytest.approx(max(0.0, 0.7 - 6.3138 * math.sqrt(0.02) * math.sqrt(1.5)), abs=1e-4)
        and found.high == 1.0
    )


def test_interval_of_normal_runs_has_its_coverage(rng: np.random.Generator) -> None:
    hits, n = 0, 3000
    for _ in range(n):
        values = rng.normal(0.7, 0.01, 9)
        found = one(values[:8].tolist(), Rows(n_folds=1), level=0.8)
        hits += found.low <= values[8] <= found.high
    assert abs(hits / n - 0.8) < 0.05


def test_interval_is_wider_on_the_side_with_outliers() -> None:
    found = one([0.80, 0.80, 0.80, 0.79, 0.80, 0.80, 0.70, 0.80], Rows(n_folds=1))
    assert found.value - found.low > 2 * (found.high - found.value)


def test_interval_ignores_differences_between_folds(
    rng: np.random.Generator,
) -> None:
    easier = [0.0, 0.04, -0.03, 0.01] * 2
    noise = rng.normal(0, 0.002, (5, 8))
    points = [repeated((0.7 + level / 50 + noise[level] + easier).tolist()) for level in range(5)]
    shifted = compute_intervals(points, Rows(), "accuracy", 0.9, row_share=0.0)
    plain = compute_intervals(
        [repeated((0.7 + noise[0]).tolist())], Rows(n_folds=1), "accuracy", 0.9, row_share=0.0
    )[0]
    naive = compute_intervals(points[:1], Rows(n_folds=1), "accuracy", 0.9, row_share=0.0)[0]
    width = shifted[0].high - shifted[0].low
    assert width < 2 * (plain.high - plain.low) < naive.high - naive.low


def test_interval_is_wider_for_few_rows() -> None:
    values = [0.7, 0.71, 0.69, 0.7, 0.72, 0.68, 0.7, 0.71]
    widths = []
    for pool in (math.inf, 400, 210, 150, 50):
        found = one(values, Rows(pool=pool), n_rows=100, row_share=0.4)
        widths.append(found.high - found.low)
    free, share = widths[0], 0.4
    assert widths[1] == pytest.approx(
        free * math.sqrt(((1 + share / 4) / (1 - share / 4) + 1 / 8) / (1 + 1 / 8))
    )
    assert widths[4] == pytest.approx(free * math.sqrt((1 + 2 * share + 1 / 8) / (1 + 1 / 8)))
    assert widths[1] > free and widths[4] > widths[3] > free


def test_interval_is_wider_for_finite_test_rows_of_both_studies() -> None:
    values = [0.7] * 8
    without = [0.01, -0.01, 0.02, -0.02, 0.0, 0.0]
    variance = 25 / 6 * np.var(without, ddof=1)
    found = one(values, Rows(), without=without)
    # All runs are alike, and so all of it is by the four parts' rows.
    assert found.high - found.value == pytest.approx(1.644854 * math.sqrt(variance / 4))
    real = one(values, Rows(), without=without, n_test_rows=1000)
    assert real.high - real.value == pytest.approx(
        1.644854 * math.sqrt(variance / 4 + variance * 500 / 1000)
    )


def test_interval_removes_the_random_variance_of_models(rng: np.random.Generator) -> None:
    values = rng.normal(0.7, 0.01, 8)
    alike = one(values.tolist(), Rows(n_folds=1))
    # Runs that hang on different rows: the jackknife sees as much variance as there is between the
    # runs, and a quarter is kept.
    shifts = rng.normal(0, 0.005, (8, 6))
    apart = one(values.tolist(), Rows(n_folds=1), without=shifts)
    assert apart.high - apart.low < alike.high - alike.low


@pytest.mark.parametrize("measure", ["accuracy", "rmse"])
def test_pessimistic_forecast_moves_its_better_end(measure: str) -> None:
    values = [0.7, 0.71, 0.69, 0.7, 0.72, 0.68, 0.7, 0.71]
    plain, moved = (
        one(values, Rows(pool=100), n_rows=100, measure=measure, pessimism=by) for by in (0.0, 0.02)
    )
    fresh = one(values, Rows(pool=1000), n_rows=100, measure=measure, pessimism=0.02)
    if measure == "accuracy":
        assert (moved.low, moved.high - plain.high, moved.value - plain.value) == (
            plain.low,
            pytest.approx(0.02),
            pytest.approx(0.01),
        )
    else:
        assert (moved.high, plain.low - moved.low, plain.value - moved.value) == (
            plain.high,
            pytest.approx(0.02),
            pytest.approx(0.01),
        )
    assert fresh.value == pytest.approx(plain.value)


@pytest.mark.parametrize(
    ("measure", "values", "ends"),
    [
        ("auc", [0.1, 0.9], (0.0, 1.0)),
        ("rmse", [1.0, 30.0], (0.0, math.inf)),
        ("r_squared", [-1.0, 0.9], (-math.inf, 1.0)),
    ],
)
def test_interval_ends_stay_in_the_range_of_the_measure(
    measure: str, values: list[float], ends: tuple[float, float]
) -> None:
    found = one(values, Rows(n_folds=1), measure=measure)
    assert found.low == ends[0] or (math.isinf(ends[0]) and found.low < -1)
    assert found.high == ends[1] or (math.isinf(ends[1]) and found.high > 30)


def test_missing_scipy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(UsageError, match="USAGE-002"):
        one([0.7, 0.8], Rows(n_folds=1))
