"""A whole forecast: intervals for each size and epsilon, baselines, one seed."""

from __future__ import annotations

import json

import pytest

from shoal.simulation.forecast import forecast, limit_size, list_values_around
from shoal.simulation.forecast.points import ForecastConfig
from shoal.simulation.forecast.target import MAX_SEARCH_ROWS, Target
from tests.support.simulation import make_rows, small

STUDY = small("anonml", epsilon=8.0)
WANTED = ForecastConfig(repeats=8)


def test_forecast_is_plain_data_with_all_fields() -> None:
    rows = make_rows(STUDY)
    told = forecast(
        STUDY, rows, sizes=[200, 400], epsilons=[4.0], target=Target("accuracy", 0.6), config=WANTED
    )
    assert json.loads(json.dumps(told)) == told
    assert [
        (point["size"], point["epsilon"], point["rows"], point["repeated"])
        for point in told["points"]
    ] == [
        (200, 4.0, 200, False),
        (400, 4.0, 400, True),
    ]
    assert (told["study"]["size"], told["study"]["epsilon"], told["declared"]) == (400, 8.0, 400)
    for point in [told["study"], *told["points"]]:
        assert all(
            score["low"] <= score["value"] <= score["high"] for score in point["scores"].values()
        )
        assert point["total"]["unit"] == "person" and point["total"]["epsilon"] == point["epsilon"]
    assert told["yardsticks"].keys() == {"most_common", "without_privacy"} and told[
        "pessimistic_by"
    ].keys() == {"accuracy", "auc", "f1"}
    assert [change["key"] for change in told["matters"]] in (
        ["epsilon", "size"],
        ["size", "epsilon"],
    )
    assert told["target"]["measure"] == "accuracy" and told["target"]["without_privacy"] > 0.6
    assert (told["level"], told["repeats"], told["seed"], told["measure"]) == (
        0.9,
        8,
        0,
        "accuracy",
    )


def test_forecast_depends_on_the_seed_and_not_on_processes() -> None:
    rows = make_rows(STUDY)
    told = [
        forecast(
            STUDY,
            rows,
            sizes=[200],
            epsilons=[8.0],
            config=ForecastConfig(repeats=8, seed=seed, jobs=jobs),
        )
        for seed, jobs in ((1, 1), (1, 2), (2, 1))
    ]
    assert told[0] == told[1] != told[2] and told[0]["target"] is None


def test_enough_rows_give_no_loss_and_more_people_or_budget_help() -> None:
    rows = make_rows(STUDY, 4000)
    told = forecast(STUDY, rows, sizes=[100, 1500], epsilons=[0.5, 16.0], config=WANTED)
    assert told["pessimistic_by"] is None and not any(point["repeated"] for point in told["points"])
    auc = [point["scores"]["auc"]["value"] for point in told["points"]]
    assert auc[3] > max(auc[0], auc[1], auc[2])


def test_wider_level_contains_the_narrower_one() -> None:
    rows = make_rows(STUDY)
    narrow, wide = (
        forecast(
            STUDY, rows, sizes=[200], epsilons=[8.0], config=ForecastConfig(level=level, repeats=8)
        )["study"]["scores"]["auc"]
        for level in (0.6, 0.95)
    )
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"] or wide["high"] == 1.0


def test_default_values_surround_those_of_the_study() -> None:
    assert list_values_around(STUDY, "size", 400, (0.25, 0.5, 1, 2)) == [100, 200, 400, 800]
    assert list_values_around(STUDY, "size", 400, (0.25, 0.5, 1, 2), most_rows=400) == [
        100,
        200,
        400,
    ]
    assert list_values_around(STUDY, "epsilon", 40.0, (0.5, 1, 2)) == [
        20.0,
        40.0,
    ]  # 80 is more than may be
    assert list_values_around(STUDY, "size", 1, (0.25, 1)) == [1]


def test_study_that_is_too_large_is_simulated_with_fewer() -> None:
    assert limit_size(STUDY) is STUDY
    huge = small("ddml", size=10**6)
    assert limit_size(huge).participation.size == MAX_SEARCH_ROWS // 10


def test_target_above_the_studys_size_uses_a_baseline_of_the_same_size() -> None:
    rows = make_rows(STUDY)
    told = forecast(
        STUDY, rows, sizes=[800], epsilons=[8.0], target=Target("auc", 0.999), config=WANTED
    )
    assert told["target"]["n"] is None and told["target"]["is_beyond"]
    assert told["target"]["without_privacy"] != pytest.approx(
        told["yardsticks"]["without_privacy"]["auc"], abs=1e-12
    )
