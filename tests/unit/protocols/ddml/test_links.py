"""Links: predictions from scores, and gradients that are those of the log-likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from shoal.data.schema import Categorical, Numeric, Schema, as_columns
from shoal.protocols.ddml.design_matrix import InputDesign, SparseInputs
from shoal.protocols.ddml.links import Link, compute_gradient, encode_targets, predict_means

Floats = npt.NDArray[np.float64]

SCHEMA = Schema(
    [Numeric("a", 0, 1, missing=False), Categorical("b", ["u", "v", "w"], missing=False)]
)
COLUMNS = as_columns({"a": [0.1, 0.9, 0.4, 0.7], "b": ["u", "v", "w", "w"]})


@pytest.fixture
def inputs() -> SparseInputs:
    return InputDesign(SCHEMA).make_inputs(SCHEMA.encode(COLUMNS))


@pytest.mark.parametrize(
    ("link", "scores", "expected"),
    [
        ("identity", [[-2.0], [0.5]], [[-2.0], [0.5]]),
        ("logit", [[0.0], [math.log(3)]], [[0.5], [0.75]]),
        ("log", [[0.0], [math.log(3)]], [[1.0], [3.0]]),
        ("multinomial", [[0.0, math.log(2), 0.0]], [[0.25, 0.5, 0.25]]),
    ],
)
def test_predict_means_of_each_link(
    link: Link, scores: list[list[float]], expected: list[list[float]]
) -> None:
    np.testing.assert_allclose(predict_means(link, np.array(scores)), expected)


@pytest.mark.parametrize("link", ["logit", "log", "multinomial"])
def test_predict_means_is_finite_for_large_scores(link: Link) -> None:
    found = predict_means(link, np.array([[1e15, -1e15], [-1e15, -1e15]]))
    assert np.isfinite(found).all() and (found >= 0).all()


def test_encode_targets_scales_numbers_and_keeps_positions() -> None:
    assert encode_targets(Numeric("y", 10, 20), np.array([10.0, 15.0, 20.0])).tolist() == [
        0,
        0.5,
        1,
    ]
    assert encode_targets(Categorical("y", ["no", "yes"]), np.array([1, 0])).tolist() == [1, 0]


LOSSES: dict[Link, Callable[[Floats, Floats], Floats]] = {
    "identity": lambda score, y: (score[:, 0] - y) ** 2 / 2,
    "logit": lambda score, y: np.logaddexp(0, score[:, 0]) - y * score[:, 0],
    "log": lambda score, y: np.exp(score[:, 0]) - y * score[:, 0],
    "multinomial": lambda score, y: (
        np.log(np.exp(score).sum(axis=1)) - score[np.arange(len(y)), y.astype(int)]
    ),
}


@pytest.mark.parametrize(
    ("link", "y"),
    [
        ("identity", [0.2, 1, 0, 0.5]),
        ("logit", [0, 1, 1, 0]),
        ("log", [0, 1, 0.5, 1]),
        ("multinomial", [2, 0, 1, 2]),
    ],
)
def test_compute_gradient_is_slope_of_mean_loss(
    link: Link, y: list[float], inputs: SparseInputs
) -> None:
    n_outputs, target = 3 if link == "multinomial" else 1, np.array(y)
    weights = np.linspace(-0.6, 0.7, n_outputs * inputs.width).reshape(n_outputs, -1)
    found = compute_gradient(link, weights, inputs, target)
    assert found.shape == weights.shape
    for place in np.ndindex(weights.shape):
        nudge = np.zeros_like(weights)
        nudge[place] = 1e-6
        up, down = (
            LOSSES[link](inputs.multiply(weights + sign * nudge), target).mean() for sign in (1, -1)
        )
        assert found[place] == pytest.approx((up - down) / 2e-6, abs=1e-7)


def test_steps_against_gradient_reduce_loss(inputs: SparseInputs) -> None:
    weights, target = np.zeros((1, inputs.width)), np.array([0.0, 1.0, 1.0, 1.0])
    for _ in range(2000):
        weights = weights - compute_gradient("logit", weights, inputs, target)
    assert (predict_means("logit", inputs.multiply(weights))[:, 0].round() == target).all()
