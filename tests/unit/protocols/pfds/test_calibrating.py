"""How far scores are trusted, by a histogram of them and by what was thought before."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pfds_sums import NUMBER, TWO, params_of, rows_of
from shoal.domain import Feature
from shoal.protocols.pfds.calibrating import Calibrated, Change, Start, fit
from shoal.protocols.pfds.local import count
from shoal.protocols.pfds.params import GRID, Floats, Params
from shoal.protocols.pfds.pooling import Tables, by_feature, tempered, tempering
from shoal.protocols.pfds.scoring import MOST, N_BINS, N_SEARCH_BINS, middles, reach_for

MIDDLES = np.linspace(-3, 3, 13)[:, None]


def rows_by(chances: Floats, n: float = 1000.0) -> Floats:
    return n * np.stack([1 - chances, chances], axis=1)


def logistic(scores: Floats) -> Floats:
    return 1 / (1 + np.exp(-scores))


def test_the_fit_finds_the_coefficients_that_made_the_counts() -> None:
    found = fit(MIDDLES, rows_by(logistic(0.8 * MIDDLES[:, 0] - 0.3)), np.zeros(2), np.full(2, 1e-6), is_number=False)
    assert found == pytest.approx([0.8, -0.3], abs=1e-5)
    two = np.column_stack([MIDDLES[:, 0], MIDDLES[::-1, 0] ** 2])
    found = fit(two, rows_by(logistic(two @ [1.2, -0.4] + 0.5)), np.array([1.0, 0.7, 0.0]), np.full(3, 1e-6), is_number=False)
    assert found == pytest.approx([1.2, -0.4, 0.5], abs=1e-5)


def test_the_fit_of_a_number_is_a_line() -> None:
    found = fit(MIDDLES, rows_by(0.1 * MIDDLES[:, 0] + 0.4), np.zeros(2), np.full(2, 1e-9), is_number=True)
    assert found == pytest.approx([0.1, 0.4], abs=1e-9)


@pytest.mark.parametrize("is_number", [False, True])
def test_what_was_thought_is_kept_where_nothing_was_seen(is_number: bool) -> None:
    prior = np.array([0.45, -1.0])
    for counts in (np.zeros((13, 2)), np.full((13, 2), -5.0)):
        assert fit(MIDDLES, counts, prior, np.zeros(2), is_number).tolist() == prior.tolist()
    seen = rows_by(np.full(13, 0.5))
    loose, firm = (fit(MIDDLES, seen, prior, np.full(2, p), is_number)[0] for p in (1.0, 1e9))
    assert abs(loose) < 0.01 and firm == pytest.approx(0.45, abs=1e-3)


@pytest.mark.parametrize("is_number", [False, True])
def test_certainty_is_bounded(is_number: bool) -> None:
    counts = np.zeros((13, 2))
    counts[-1] = [0.0, 2.0**32]
    found = fit(MIDDLES, counts, np.array([1e9, 1e9]), np.ones(2), is_number)
    assert np.abs(found).max() <= MOST
    separated = rows_by((MIDDLES[:, 0] > 0).astype(float), 2.0**32)
    assert np.isfinite(fit(MIDDLES, separated, np.zeros(2), np.ones(2), is_number)).all()


def start_of(label: Feature = TWO) -> tuple[Params, Tables, Start]:
    params = params_of(label, epsilon=math.inf)
    rows = rows_of(params)
    sums = count(params, rows, range(len(params.arities))).reshape(-1, 2) / GRID
    tables = Tables.of(params, sums, np.zeros(len(params.arities)))
    return params, tables, Start.of(params, tables)


@pytest.mark.parametrize("label", [TWO, NUMBER])
def test_the_start_is_the_tempered_model_of_the_tables(label: Feature) -> None:
    params, tables, start = start_of(label)
    assert by_feature(params, start.shares * start.weights) == pytest.approx(np.zeros(5), abs=1e-12)
    cells = rows_of(params, 50, seed=2).cells
    scored = tempering(params) * start.weights[cells].sum(axis=1) + start.intercept
    assert scored == pytest.approx(tempered(params, tables).scores(cells)[:, 0])
    # Were features independent, this would be the variance of the score.
    generator = np.random.default_rng(3)
    drawn = [
        generator.choice(arity, 20_000, p=start.shares[first : first + arity]) + first
        for first, arity in zip(params.starts[:-1], params.arities, strict=True)
    ]
    assert start.spread == pytest.approx(start.weights[np.stack(drawn, axis=1)].sum(axis=1).var(), rel=0.05)


def test_the_calibration_leans_on_the_tempering() -> None:
    params, _, start = start_of()
    nothing = start.calibrated(np.zeros((N_BINS, 2)), 10.0)
    assert (nothing.scale, nothing.intercept) == pytest.approx((tempering(params), start.intercept))
    middle = middles(reach_for(start.spread), N_BINS)
    for scale, kept in ((0.9, 0.9), (-1.0, 0.0), (2.5, 1.5)):
        told = start.calibrated(rows_by(logistic(scale * middle - 0.4), 1e6), 0.0)
        assert told.scale == pytest.approx(kept, abs=1e-3)
        assert told.weights.tolist() == (told.scale * start.weights).tolist()
        assert told.spread == pytest.approx(max(kept, 0.05) ** 2 * start.spread, rel=1e-2)


def change_of(start: Start) -> Change:
    before = Calibrated(start, 0.8, -0.5)
    moved = np.random.default_rng(4).normal(0.1, 0.3, len(start.weights))
    return Change.to(before, before.weights + moved, -0.2)


def test_a_change_has_no_mean_of_its_own() -> None:
    params, _, start = start_of()
    change = change_of(start)
    assert by_feature(params, start.shares * change.direction) == pytest.approx(np.zeros(5), abs=1e-12)
    cells = rows_of(params, 50, seed=2).cells
    moved = np.random.default_rng(4).normal(0.1, 0.3, len(start.weights))
    whole = (0.8 * start.weights + moved)[cells].sum(axis=1) - 0.2
    assert (change.before.weights + change.direction)[cells].sum(axis=1) + change.intercept == pytest.approx(whole)


def joint(change: Change, kept: float, changed: float, intercept: float) -> Floats:
    one, other = (middles(reach_for(spread), N_SEARCH_BINS) for spread in (change.before.spread, change.spread))
    return rows_by(logistic(kept * np.repeat(one, N_SEARCH_BINS) + changed * np.tile(other, N_SEARCH_BINS) + intercept))


@pytest.mark.parametrize(("told", "kept"), [((1.1, 0.5, -0.3), (1.1, 0.5)), ((-0.5, 2.0, 0.1), (0.0, 1.6))])
def test_the_search_finds_how_much_of_the_change_is_right(told: tuple[float, float, float], kept: tuple[float, float]) -> None:
    change = change_of(start_of()[2])
    weights, intercept = change.searched(joint(change, *told), 0.0)
    assert weights == pytest.approx(kept[0] * change.before.weights + kept[1] * change.direction, abs=0.01)
    assert intercept == pytest.approx(told[2], abs=0.01)


def test_noise_alone_is_no_evidence() -> None:
    change = change_of(start_of()[2])
    noise = np.random.default_rng(5).normal(0, 20, (N_SEARCH_BINS**2, 2))
    weights, intercept = change.searched(noise, 20.0)
    assert weights == pytest.approx(change.before.weights + 0.7 * change.direction)
    assert intercept == pytest.approx(change.intercept)


def test_a_bin_counts_with_both_sides_or_not_at_all() -> None:
    change = change_of(start_of()[2])
    counts = np.zeros((N_SEARCH_BINS**2, 2))
    counts[:, 0], counts[:, 1] = 480.0, 30.0
    _, intercept = change.searched(counts, 100.0)
    assert intercept == pytest.approx(math.log(30 / 480), abs=0.1)
    assert change.searched(counts, 103.0)[1] == change.intercept


def test_no_change_takes_weights_out_of_bounds() -> None:
    before = Calibrated(start_of()[2], 0.8, -0.5)
    thrown = np.full(16, float(MOST))
    thrown[6] = -MOST
    change = Change.to(before, thrown, 0.0)
    weights, _ = change.searched(np.zeros((N_SEARCH_BINS**2, 2)), 0.0)
    assert np.abs(change.direction).max() > MOST == np.abs(weights).max()
