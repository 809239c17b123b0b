"""Weights of DDML, and the spread of its instances."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.cli.hello.population import SCHEMA, make_people
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.analysis import compute_dynamics
from shoal.protocols.ddml.merging import find_blend_factor
from shoal.protocols.ddml.model import GLM
from shoal.protocols.ddml.noisy_step import make_step
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.population import Traffic
from shoal.simulation.ddml import (
    N_MEASUREMENTS,
    SpreadTrace,
    describe_spread,
    list_model_weights,
    run,
)
from shoal.simulation.run import RunTask, Split

PEOPLE = make_people(4000, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
DISCARD = DDMLParams(
    SCHEMA, 0.1, 4000, unit="weight", merge="discard", n_instances=10, learning_rate=1e-3, clip=1.0
)


@pytest.mark.parametrize("in_flight", [0, 7])
@pytest.mark.parametrize("merge", ["discard", "blend"])
def test_instance_spread_is_that_of_the_theory(merge: Any, in_flight: int) -> None:
    """With noise of this size gradients do not matter; the spread is averaged over time."""
    params = replace(DISCARD, merge=merge)
    told = run(RunTask(params, 1, traffic=Traffic(in_flight)), SPLIT).details["spread"]
    sigma = make_step(params).deviation * 2.0**-params.fraction_bits
    assert told["k"] == 10 and told["sigma_squared"] == pytest.approx(sigma**2, rel=1e-5)
    assert told["expected"] == pytest.approx(
        compute_dynamics(10, find_blend_factor(merge), in_flight).variance * sigma**2, rel=0.01
    )
    if merge == "discard" and in_flight == 0:
        assert told["expected"] == pytest.approx(10 / 2 * sigma**2, rel=1e-5), "DDML, Theorem 1"
    seen, measured = (np.array(column) for column in zip(*told["measured"], strict=True))
    assert len(seen) == N_MEASUREMENTS and seen[-1] == 4000 and (np.diff(seen) == 100).all()
    assert measured.mean() == pytest.approx(told["expected"], rel=0.35)


def test_spread_is_the_variance_of_a_weight_among_instances() -> None:
    looks = SpreadTrace(DISCARD, 100)
    looks(3, np.array([[0, 100], [2, 300]], np.int32) << 20)
    assert looks.every == 3 and looks.measurements == [[3, (2 + 20_000) / 2]]


def test_spread_of_many_weights_uses_a_sample() -> None:
    many = DDMLParams(
        Schema([Numeric(f"x{i}", 0, 1, missing=False) for i in range(4999)], label=SCHEMA.label),
        1.0,
        100,
    )
    looks = SpreadTrace(many, 100)
    instances = np.zeros((2, 5000), np.int32)
    instances[1, ::2] = 1 << 20
    looks(1, instances)
    assert looks.measurements == [[1, 0.5]], "every second of them"


def test_one_instance_has_no_spread() -> None:
    details = run(RunTask(replace(DISCARD, n_instances=1), 1), SPLIT).details
    assert "spread" not in details and details["participation"]["phases"] == [
        {"name": "updates", "n": 4000}
    ]


def test_falling_step_size_uses_the_last_step() -> None:
    falling = replace(DISCARD, decay="sqrt", size=4000)
    told = describe_spread(falling, 0, SpreadTrace(falling, 0))
    first = make_step(falling).deviation * 2.0**-falling.fraction_bits
    assert falling.last_epoch > 0 and told["measured"] == []
    assert told["sigma_squared"] == pytest.approx(first**2 / (1 + falling.last_epoch), rel=0.01)


def test_no_noise_gives_no_expected_spread() -> None:
    told = run(RunTask(replace(DISCARD, epsilon=math.inf), 1), SPLIT).details["spread"]
    assert told["sigma_squared"] == told["expected"] == 0 and told["measured"][-1][1] > 0


class TestWeights:
    schema = Schema(
        [Numeric("age", 0, 100, missing=False)], label=Categorical("ill", ["no", "yes"])
    )

    def test_weights_are_named_by_their_inputs(self) -> None:
        told = list_model_weights(GLM(self.schema, "logit", (), np.array([[-2.0, 4.0]])))
        assert [(one["name"], one["class"], one["value"], one["error"]) for one in told] == [
            ("age", "yes", 4.0, None),
            ("constant", "yes", -2.0, None),
        ]

    def test_weights_of_several_scores_are_given_for_each_class(self) -> None:
        told = list_model_weights(
            GLM(self.schema, "multinomial", (), np.array([[-2.0, 4.0], [1.0, -3.0]]))
        )
        assert [(one["name"], one["class"]) for one in told] == [
            ("age", "no"),
            ("age", "yes"),
            ("constant", "no"),
            ("constant", "yes"),
        ]

    def test_weights_of_a_numeric_label_are_about_the_label(self) -> None:
        schema = replace(self.schema, label=Numeric("pain", 0, 10))
        [first, _] = list_model_weights(GLM(schema, "identity", (), np.array([[0.5, 0.1]])))
        assert (first["name"], first["class"]) == ("constant", "pain")


def test_numeric_label_has_no_calibration_and_absent_devices_are_counted() -> None:
    schema = replace(SCHEMA, label=Numeric("hours", 0, 12, missing=False))
    params = DDMLParams(schema, 12.0, 4000, link="identity", batch_size=4)
    hours = 12 * PEOPLE.chances
    details = run(
        RunTask(params, 1, dropout=0.25), Split(PEOPLE.columns, hours, PEOPLE.columns, hours)
    ).details
    assert details.keys() == {"participation", "weights", "spread"}
    told = details["participation"]
    assert (
        told["asked"] == 1000 == told["answered"] + told["dropped"] and 100 < told["dropped"] < 400
    )
