"""What pooled tables say: shares that agree, log-odds, and how sure they are."""

from __future__ import annotations

import math
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.domain import Categorical, Feature, Numeric, Schema
from shoal.protocols.pfds.params import Floats, Params
from shoal.protocols.pfds.pooling import (
    UNKNOWN,
    Tables,
    by_feature,
    cell_variances,
    centred,
    clean,
    intercepts,
    log_odds,
    means,
    projected,
    tempered,
    tempering,
    to_cells,
)

FEATURES = (Categorical("a", ["0", "1"], missing=False), Categorical("b", ["0", "1", "2"], missing=False))
TWO, THREE, NUMBER = Categorical("y", ["0", "1"]), Categorical("y", ["0", "1", "2"]), Numeric("y", 0, 8)
NUMBERS = st.floats(-1e18, 1e18) | st.integers(-5, 5).map(float) | st.just(0.0)


def params_of(label: Feature = TWO) -> Params:
    return Params(Schema(FEATURES, label), math.inf, 100)


def tables_of(params: Params, sums: object, noise: object) -> Tables:
    return Tables.of(params, np.array(sums, float), np.broadcast_to(np.array(noise, float), 2))


# Columns are sides: 60 rows of side 0 and 40 of side 1 in both tables.
SUMS = [[50, 10], [10, 30], [30, 10], [20, 10], [10, 20]]


def closest(values: Floats, total: float) -> Floats:
    """The projection by trying every set of coordinates that are not 0."""
    n = len(values)
    points = []
    for kept in chain.from_iterable(combinations(range(n), size) for size in range(1, n + 1)):
        point = np.zeros(n)
        point[list(kept)] = values[list(kept)] + (total - values[list(kept)].sum()) / len(kept)
        if point.min() >= 0:
            points.append(point)
    return min(points, key=lambda point: float(((point - values) ** 2).sum()))


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=5), st.sampled_from([0.02, 0.4, 1.0]))
def test_a_projection_is_the_closest_point(values: list[float], total: float) -> None:
    assert np.allclose(projected(np.array(values), total), closest(np.array(values), total))


@given(st.lists(NUMBERS, min_size=1, max_size=6), st.floats(0.02, 1))
def test_a_projection_adds_up_whatever_it_is_made_of(values: list[float], total: float) -> None:
    point = projected(np.array(values), total)
    assert point.min() >= 0 and point.sum() == pytest.approx(total)


def test_tables_without_noise_are_shares() -> None:
    params = params_of()
    tables = tables_of(params, SUMS, 0)
    assert tables.totals.tolist() == [100, 100] and tables.variances.tolist() == [0, 0]
    shares = clean(params, tables)
    assert shares.p == pytest.approx([0.4])
    assert shares.f == pytest.approx([0.6, 0.4, 0.4, 0.3, 0.3])
    assert shares.t[:, 0] == pytest.approx([0.1, 0.3, 0.1, 0.1, 0.2])
    t, f = shares.t[:, 0], shares.f
    assert log_odds(params, tables, shares)[:, 0] == pytest.approx(np.log((t / 0.4 + 1e-4) / ((f - t) / 0.6 + 1e-4)))
    assert intercepts(params, shares) == pytest.approx([math.log(2 / 3)])
    assert not cell_variances(params, tables, shares).any()


def test_a_table_weighs_by_its_noise_and_rows() -> None:
    params = params_of()
    # The tables disagree on the label's share: .4 by the first, .6 by the second.
    sums = [[50, 10], [10, 30], [20, 20], [10, 20], [10, 20]]
    noise = np.array([30.0, 5.0])
    weights = 1 / (np.array([2, 3]) * noise / 100**2 + 0.2 / 100)
    shares = clean(params, tables_of(params, sums, noise))
    assert shares.p == pytest.approx([(0.4 * weights[0] + 0.6 * weights[1]) / weights.sum()])
    assert by_feature(params, shares.f) == pytest.approx([1, 1])
    assert by_feature(params, shares.t)[:, 0] == pytest.approx([shares.p[0]] * 2)


def test_noise_smooths_and_makes_unsure() -> None:
    params = params_of()
    tables = tables_of(params, SUMS, [25.0, 100.0])
    deviations = np.array([0.05, 0.05, 0.1, 0.1, 0.1])
    assert np.sqrt(to_cells(params, tables.variances)) == pytest.approx(deviations)
    shares = clean(params, tables)
    t, g = shares.t[:, 0], shares.f - shares.t[:, 0]
    s = 2 * deviations + 1e-4
    assert log_odds(params, tables, shares)[:, 0] == pytest.approx(np.log((t / 0.4 + s) / (g / 0.6 + s)))
    s = deviations + 1e-4
    assert cell_variances(params, tables, shares)[:, 0] == pytest.approx(deviations**2 * (1 / (t + s) ** 2 + 1 / (g + s) ** 2))


def test_more_classes_have_a_model_each() -> None:
    params = params_of(THREE)
    sums = [[30, 10, 10], [20, 20, 10], [20, 10, 5], [20, 10, 5], [10, 10, 10]]
    tables = tables_of(params, sums, 1.0)
    shares = clean(params, tables)
    assert shares.p == pytest.approx([0.5, 0.3, 0.2])
    assert shares.t == pytest.approx(np.array(sums) / 100)
    assert shares.f == pytest.approx(np.array(sums).sum(axis=1) / 100)
    rest = shares.f[:, np.newaxis] - shares.t
    s = 2 * 0.01 + 1e-4
    assert log_odds(params, tables, shares) == pytest.approx(np.log((shares.t / shares.p + s) / (rest / (1 - shares.p) + s)))
    assert intercepts(params, shares) == pytest.approx(np.log(shares.p / (1 - shares.p)))
    assert cell_variances(params, tables, shares).shape == (5, 3)


def test_a_number_is_told_by_its_mean_in_each_cell() -> None:
    params = params_of(NUMBER)
    tables = tables_of(params, SUMS, 4.0)
    shares = clean(params, tables)
    raw = (shares.t[:, 0] - 0.4 * shares.f) / (shares.f + 2 * 0.02 + 1e-4)
    weights = log_odds(params, tables, shares)
    for table in (slice(0, 2), slice(2, 5)):
        assert weights[table, 0] == pytest.approx(raw[table] - (shares.f * raw)[table].sum())
    assert means(params, weights, shares.f) == pytest.approx(np.zeros((2, 1)), abs=1e-12)
    assert intercepts(params, shares) == pytest.approx([0.4])
    assert cell_variances(params, tables, shares)[:, 0] == pytest.approx((0.02 / (shares.f + 0.02 + 1e-4)) ** 2)


def test_centred_weights_have_mean_zero() -> None:
    params, f = params_of(), np.array([0.25, 0.75, 0.5, 0.25, 0.25])
    weights = np.arange(10.0).reshape(5, 2)
    assert means(params, weights, f) == pytest.approx(np.array([[1.5, 2.5], [5.5, 6.5]]))
    assert means(params, centred(params, weights, f), f) == pytest.approx(np.zeros((2, 2)))


@pytest.mark.parametrize("label", [TWO, THREE, NUMBER])
def test_a_table_that_nobody_answers_says_nothing(label: Feature) -> None:
    params = params_of(label)
    sums = np.zeros((5, params.n_sides))
    sums[:2] = np.array([[50, 10, 3], [10, 30, 4]])[:, : params.n_sides]
    model = tempered(params, tables_of(params, sums, [4.0, UNKNOWN]))
    assert not model.weights[2:].any() and model.weights[:2].all()
    assert model.shares[2:] == pytest.approx([1 / 3] * 3)
    # Far above what own rows are kept from moving by: a third.
    assert model.variances[2:].min() > 0.99 > model.variances[:2].max()
    assert model.intercepts == pytest.approx(tempered(params, tables_of(params, sums, [4.0, 1e30])).intercepts)


def test_a_rare_class_is_not_rarer_than_noise_can_tell() -> None:
    shares = clean(params_of(), tables_of(params_of(), [[999, 1], [0, 0], [999, 1], [0, 0], [0, 0]], 0))
    assert shares.p == pytest.approx([0.02])
    many = Params(Schema(FEATURES, Categorical("y", [str(i) for i in range(100)])), math.inf, 100)
    sums = np.zeros((5, 100))
    sums[0, :99] = sums[2, :99] = 10
    p = clean(many, tables_of(many, sums, 0)).p
    assert p.sum() == pytest.approx(1) and p[-1] == pytest.approx(0.005 / 1.005) and p[0] == pytest.approx(1 / 99 / 1.005)


def test_correlated_attributes_are_tempered() -> None:
    params = params_of()
    tables = tables_of(params, SUMS, 1.0)
    shares = clean(params, tables)
    model = tempered(params, tables)
    assert tempering(params) == 0.6
    assert model.weights == pytest.approx(0.6 * log_odds(params, tables, shares))
    assert (model.shares == shares.f).all() and (model.intercepts == intercepts(params, shares)).all()
    wide = Schema([Categorical(f"a{i}", ["0", "1"]) for i in range(25)], TWO)
    assert tempering(Params(wide, 1.0, 100)) == pytest.approx(0.3)


@pytest.mark.untraced
@pytest.mark.parametrize("label", [TWO, THREE, NUMBER])
@given(st.data())
def test_any_tables_give_a_finite_model(label: Feature, data: st.DataObject) -> None:
    params = params_of(label)
    sums = data.draw(st.lists(st.lists(NUMBERS, min_size=params.n_sides, max_size=params.n_sides), min_size=5, max_size=5))
    noise = data.draw(st.lists(st.sampled_from([0.0, 1e-9, 1.0, UNKNOWN, 1e18]), min_size=2, max_size=2))
    model = tempered(params, tables_of(params, sums, noise))
    for part in (model.weights, model.intercepts, model.variances, model.shares):
        assert np.isfinite(part).all()
    assert np.abs(model.weights).max() < 100 and model.variances.min() >= 0 and model.variances.max() <= 2
    assert model.shares.min() >= 0 and by_feature(params, model.shares) == pytest.approx(np.ones(2))
