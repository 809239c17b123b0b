"""Links: predictions from scores, and gradients that are those of the log-likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from shoal.domain import Categorical, Numeric, Schema, as_columns
from shoal.protocols.ddml.design import Design, Inputs
from shoal.protocols.ddml.links import Link, gradient, means, targets

Floats = npt.NDArray[np.float64]

SCHEMA = Schema([Numeric("a", 0, 1, missing=False), Categorical("b", ["u", "v", "w"], missing=False)])
COLUMNS = as_columns({"a": [0.1, 0.9, 0.4, 0.7], "b": ["u", "v", "w", "w"]})


@pytest.fixture
def inputs() -> Inputs:
    return Design(SCHEMA).inputs(SCHEMA.encode(COLUMNS))


@pytest.mark.parametrize(
    ("link", "scores", "expected"),
    [
        ("identity", [[-2.0], [0.5]], [[-2.0], [0.5]]),
        ("logit", [[0.0], [math.log(3)]], [[0.5], [0.75]]),
        ("log", [[0.0], [math.log(3)]], [[1.0], [3.0]]),
        ("multinomial", [[0.0, math.log(2), 0.0]], [[0.25, 0.5, 0.25]]),
    ],
)
def test_means_of_scores(link: Link, scores: list[list[float]], expected: list[list[float]]) -> None:
    np.testing.assert_allclose(means(link, np.array(scores)), expected)


@pytest.mark.parametrize("link", ["logit", "log", "multinomial"])
def test_no_score_is_too_large(link: Link) -> None:
    found = means(link, np.array([[1e15, -1e15], [-1e15, -1e15]]))
    assert np.isfinite(found).all() and (found >= 0).all()


def test_a_number_is_scaled_by_its_range_and_a_class_is_its_position() -> None:
    assert targets(Numeric("y", 10, 20), np.array([10.0, 15.0, 20.0])).tolist() == [0, 0.5, 1]
    assert targets(Categorical("y", ["no", "yes"]), np.array([1, 0])).tolist() == [1, 0]


LOSSES: dict[Link, Callable[[Floats, Floats], Floats]] = {
    "identity": lambda score, y: (score[:, 0] - y) ** 2 / 2,
    "logit": lambda score, y: np.logaddexp(0, score[:, 0]) - y * score[:, 0],
    "log": lambda score, y: np.exp(score[:, 0]) - y * score[:, 0],
    "multinomial": lambda score, y: np.log(np.exp(score).sum(axis=1)) - score[np.arange(len(y)), y.astype(int)],
}


@pytest.mark.parametrize(
    ("link", "y"), [("identity", [0.2, 1, 0, 0.5]), ("logit", [0, 1, 1, 0]), ("log", [0, 1, 0.5, 1]), ("multinomial", [2, 0, 1, 2])]
)
def test_the_gradient_is_the_slope_of_the_mean_loss(link: Link, y: list[float], inputs: Inputs) -> None:
    n_outputs, target = 3 if link == "multinomial" else 1, np.array(y)
    weights = np.linspace(-0.6, 0.7, n_outputs * inputs.width).reshape(n_outputs, -1)
    found = gradient(link, weights, inputs, target)
    assert found.shape == weights.shape
    for place in np.ndindex(weights.shape):
        nudge = np.zeros_like(weights)
        nudge[place] = 1e-6
        up, down = (LOSSES[link](inputs.times(weights + sign * nudge), target).mean() for sign in (1, -1))
        assert found[place] == pytest.approx((up - down) / 2e-6, abs=1e-7)


def test_steps_against_the_gradient_learn(inputs: Inputs) -> None:
    weights, target = np.zeros((1, inputs.width)), np.array([0.0, 1.0, 1.0, 1.0])
    for _ in range(2000):
        weights = weights - gradient("logit", weights, inputs, target)
    assert (means("logit", inputs.times(weights))[:, 0].round() == target).all()
