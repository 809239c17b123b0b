"""A whole forecast: every pair of size and epsilon with an interval, beside guessing and no privacy, the same for a seed."""

from __future__ import annotations

import json

import pytest

from forecast_cases import rows_of, small
from shoal.sim.forecast import around, forecast, simulated
from shoal.sim.forecast_points import Wanted
from shoal.sim.forecast_target import SEARCHED_ROWS, Target

STUDY = small("anonml", epsilon=8.0)
WANTED = Wanted(repeats=8)


def test_a_forecast_is_plain_data_with_everything_in_it() -> None:
    rows = rows_of(STUDY)
    told = forecast(STUDY, rows, sizes=[200, 400], epsilons=[4.0], target=Target("accuracy", 0.6), wanted=WANTED)
    assert json.loads(json.dumps(told)) == told
    assert [(point["size"], point["epsilon"], point["rows"], point["repeated"]) for point in told["points"]] == [
        (200, 4.0, 200, False),
        (400, 4.0, 400, True),
    ]
    assert (told["study"]["size"], told["study"]["epsilon"], told["declared"]) == (400, 8.0, 400)
    for point in [told["study"], *told["points"]]:
        assert all(score["low"] <= score["value"] <= score["high"] for score in point["scores"].values())
        assert point["total"]["unit"] == "person" and point["total"]["epsilon"] == point["epsilon"]
    assert told["yardsticks"].keys() == {"most_common", "without_privacy"} and told["pessimistic_by"].keys() == {"accuracy", "auc", "f1"}
    assert [change["key"] for change in told["matters"]] in (["epsilon", "size"], ["size", "epsilon"])
    assert told["target"]["measure"] == "accuracy" and told["target"]["without_privacy"] > 0.6
    assert (told["level"], told["repeats"], told["seed"], told["measure"]) == (0.9, 8, 0, "accuracy")


def test_it_is_the_same_for_a_seed_and_any_number_of_processes() -> None:
    rows = rows_of(STUDY)
    told = [
        forecast(STUDY, rows, sizes=[200], epsilons=[8.0], wanted=Wanted(repeats=8, seed=seed), jobs=jobs)
        for seed, jobs in ((1, 1), (1, 2), (2, 1))
    ]
    assert told[0] == told[1] != told[2] and told[0]["target"] is None


def test_rows_that_are_enough_hide_nothing_and_more_people_and_budget_help() -> None:
    rows = rows_of(STUDY, 4000)
    told = forecast(STUDY, rows, sizes=[100, 1500], epsilons=[0.5, 16.0], wanted=WANTED)
    assert told["pessimistic_by"] is None and not any(point["repeated"] for point in told["points"])
    auc = [point["scores"]["auc"]["value"] for point in told["points"]]
    assert auc[3] > max(auc[0], auc[1], auc[2])


def test_the_wider_level_holds_the_narrower_one() -> None:
    rows = rows_of(STUDY)
    narrow, wide = (
        forecast(STUDY, rows, sizes=[200], epsilons=[8.0], wanted=Wanted(level=level, repeats=8))["study"]["scores"]["auc"]
        for level in (0.6, 0.95)
    )
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"] or wide["high"] == 1.0


def test_values_are_taken_around_the_studys_own() -> None:
    assert around(STUDY, "size", 400, (0.25, 0.5, 1, 2)) == [100, 200, 400, 800]
    assert around(STUDY, "size", 400, (0.25, 0.5, 1, 2), most_rows=400) == [100, 200, 400]
    assert around(STUDY, "epsilon", 40.0, (0.5, 1, 2)) == [20.0, 40.0]  # 80 is more than may be
    assert around(STUDY, "size", 1, (0.25, 1)) == [1]


def test_a_study_that_is_too_large_is_simulated_with_fewer() -> None:
    assert simulated(STUDY) is STUDY
    huge = small("ddml", size=10**6)
    assert simulated(huge).participation.size == SEARCHED_ROWS // 10


def test_a_target_for_more_than_the_study_has_is_held_against_as_many_rows() -> None:
    rows = rows_of(STUDY)
    told = forecast(STUDY, rows, sizes=[800], epsilons=[8.0], target=Target("auc", 0.999), wanted=WANTED)
    assert told["target"]["n"] is None and told["target"]["is_beyond"]
    assert told["target"]["without_privacy"] != pytest.approx(told["yardsticks"]["without_privacy"]["auc"], abs=1e-12)
