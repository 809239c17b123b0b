"""Forecasts without rows: errors from public figures, and how many it takes to make them small."""

from __future__ import annotations

import math

import pytest

from forecast_cases import small
from shoal.sim.forecast_closed import closed_forecast, error_of
from shoal.sim.forecast_target import Target
from shoal.sim.sweep import vary
from shoal.study.load import parse
from shoal.study.plan import make_plan
from shoal.study.templates import study_text

PAPER = ('variant = "plus"', 'variant = "paper"'), ("range = [0, 730]", "range = [0, 730]\nmissing = false")


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ("anonml", "shares in the worst of the tables"),
        ("ddml", "noise of a weight"),
        ("sdq", "share of an average one"),
        ("pfds", "pooled table"),
    ],
)
def test_errors_fall_with_size_and_epsilon(protocol: str, words: str) -> None:
    study = parse(study_text(protocol))
    told = closed_forecast(study, (), (), None)
    assert words in told["what"] and told["measure"] == "error" and told["target"] is None
    size, epsilon = study.participation.size, study.privacy.epsilon
    assert [(point["size"], point["epsilon"]) for point in told["points"]] == [
        (int(size * n), epsilon * e) for n in (0.25, 0.5, 1, 2) for e in (0.5, 1, 2)
    ]
    errors = [point["error"] for point in told["points"]]
    assert errors[0] > errors[-1] and errors[1] > errors[4] > errors[10]
    assert all(point["total"]["unit"] for point in told["points"])


def test_noise_on_counts_is_a_share_of_what_is_counted() -> None:
    study = small("sdq")
    plan = make_plan(study)
    assert error_of(plan) == plan.forecasts[-1].value / (2 * plan.forecasts[-1].useless_from)
    assert error_of(make_plan(vary(study, {"size": 800}))) == pytest.approx(error_of(plan) / 2, rel=0.05)
    paper = make_plan(small("pfds", *PAPER))
    assert error_of(paper) == paper.forecasts[-1].value / (2 * paper.forecasts[-1].useless_from)
    assert "average one" in closed_forecast(small("pfds", *PAPER), (100,), (1.0,), None)["what"]


def test_given_sizes_and_epsilons_are_taken() -> None:
    told = closed_forecast(small("anonml"), [500, 300, 500], [1.0], None)
    assert [(point["size"], point["epsilon"]) for point in told["points"]] == [(300, 1.0), (500, 1.0)]


@pytest.mark.parametrize("protocol", ["anonml", "sdq"])
def test_the_size_for_an_error_is_the_least(protocol: str) -> None:
    study = small(protocol)
    n = closed_forecast(study, (), (), Target("error", 0.05))["target"]["n"]
    errors = [error_of(make_plan(vary(study, {"size": size}))) for size in (n, math.floor(0.97 * n))]
    assert errors[0] <= 0.05 < errors[1]


def test_an_error_that_no_size_has_is_not_reached() -> None:
    target = closed_forecast(small("anonml"), (), (), Target("error", 1e-12))["target"]
    assert target["n"] is None and target["largest"] > 10**11
    assert closed_forecast(small("anonml"), (), (), Target("error", 1e9))["target"]["n"] == 1
