"""Pooled tables: consistent shares, log-odds, and their variances."""

from __future__ import annotations

import math
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.protocols.pfds.params import Floats, PFDSParams
from shoal.protocols.pfds.tables import (
    UNKNOWN,
    PooledTables,
    centre_weights,
    compute_cell_variances,
    compute_intercepts,
    compute_log_odds,
    compute_means,
    compute_tempering,
    fit_tempered_model,
    make_consistent,
    project_to_simplex,
    repeat_for_cells,
    sum_by_feature,
)

FEATURES = (
    Categorical("a", ["0", "1"], missing=False),
    Categorical("b", ["0", "1", "2"], missing=False),
)
TWO, THREE, NUMBER = (
    Categorical("y", ["0", "1"]),
    Categorical("y", ["0", "1", "2"]),
    Numeric("y", 0, 8),
)
NUMBERS = st.floats(-1e18, 1e18) | st.integers(-5, 5).map(float) | st.just(0.0)


def make_params(label: Feature = TWO) -> PFDSParams:
    return PFDSParams(Schema(FEATURES, label), math.inf, 100)


def make_tables(params: PFDSParams, sums: object, noise: object) -> PooledTables:
    return PooledTables.from_sums(
        params, np.array(sums, float), np.broadcast_to(np.array(noise, float), 2)
    )


# Columns are sides: 60 rows of side 0 and 40 of side 1 in both tables.
SUMS = [[50, 10], [10, 30], [30, 10], [20, 10], [10, 20]]


def project_by_enumeration(values: Floats, total: float) -> Floats:
    """Return the projection, by trying every set of nonzero coordinates."""
    n = len(values)
    points = []
    for kept in chain.from_iterable(combinations(range(n), size) for size in range(1, n + 1)):
        point = np.zeros(n)
        point[list(kept)] = values[list(kept)] + (total - values[list(kept)].sum()) / len(kept)
        if point.min() >= 0:
            points.append(point)
    return min(points, key=lambda point: float(((point - values) ** 2).sum()))


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=5), st.sampled_from([0.02, 0.4, 1.0]))
def test_projection_is_the_closest_point(values: list[float], total: float) -> None:
    assert np.allclose(
        project_to_simplex(np.array(values), total), project_by_enumeration(np.array(values), total)
    )


@given(st.lists(NUMBERS, min_size=1, max_size=6), st.floats(0.02, 1))
def test_projection_has_the_given_total_for_any_values(values: list[float], total: float) -> None:
    point = project_to_simplex(np.array(values), total)
    assert point.min() >= 0 and point.sum() == pytest.approx(total)


def test_tables_without_noise_give_exact_shares() -> None:
    params = make_params()
    tables = make_tables(params, SUMS, 0)
    assert tables.totals.tolist() == [100, 100] and tables.variances.tolist() == [0, 0]
    shares = make_consistent(params, tables)
    assert shares.p == pytest.approx([0.4])
    assert shares.f == pytest.approx([0.6, 0.4, 0.4, 0.3, 0.3])
    assert shares.t[:, 0] == pytest.approx([0.1, 0.3, 0.1, 0.1, 0.2])
    t, f = shares.t[:, 0], shares.f
    assert compute_log_odds(params, tables, shares)[:, 0] == pytest.approx(
        np.log((t / 0.4 + 1e-4) / ((f - t) / 0.6 + 1e-4))
    )
    assert compute_intercepts(params, shares) == pytest.approx([math.log(2 / 3)])
    assert not compute_cell_variances(params, tables, shares).any()


def test_label_shares_weight_tables_by_noise_and_rows() -> None:
    params = make_params()
    # The tables disagree on the label's share: .4 by the first, .6 by the second.
    sums = [[50, 10], [10, 30], [20, 20], [10, 20], [10, 20]]
    noise = np.array([30.0, 5.0])
    weights = 1 / (np.array([2, 3]) * noise / 100**2 + 0.2 / 100)
    shares = make_consistent(params, make_tables(params, sums, noise))
    assert shares.p == pytest.approx([(0.4 * weights[0] + 0.6 * weights[1]) / weights.sum()])
    assert sum_by_feature(params, shares.f) == pytest.approx([1, 1])
    assert sum_by_feature(params, shares.t)[:, 0] == pytest.approx([shares.p[0]] * 2)


def test_noise_smooths_log_odds_and_increases_variances() -> None:
    params = make_params()
    tables = make_tables(params, SUMS, [25.0, 100.0])
    deviations = np.array([0.05, 0.05, 0.1, 0.1, 0.1])
    assert np.sqrt(repeat_for_cells(params, tables.variances)) == pytest.approx(deviations)
    shares = make_consistent(params, tables)
    t, g = shares.t[:, 0], shares.f - shares.t[:, 0]
    s = 2 * deviations + 1e-4
    assert compute_log_odds(params, tables, shares)[:, 0] == pytest.approx(
        np.log((t / 0.4 + s) / (g / 0.6 + s))
    )
    s = deviations + 1e-4
    assert compute_cell_variances(params, tables, shares)[:, 0] == pytest.approx(
        deviations**2 * (1 / (t + s) ** 2 + 1 / (g + s) ** 2)
    )


def test_several_classes_have_one_model_each() -> None:
    params = make_params(THREE)
    sums = [[30, 10, 10], [20, 20, 10], [20, 10, 5], [20, 10, 5], [10, 10, 10]]
    tables = make_tables(params, sums, 1.0)
    shares = make_consistent(params, tables)
    assert shares.p == pytest.approx([0.5, 0.3, 0.2])
    assert shares.t == pytest.approx(np.array(sums) / 100)
    assert shares.f == pytest.approx(np.array(sums).sum(axis=1) / 100)
    rest = shares.f[:, np.newaxis] - shares.t
    s = 2 * 0.01 + 1e-4
    assert compute_log_odds(params, tables, shares) == pytest.approx(
        np.log((shares.t / shares.p + s) / (rest / (1 - shares.p) + s))
    )
    assert compute_intercepts(params, shares) == pytest.approx(np.log(shares.p / (1 - shares.p)))
    assert compute_cell_variances(params, tables, shares).shape == (5, 3)


def test_number_has_centred_means_of_cells_as_weights() -> None:
    params = make_params(NUMBER)
    tables = make_tables(params, SUMS, 4.0)
    shares = make_consistent(params, tables)
    raw = (shares.t[:, 0] - 0.4 * shares.f) / (shares.f + 2 * 0.02 + 1e-4)
    weights = compute_log_odds(params, tables, shares)
    for table in (slice(0, 2), slice(2, 5)):
        assert weights[table, 0] == pytest.approx(raw[table] - (shares.f * raw)[table].sum())
    assert compute_means(params, weights, shares.f) == pytest.approx(np.zeros((2, 1)), abs=1e-12)
    assert compute_intercepts(params, shares) == pytest.approx([0.4])
    assert compute_cell_variances(params, tables, shares)[:, 0] == pytest.approx(
        (0.02 / (shares.f + 0.02 + 1e-4)) ** 2
    )


def test_centred_weights_have_mean_zero() -> None:
    params, f = make_params(), np.array([0.25, 0.75, 0.5, 0.25, 0.25])
    weights = np.arange(10.0).reshape(5, 2)
    assert compute_means(params, weights, f) == pytest.approx(np.array([[1.5, 2.5], [5.5, 6.5]]))
    assert compute_means(params, centre_weights(params, weights, f), f) == pytest.approx(
        np.zeros((2, 2))
    )


@pytest.mark.parametrize("label", [TWO, THREE, NUMBER])
def test_unanswered_table_has_no_weight(label: Feature) -> None:
    params = make_params(label)
    sums = np.zeros((5, params.n_sides))
    sums[:2] = np.array([[50, 10, 3], [10, 30, 4]])[:, : params.n_sides]
    model = fit_tempered_model(params, make_tables(params, sums, [4.0, UNKNOWN]))
    assert not model.weights[2:].any() and model.weights[:2].all()
    assert model.shares[2:] == pytest.approx([1 / 3] * 3)
    # Far above 0.33, at which own rows move freely.
    assert model.variances[2:].min() > 0.99 > model.variances[:2].max()
    assert model.intercepts == pytest.approx(
        fit_tempered_model(params, make_tables(params, sums, [4.0, 1e30])).intercepts
    )


def test_share_of_a_rare_class_has_a_lower_bound() -> None:
    shares = make_consistent(
        make_params(), make_tables(make_params(), [[999, 1], [0, 0], [999, 1], [0, 0], [0, 0]], 0)
    )
    assert shares.p == pytest.approx([0.02])
    many = PFDSParams(
        Schema(FEATURES, Categorical("y", [str(i) for i in range(100)])), math.inf, 100
    )
    sums = np.zeros((5, 100))
    sums[0, :99] = sums[2, :99] = 10
    p = make_consistent(many, make_tables(many, sums, 0)).p
    assert (
        p.sum() == pytest.approx(1)
        and p[-1] == pytest.approx(0.005 / 1.005)
        and p[0] == pytest.approx(1 / 99 / 1.005)
    )


def test_tempered_model_scales_log_odds() -> None:
    params = make_params()
    tables = make_tables(params, SUMS, 1.0)
    shares = make_consistent(params, tables)
    model = fit_tempered_model(params, tables)
    assert compute_tempering(params) == 0.6
    assert model.weights == pytest.approx(0.6 * compute_log_odds(params, tables, shares))
    assert (model.shares == shares.f).all() and (
        model.intercepts == compute_intercepts(params, shares)
    ).all()
    wide = Schema([Categorical(f"a{i}", ["0", "1"]) for i in range(25)], TWO)
    assert compute_tempering(PFDSParams(wide, 1.0, 100)) == pytest.approx(0.3)


@pytest.mark.untraced
@pytest.mark.parametrize("label", [TWO, THREE, NUMBER])
@given(st.data())
def test_any_tables_give_a_finite_model(label: Feature, data: st.DataObject) -> None:
    params = make_params(label)
    sums = data.draw(
        st.lists(
            st.lists(NUMBERS, min_size=params.n_sides, max_size=params.n_sides),
            min_size=5,
            max_size=5,
        )
    )
    noise = data.draw(
        st.lists(st.sampled_from([0.0, 1e-9, 1.0, UNKNOWN, 1e18]), min_size=2, max_size=2)
    )
    model = fit_tempered_model(params, make_tables(params, sums, noise))
    for part in (model.weights, model.intercepts, model.variances, model.shares):
        assert np.isfinite(part).all()
    assert (
        np.abs(model.weights).max() < 100
        and model.variances.min() >= 0
        and model.variances.max() <= 2
    )
    assert model.shares.min() >= 0 and sum_by_feature(params, model.shares) == pytest.approx(
        np.ones(2)
    )
