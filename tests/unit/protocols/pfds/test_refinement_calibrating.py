"""Calibration of scores by a histogram and a prior, and the search along a change."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.data.schema import Feature
from shoal.protocols.pfds.params import GRID, Floats, PFDSParams
from shoal.protocols.pfds.refinement import (
    MAX_WEIGHT,
    N_BINS,
    N_SEARCH_BINS,
    CalibratedScore,
    TableScore,
    WeightChange,
    compute_bin_centres,
    compute_reach,
    fit_scores,
)
from shoal.protocols.pfds.tables import (
    PooledTables,
    compute_tempering,
    count_tables,
    fit_tempered_model,
    sum_by_feature,
)
from tests.support.pfds import NUMBER, TWO, make_params, make_rows

MIDDLES = np.linspace(-3, 3, 13)[:, None]


def make_counts(chances: Floats, n: float = 1000.0) -> Floats:
    return n * np.stack([1 - chances, chances], axis=1)


def compute_logistic(scores: Floats) -> Floats:
    return 1 / (1 + np.exp(-scores))


def test_fit_scores_finds_the_coefficients_of_the_counts() -> None:
    found = fit_scores(
        MIDDLES,
        make_counts(compute_logistic(0.8 * MIDDLES[:, 0] - 0.3)),
        np.zeros(2),
        np.full(2, 1e-6),
        is_number=False,
    )
    assert found == pytest.approx([0.8, -0.3], abs=1e-5)
    two = np.column_stack([MIDDLES[:, 0], MIDDLES[::-1, 0] ** 2])
    found = fit_scores(
        two,
        make_counts(compute_logistic(two @ [1.2, -0.4] + 0.5)),
        np.array([1.0, 0.7, 0.0]),
        np.full(3, 1e-6),
        is_number=False,
    )
    assert found == pytest.approx([1.2, -0.4, 0.5], abs=1e-5)


def test_fit_scores_of_a_number_is_a_line() -> None:
    found = fit_scores(
        MIDDLES,
        make_counts(0.1 * MIDDLES[:, 0] + 0.4),
        np.zeros(2),
        np.full(2, 1e-9),
        is_number=True,
    )
    assert found == pytest.approx([0.1, 0.4], abs=1e-9)


@pytest.mark.parametrize("is_number", [False, True])
def test_fit_scores_keeps_the_prior_without_counts(is_number: bool) -> None:
    prior = np.array([0.45, -1.0])
    for counts in (np.zeros((13, 2)), np.full((13, 2), -5.0)):
        assert fit_scores(MIDDLES, counts, prior, np.zeros(2), is_number).tolist() == prior.tolist()
    seen = make_counts(np.full(13, 0.5))
    loose, firm = (
        fit_scores(MIDDLES, seen, prior, np.full(2, p), is_number)[0] for p in (1.0, 1e9)
    )
    assert abs(loose) < 0.01 and firm == pytest.approx(0.45, abs=1e-3)


@pytest.mark.parametrize("is_number", [False, True])
def test_fit_scores_is_bounded(is_number: bool) -> None:
    counts = np.zeros((13, 2))
    counts[-1] = [0.0, 2.0**32]
    found = fit_scores(MIDDLES, counts, np.array([1e9, 1e9]), np.ones(2), is_number)
    assert np.abs(found).max() <= MAX_WEIGHT
    separated = make_counts((MIDDLES[:, 0] > 0).astype(float), 2.0**32)
    assert np.isfinite(fit_scores(MIDDLES, separated, np.zeros(2), np.ones(2), is_number)).all()


def make_start(label: Feature = TWO) -> tuple[PFDSParams, PooledTables, TableScore]:
    params = make_params(label, epsilon=math.inf)
    rows = make_rows(params)
    sums = count_tables(params, rows, range(len(params.arities))).reshape(-1, 2) / GRID
    tables = PooledTables.from_sums(params, sums, np.zeros(len(params.arities)))
    return params, tables, TableScore.from_tables(params, tables)


@pytest.mark.parametrize("label", [TWO, NUMBER])
def test_start_is_the_tempered_model_of_the_tables(label: Feature) -> None:
    params, tables, start = make_start(label)
    assert sum_by_feature(params, start.shares * start.weights) == pytest.approx(
        np.zeros(5), abs=1e-12
    )
    cells = make_rows(params, 50, seed=2).cells
    scored = compute_tempering(params) * start.weights[cells].sum(axis=1) + start.intercept
    assert scored == pytest.approx(fit_tempered_model(params, tables).compute_scores(cells)[:, 0])
    # If features were independent, this would be the variance of the score.
    generator = np.random.default_rng(3)
    drawn = [
        generator.choice(arity, 20_000, p=start.shares[first : first + arity]) + first
        for first, arity in zip(params.starts[:-1], params.arities, strict=True)
    ]
    assert start.score_variance == pytest.approx(
        start.weights[np.stack(drawn, axis=1)].sum(axis=1).var(), rel=0.05
    )


def test_calibration_falls_back_to_the_tempering() -> None:
    params, _, start = make_start()
    nothing = start.calibrate(np.zeros((N_BINS, 2)), 10.0)
    assert (nothing.scale, nothing.intercept) == pytest.approx(
        (compute_tempering(params), start.intercept)
    )
    middle = compute_bin_centres(compute_reach(start.score_variance), N_BINS)
    for scale, kept in ((0.9, 0.9), (-1.0, 0.0), (2.5, 1.5)):
        told = start.calibrate(make_counts(compute_logistic(scale * middle - 0.4), 1e6), 0.0)
        assert told.scale == pytest.approx(kept, abs=1e-3)
        assert told.weights.tolist() == (told.scale * start.weights).tolist()
        assert told.score_variance == pytest.approx(
            max(kept, 0.05) ** 2 * start.score_variance, rel=1e-2
        )


def make_change(start: TableScore) -> WeightChange:
    before = CalibratedScore(start, 0.8, -0.5)
    moved = np.random.default_rng(4).normal(0.1, 0.3, len(start.weights))
    return WeightChange.from_weights(before, before.weights + moved, -0.2)


def test_direction_of_a_change_has_mean_zero() -> None:
    params, _, start = make_start()
    change = make_change(start)
    assert sum_by_feature(params, start.shares * change.direction) == pytest.approx(
        np.zeros(5), abs=1e-12
    )
    cells = make_rows(params, 50, seed=2).cells
    moved = np.random.default_rng(4).normal(0.1, 0.3, len(start.weights))
    whole = (0.8 * start.weights + moved)[cells].sum(axis=1) - 0.2
    assert (change.before.weights + change.direction)[cells].sum(
        axis=1
    ) + change.intercept == pytest.approx(whole)


def make_joint_counts(
    change: WeightChange, kept: float, changed: float, intercept: float
) -> Floats:
    one, other = (
        compute_bin_centres(compute_reach(variance), N_SEARCH_BINS)
        for variance in (change.before.score_variance, change.score_variance)
    )
    return make_counts(
        compute_logistic(
            kept * np.repeat(one, N_SEARCH_BINS)
            + changed * np.tile(other, N_SEARCH_BINS)
            + intercept
        )
    )


@pytest.mark.parametrize(
    ("told", "kept"), [((1.1, 0.5, -0.3), (1.1, 0.5)), ((-0.5, 2.0, 0.1), (0.0, 1.6))]
)
def test_search_finds_the_shares_of_start_and_change(
    told: tuple[float, float, float], kept: tuple[float, float]
) -> None:
    change = make_change(make_start()[2])
    weights, intercept = change.search(make_joint_counts(change, *told), 0.0)
    assert weights == pytest.approx(
        kept[0] * change.before.weights + kept[1] * change.direction, abs=0.01
    )
    assert intercept == pytest.approx(told[2], abs=0.01)


def test_search_ignores_pure_noise() -> None:
    change = make_change(make_start()[2])
    noise = np.random.default_rng(5).normal(0, 20, (N_SEARCH_BINS**2, 2))
    weights, intercept = change.search(noise, 20.0)
    assert weights == pytest.approx(change.before.weights + 0.7 * change.direction)
    assert intercept == pytest.approx(change.intercept)


def test_search_ignores_bins_below_the_noise() -> None:
    change = make_change(make_start()[2])
    counts = np.zeros((N_SEARCH_BINS**2, 2))
    counts[:, 0], counts[:, 1] = 480.0, 30.0
    _, intercept = change.search(counts, 100.0)
    assert intercept == pytest.approx(math.log(30 / 480), abs=0.1)
    assert change.search(counts, 103.0)[1] == change.intercept


def test_search_keeps_weights_in_bounds() -> None:
    before = CalibratedScore(make_start()[2], 0.8, -0.5)
    thrown = np.full(16, float(MAX_WEIGHT))
    thrown[6] = -MAX_WEIGHT
    change = WeightChange.from_weights(before, thrown, 0.0)
    weights, _ = change.search(np.zeros((N_SEARCH_BINS**2, 2)), 0.0)
    assert np.abs(change.direction).max() > MAX_WEIGHT == np.abs(weights).max()
