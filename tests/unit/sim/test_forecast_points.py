"""The studies of a forecast: each simulated once, on the same populations, and what repeated rows may hide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forecast_cases import rows_of, running, small
from shoal.errors import SpecError, UsageError
from shoal.sim import forecast_points
from shoal.sim.forecast_points import Points, Wanted, is_large, is_possible, measures_of, n_rows_of, usual_repeats, varied
from shoal.sim.forecast_rows import PublicRows
from shoal.sim.forecast_runs import Trial, Tried

STUDY = small("anonml")
WANTED = Wanted(repeats=8)


def test_a_study_has_as_many_rows_as_its_devices_read() -> None:
    assert n_rows_of(STUDY) == 400 and n_rows_of(small("ddml")) == 600


def test_small_studies_are_repeated_more_often() -> None:
    assert (usual_repeats(STUDY), usual_repeats(small("anonml", size=30_000))) == (16, 8)
    assert is_large(small("ddml", size=3000)) and not is_large(STUDY)


def test_measures_are_those_of_the_label() -> None:
    number = ('name = "doubtful"\nvalues = ["no", "yes"]', 'name = "doubtful"\nrange = [0, 1]')
    assert measures_of(STUDY)[0] == "accuracy" and measures_of(small("pfds", number))[0] == "rmse"


def test_what_is_no_study_or_too_large_is_refused() -> None:
    with pytest.raises(SpecError):
        varied(STUDY, {"epsilon": 1e9})
    with pytest.raises(UsageError, match="3,000,000 rows is not simulated"):
        varied(STUDY, {"size": 3_000_000})
    assert is_possible(STUDY, {"epsilon": 1.0}) and not is_possible(STUDY, {"epsilon": 1e9})


def test_each_study_is_simulated_once() -> None:
    rows, asked = rows_of(STUDY), []

    def run(trials: list[Trial]) -> list[Tried]:
        asked.append(len(trials))
        return running(rows)(trials)  # type: ignore[no-any-return]

    points = Points(STUDY, rows, WANTED, run)
    points.add([{}, {"size": 200}, {"size": 400, "epsilon": 2.0}])
    points.add([{"epsilon": STUDY.privacy.epsilon}, {"size": 200}])
    assert asked == [16, 0] and points[{"size": 400}] is points[{}]
    assert points[{"size": 200}].runs.n_rows == 200 and points[{}].plan.loss.epsilon == 2.0
    [own, other] = points.intervals("accuracy", [{}, {"size": 200}])
    assert own.low < own.value < own.high and own != other


def test_no_row_that_is_drawn_once_hides_anything() -> None:
    rows = rows_of(STUDY, 2000)
    points = Points(STUDY, rows, WANTED, running(rows))
    points.add([{}])
    assert points.better_by("accuracy") is None


def test_half_of_the_rows_tell_what_is_lost_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    study = small("sdq", size=900)
    rows, parts = rows_of(study, 300), []

    def run(trials: list[Trial]) -> list[Tried]:
        parts.extend(trial.part for trial in trials)
        found: list[Tried] = running(rows)(trials)
        # As if the model of half of the rows were worse by 0.1.
        return [
            replace(one, scores={name: value - 0.1 * (trial.part < 1) for name, value in forced(trial).items()})
            for trial, one in zip(trials, found, strict=True)
        ]

    def forced(trial: Trial) -> dict[str, float]:
        return {"accuracy": 0.7 + trial.repeat / 1000 + trial.n_rows / 1e5, "auc": 0.8, "f1": 0.3, "rmse": 0.5}

    points = Points(study, rows, WANTED, run)
    points.add([{}, {"size": 1500}])
    assert points.better_by("accuracy") == pytest.approx(0.1) and points.better_by("auc") == pytest.approx(0.1)
    assert points.better_by("rmse") == 0.0  # smaller is better, and the half is smaller
    assert parts == [1.0] * 16 + [0.5] * 8


def test_yardsticks_are_means_over_the_parts() -> None:
    rows = rows_of(STUDY)
    points = Points(STUDY, rows, WANTED, running(rows))
    found = points.yardsticks({})
    assert found.keys() == {"most_common", "without_privacy"} and found["most_common"]["auc"] == 0.5
    assert points.yardsticks({"size": 1}) == {}


def test_yardsticks_that_a_part_lacks_are_left_out() -> None:
    def run(trials: list[Trial]) -> list[Tried]:
        scores = {"accuracy": 0.5, "auc": 0.5, "f1": 0.5}
        return [Tried({"most_common": scores} | ({"id3": scores} if trial.repeat else {}), (), 9) for trial in trials]

    assert Points(STUDY, rows_of(STUDY), WANTED, run).yardsticks({}) == {"most_common": {"accuracy": 0.5, "auc": 0.5, "f1": 0.5}}


def test_devices_are_compiled_once_it_is_worth_while_and_then_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    study = small("ddml")
    rows, engines = PublicRowsThatAreNotRead(), []

    def run(trials: list[Trial]) -> list[Tried]:
        engines.extend({trial.engine for trial in trials})
        return [Tried({"accuracy": 0.5}, (), 9) for _ in trials]

    asked: list[int] = []

    def choose(updates: int, params: Any) -> str:
        asked.append(updates)
        return "numba" if updates > 2000 else "numpy"

    monkeypatch.setattr(forecast_points, "choose_engine", choose)
    points = Points(study, rows, WANTED, run)  # type: ignore[arg-type]
    points.add([{}])
    points.add([{"size": 300}])
    points.add([{"size": 61}])
    assert engines == ["numpy", "numba", "numba"] and asked == [480, 2400]


class PublicRowsThatAreNotRead(PublicRows):
    """A source that nobody draws from."""

    def __init__(self) -> None:
        pass
