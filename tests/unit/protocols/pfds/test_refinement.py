"""Residuals of a model in whole numbers, and the steps of its weights."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.data.schema import Feature
from shoal.protocols.pfds.fitting import fit_ridge_model
from shoal.protocols.pfds.params import GRID, Floats
from shoal.protocols.pfds.refinement import (
    MAX_WEIGHT,
    ONE,
    Descent,
    compute_clip,
    compute_feature_weights,
    compute_residuals,
    sum_residuals,
    to_units,
)
from tests.support.pfds import NUMBER, TWO, make_params, make_rows


def draw_weights(n: int, size: float) -> Floats:
    return np.random.default_rng(7).normal(0, size, n)


@pytest.mark.parametrize(("label", "size"), [(TWO, 1.0), (TWO, 5.0), (NUMBER, 0.1), (NUMBER, 2.0)])
def test_residuals_equal_float_residuals_to_half_a_unit(label: Feature, size: float) -> None:
    params = make_params(label)
    rows, weights = make_rows(params, 500), draw_weights(params.n_cells, size)
    scored = weights[rows.cells].sum(axis=1) + 0.2
    predicted = scored if params.is_number else 1 / (1 + np.exp(-scored))
    clip = 0.25 if params.is_number else 0.5
    missed = compute_residuals(params, rows, to_units(weights), int(0.2 * ONE))
    assert (
        np.abs(missed / GRID - np.clip(rows.sides[:, 1] / GRID - predicted, -clip, clip)).max()
        <= 0.501 / GRID
    )
    assert missed.dtype == np.int64 and np.abs(missed).max() <= compute_clip(params) == clip * GRID


@pytest.mark.parametrize("label", [TWO, NUMBER])
@pytest.mark.parametrize("weight", [MAX_WEIGHT * ONE, -MAX_WEIGHT * ONE])
def test_residuals_never_exceed_the_clip(label: Feature, weight: int) -> None:
    params = make_params(label)
    rows = make_rows(params, 100)
    missed = compute_residuals(params, rows, np.full(params.n_cells, weight), weight)
    assert np.abs(missed).max() == compute_clip(params)


def test_sum_residuals_adds_residuals_by_cell() -> None:
    params = make_params()
    rows, weights = make_rows(params, 200), to_units(draw_weights(params.n_cells, 1.0))
    missed = compute_residuals(params, rows, weights, 5)
    counted = sum_residuals(params, rows, weights, 5)
    assert counted.dtype == np.int64
    assert counted.tolist() == [
        int(missed[(rows.cells == cell).any(axis=1)].sum()) for cell in range(params.n_cells)
    ]


def test_feature_weights_are_larger_for_fewer_cells() -> None:
    parts = compute_feature_weights(make_params())
    assert parts.sum() == pytest.approx(1)
    assert parts / parts[0] == pytest.approx([1, 2 / 3, 2 / 5, 2 / 4, 1])


@pytest.mark.parametrize(("label", "curvature"), [(TWO, 0.12), (NUMBER, 1.0)])
def test_descent_step_equals_the_formula(label: Feature, curvature: float) -> None:
    params = make_params(label)
    generator = np.random.default_rng(8)
    shares = np.concatenate([generator.dirichlet(np.ones(arity)) for arity in params.arities])
    weights, velocity, gradient = (
        generator.normal(0, size, params.n_cells) for size in (1.0, 0.2, 0.01)
    )
    moved = Descent(weights, 0.3, velocity, 0.1).move(params, 0.4, gradient, 0.002, shares)
    sums = [
        gradient[first:last].sum()
        for first, last in zip(params.starts[:-1], params.starts[1:], strict=True)
    ]
    missed = sum(
        part * total for part, total in zip(compute_feature_weights(params), sums, strict=True)
    )
    expected = [
        0.5 * v + (g - missed * f) / (curvature * f + 2 * 0.002)
        for v, g, f in zip(velocity, gradient, shares, strict=True)
    ]
    assert moved.weight_velocity == pytest.approx(expected)
    assert moved.weights == pytest.approx(weights + 0.4 * np.array(expected))
    assert moved.intercept_velocity == pytest.approx(0.05 + missed / curvature)
    assert moved.intercept == pytest.approx(0.3 + 0.4 * moved.intercept_velocity)


@pytest.mark.parametrize("label", [TWO, NUMBER])
def test_descent_without_noise_approaches_the_best_score(label: Feature) -> None:
    params = make_params(label)
    rows = make_rows(params)
    shares = np.bincount(rows.cells.ravel(), minlength=params.n_cells) / len(rows)
    descent = Descent.start(np.zeros(params.n_cells), 0.0)
    for _ in range(60):
        counted = sum_residuals(
            params, rows, to_units(descent.weights), int(to_units(np.array(descent.intercept)))
        )
        descent = descent.move(params, 0.15, counted / GRID / len(rows), 0.0, shares)
    best = fit_ridge_model(params, rows, penalty=0.01).compute_scores(rows.cells)[:, 0]
    found = descent.weights[rows.cells].sum(axis=1) + descent.intercept
    assert np.corrcoef(found, best)[0, 1] > 0.995
    if params.is_number:
        assert np.abs(found - best).max() < 0.05
    else:
        # Residuals clipped at 1/2 make the scores too large, which the search corrects.
        assert 1.1 < found.std() / best.std() < 1.5


def test_descent_keeps_empty_cells_and_stays_in_bounds() -> None:
    params = make_params()
    shares = np.zeros(params.n_cells)
    still = Descent.start(shares, 0.0).move(params, 0.4, shares, 0.0, shares)
    assert not still.weights.any() and still.intercept == 0.0
    thrown = Descent.start(shares, 0.0)
    for _ in range(6):
        thrown = thrown.move(params, 0.7, np.full(params.n_cells, 2.0**32), 0.0, shares)
    assert thrown.weights.max() == MAX_WEIGHT and thrown.intercept == MAX_WEIGHT
    assert math.isfinite(thrown.intercept_velocity)
