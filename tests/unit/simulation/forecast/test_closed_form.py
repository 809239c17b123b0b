"""Forecasts without rows: errors from public parameters, and required sizes."""

from __future__ import annotations

import math

import pytest

from shoal.simulation.forecast.closed_form import compute_error, forecast_closed_form
from shoal.simulation.forecast.target import Target
from shoal.simulation.sweep import vary
from shoal.study.loader import parse_study_text
from shoal.study.plan import make_plan
from shoal.study.starters import read_starter
from tests.support.simulation import small

PAPER = (
    ('variant = "plus"', 'variant = "paper"'),
    ("range = [0, 730]", "range = [0, 730]\nmissing = false"),
)


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ("anonml", "shares in the worst of the tables"),
        ("ddml", "noise in a weight"),
        ("sdq", "share of an average count"),
        ("pfds", "pooled table"),
    ],
)
def test_errors_fall_with_size_and_epsilon(protocol: str, words: str) -> None:
    study = parse_study_text(read_starter(protocol))
    told = forecast_closed_form(study, (), (), None)
    assert words in told["what"] and told["measure"] == "error" and told["target"] is None
    size, epsilon = study.participation.size, study.privacy.epsilon
    assert [(point["size"], point["epsilon"]) for point in told["points"]] == [
        (int(size * n), epsilon * e) for n in (0.25, 0.5, 1, 2) for e in (0.5, 1, 2)
    ]
    errors = [point["error"] for point in told["points"]]
    assert errors[0] > errors[-1] and errors[1] > errors[4] > errors[10]
    assert all(point["total"]["unit"] for point in told["points"])


def test_noise_on_counts_is_relative_to_the_counts() -> None:
    study = small("sdq")
    plan = make_plan(study)
    assert compute_error(plan) == plan.forecasts[-1].value / (2 * plan.forecasts[-1].useless_from)
    assert compute_error(make_plan(vary(study, {"size": 800}))) == pytest.approx(
        compute_error(plan) / 2, rel=0.05
    )
    paper = make_plan(small("pfds", *PAPER))
    assert compute_error(paper) == paper.forecasts[-1].value / (
        2 * paper.forecasts[-1].useless_from
    )
    assert (
        "average count" in forecast_closed_form(small("pfds", *PAPER), (100,), (1.0,), None)["what"]
    )


def test_given_sizes_and_epsilons_are_used() -> None:
    told = forecast_closed_form(small("anonml"), [500, 300, 500], [1.0], None)
    assert [(point["size"], point["epsilon"]) for point in told["points"]] == [
        (300, 1.0),
        (500, 1.0),
    ]


@pytest.mark.parametrize("protocol", ["anonml", "sdq"])
def test_required_size_is_the_smallest(protocol: str) -> None:
    study = small(protocol)
    n = forecast_closed_form(study, (), (), Target("error", 0.05))["target"]["n"]
    errors = [
        compute_error(make_plan(vary(study, {"size": size}))) for size in (n, math.floor(0.97 * n))
    ]
    assert errors[0] <= 0.05 < errors[1]


def test_unreachable_error_has_no_size() -> None:
    target = forecast_closed_form(small("anonml"), (), (), Target("error", 1e-12))["target"]
    assert target["n"] is None and target["largest"] > 10**11
    assert forecast_closed_form(small("anonml"), (), (), Target("error", 1e9))["target"]["n"] == 1
