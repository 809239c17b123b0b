"""Studies of a forecast: each simulated once, and the loss by repeated rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shoal.errors import SpecError, UsageError
from shoal.simulation import ddml
from shoal.simulation.forecast.points import (
    ForecastConfig,
    ForecastPoints,
    choose_repeats,
    count_rows,
    is_large,
    is_possible,
    list_measures,
    make_varied_plan,
)
from shoal.simulation.forecast.sources import PublicRows
from shoal.simulation.forecast.trials import ForecastTrial, ForecastTrialResult
from tests.support.simulation import make_rows, running, small

STUDY = small("anonml")
WANTED = ForecastConfig(repeats=8)


def test_count_rows_includes_all_rows_of_devices() -> None:
    assert count_rows(STUDY) == 400 and count_rows(small("ddml")) == 600


def test_small_studies_have_more_repeats() -> None:
    assert (choose_repeats(STUDY), choose_repeats(small("anonml", size=30_000))) == (16, 8)
    assert is_large(small("ddml", size=3000)) and not is_large(STUDY)


def test_measures_follow_from_the_label() -> None:
    number = ('name = "doubtful"\nvalues = ["no", "yes"]', 'name = "doubtful"\nrange = [0, 1]')
    assert (
        list_measures(STUDY)[0] == "accuracy" and list_measures(small("pfds", number))[0] == "rmse"
    )


def test_impossible_or_too_large_study_is_rejected() -> None:
    with pytest.raises(SpecError):
        make_varied_plan(STUDY, {"epsilon": 1e9})
    with pytest.raises(UsageError, match="3,000,000 rows is too large for a forecast"):
        make_varied_plan(STUDY, {"size": 3_000_000})
    assert is_possible(STUDY, {"epsilon": 1.0}) and not is_possible(STUDY, {"epsilon": 1e9})


def test_each_study_is_simulated_once() -> None:
    rows, asked = make_rows(STUDY), []

    def run(trials: list[ForecastTrial]) -> list[ForecastTrialResult]:
        asked.append(len(trials))
        return running(rows)(trials)  # type: ignore[no-any-return]

    points = ForecastPoints(STUDY, rows, WANTED, run)
    points.add([{}, {"size": 200}, {"size": 400, "epsilon": 2.0}])
    points.add([{"epsilon": STUDY.privacy.epsilon}, {"size": 200}])
    assert asked == [16, 0] and points[{"size": 400}] is points[{}]
    assert points[{"size": 200}].runs.n_rows == 200 and points[{}].plan.loss.epsilon == 2.0
    [own, other] = points.compute_intervals("accuracy", [{}, {"size": 200}])
    assert own.low < own.value < own.high and own != other


def test_rows_drawn_once_have_no_loss() -> None:
    rows = make_rows(STUDY, 2000)
    points = ForecastPoints(STUDY, rows, WANTED, running(rows))
    points.add([{}])
    assert points.estimate_pessimism("accuracy") is None


def test_half_of_the_rows_estimates_the_loss_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    study = small("sdq", size=900)
    rows, parts = make_rows(study, 300), []

    def run(trials: list[ForecastTrial]) -> list[ForecastTrialResult]:
        parts.extend(trial.part for trial in trials)
        found: list[ForecastTrialResult] = running(rows)(trials)
        # As if the model of half of the rows were worse by 0.1.
        return [
            replace(
                one,
                scores={
                    name: value - 0.1 * (trial.part < 1) for name, value in forced(trial).items()
                },
            )
            for trial, one in zip(trials, found, strict=True)
        ]

    def forced(trial: ForecastTrial) -> dict[str, float]:
        return {
            "accuracy": 0.7 + trial.repeat / 1000 + trial.n_rows / 1e5,
            "auc": 0.8,
            "f1": 0.3,
            "rmse": 0.5,
        }

    points = ForecastPoints(study, rows, WANTED, run)
    points.add([{}, {"size": 1500}])
    assert points.estimate_pessimism("accuracy") == pytest.approx(
        0.1
    ) and points.estimate_pessimism("auc") == pytest.approx(0.1)
    assert points.estimate_pessimism("rmse") == 0.0  # smaller is better, and the half is smaller
    assert parts == [1.0] * 16 + [0.5] * 8


def test_baselines_are_means_over_the_folds() -> None:
    rows = make_rows(STUDY)
    points = ForecastPoints(STUDY, rows, WANTED, running(rows))
    found = points.score_baselines({})
    assert found.keys() == {"most_common", "without_privacy"} and found["most_common"]["auc"] == 0.5
    assert points.score_baselines({"size": 1}) == {}


def test_baselines_that_a_fold_lacks_are_left_out() -> None:
    def run(trials: list[ForecastTrial]) -> list[ForecastTrialResult]:
        scores = {"accuracy": 0.5, "auc": 0.5, "f1": 0.5}
        return [
            ForecastTrialResult(
                {"most_common": scores} | ({"id3": scores} if trial.repeat else {}), (), 9
            )
            for trial in trials
        ]

    assert ForecastPoints(STUDY, make_rows(STUDY), WANTED, run).score_baselines({}) == {
        "most_common": {"accuracy": 0.5, "auc": 0.5, "f1": 0.5}
    }


def test_ddml_is_compiled_when_it_pays_and_stays_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = small("ddml")
    rows, engines = PublicRowsThatAreNotRead(), []

    def run(trials: list[ForecastTrial]) -> list[ForecastTrialResult]:
        engines.extend({trial.engine for trial in trials})
        return [ForecastTrialResult({"accuracy": 0.5}, (), 9) for _ in trials]

    asked: list[int] = []

    def choose(updates: int, params: Any) -> str:
        asked.append(updates)
        return "numba" if updates > 2000 else "numpy"

    monkeypatch.setattr(ddml, "choose_engine", choose)
    points = ForecastPoints(study, rows, WANTED, run)  # type: ignore[arg-type]
    points.add([{}])
    points.add([{"size": 300}])
    points.add([{"size": 61}])
    assert engines == ["numpy", "numba", "numba"] and asked == [480, 2400]


class PublicRowsThatAreNotRead(PublicRows):
    """A source that must not be drawn from."""

    def __init__(self) -> None:
        pass
