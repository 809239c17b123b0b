"""Frequency oracles: estimate, error, price, and rejection of bad input."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import MechanismError
from shoal.mechanisms.frequency_oracle import MAX_CARDINALITY, norm_sub
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.privacy.events import LOCAL_PERSON, Relation, Scope, Unit
from tests.statistical.frequency_oracle_distributions import KINDS

counts = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=5)
totals = st.integers(0, 10**6)


@given(counts, totals)
def test_norm_sub_is_not_negative_and_sums_to_total(values, total):
    projected = norm_sub(values, total)
    assert (projected >= 0).all()
    assert math.isclose(projected.sum(), total, abs_tol=1e-6)


@given(counts, totals)
def test_norm_sub_is_idempotent(values, total):
    once = norm_sub(values, total)
    assert np.allclose(norm_sub(once, total), once, rtol=0, atol=1e-6)


@given(counts, totals)
def test_norm_sub_is_nearest_point_of_simplex(values, total):
    """Try every set of cells that may stay positive."""
    array = np.array(values)
    candidates = []
    for size in range(1, array.size + 1):
        for cells in map(list, combinations(range(array.size), size)):
            point = np.zeros(array.size)
            point[cells] = array[cells] - (array[cells].sum() - total) / size
            if (point >= -1e-6).all():
                candidates.append(point)
    nearest = min(np.linalg.norm(point - array) for point in candidates)
    assert math.isclose(
        np.linalg.norm(norm_sub(values, total) - array), nearest, rel_tol=1e-9, abs_tol=1e-5
    )


@pytest.mark.parametrize("kind", KINDS)
def test_debias_inverts_expected_counts(kind):
    mechanism = kind(1.0, 5)
    people = np.array([40, 0, 30, 20, 10])
    expected = float(mechanism.p) * people + float(mechanism.q) * (100 - people)
    assert np.allclose(mechanism.debias(expected, 100), people)
    assert np.allclose(mechanism.debias(expected, 100, nonnegative=True), people)


def test_debias_projects_only_if_nonnegative():
    mechanism = RandomizedResponse(1.0, 3)
    plain = mechanism.debias([9, 1, 0], 10)
    assert plain.min() < 0
    assert np.allclose(mechanism.debias([9, 1, 0], 10, nonnegative=True), [10, 0, 0])


def test_debias_rejects_counts_of_other_domain():
    with pytest.raises(
        MechanismError, match=r"MECH-003  Counts of shape \(4,\) do not fit 3 cells"
    ):
        RandomizedResponse(1.0, 3).debias([1, 2, 3, 4], 10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("epsilon", "m"), [(0.1, 2), (1.0, 16), (4.0, 300)])
def test_expected_error_is_equation_4(kind, epsilon, m):
    mechanism = kind(epsilon, m)
    p, q, n = float(mechanism.p), float(mechanism.q), 10_000
    equation_4 = math.sqrt((m - 1) * q * (1 - q) + p * (1 - p)) / ((p - q) * math.sqrt(n))
    assert math.isclose(mechanism.expected_error(n), equation_4, rel_tol=1e-9)
    assert math.isclose(mechanism.expected_error(4 * n), equation_4 / 2, rel_tol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_variance_depends_on_share_of_people_in_cell(kind):
    mechanism = kind(1.0, 4)
    p, q = mechanism.p, mechanism.q
    assert mechanism.variance(1.0) == float(p * (1 - p) / (p - q) ** 2)
    assert mechanism.variance(0.0) == float(q * (1 - q) / (p - q) ** 2)
    assert math.isclose(
        mechanism.variance(), sum(mechanism.variance(share) for share in (0.1, 0.2, 0.3, 0.4)) / 4
    )


def test_variance_of_binary_randomised_response():
    """The variance is 1/4 (1 / tanh(epsilon / 2)^2 - 1), derived by hand."""
    assert math.isclose(
        RandomizedResponse(1.0, 2).variance(), (1 / math.tanh(0.5) ** 2 - 1) / 4, rel_tol=1e-12
    )


@pytest.mark.parametrize("kind", KINDS)
def test_event_has_enough_to_price_report_again(kind):
    event = kind(1.0, 8).event()
    assert event.mechanism == kind.name
    assert event.scope == LOCAL_PERSON
    assert event.delta == 0
    assert event.parameters["cardinality"] == 8
    assert all(type(value) is int for value in event.parameters.values())
    assert Fraction(event.parameters["keep_numerator"], 2**64) == kind(1.0, 8).p


@pytest.mark.parametrize("kind", KINDS)
def test_event_keeps_scope(kind):
    scope = Scope(Unit.RECORD, Relation.REPLACE, "the aggregator")
    assert kind(1.0, 3, scope).event().scope == scope


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cardinality", [1, 0, -4, MAX_CARDINALITY + 1, 4.0, True, "3"])
def test_invalid_cardinality_is_rejected(kind, cardinality):
    with pytest.raises(MechanismError, match=f"MECH-001  cardinality = {cardinality}") as error:
        kind(1.0, cardinality)
    assert ("coarser" in error.value.fix) is (cardinality == MAX_CARDINALITY + 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 65.0])
def test_invalid_epsilon_is_rejected(kind, epsilon):
    with pytest.raises(MechanismError, match="MECH-001  epsilon"):
        kind(epsilon, 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [-1, 4, 2.0, True, "2", np.int64(2)])
def test_report_rejects_value_outside_domain(kind, value, entropy):
    with pytest.raises(
        MechanismError, match="MECH-002  A value is not an integer from 0 to 3"
    ) as caught:
        kind(1.0, 4).report(value, entropy)
    assert repr(value) not in str(caught.value).replace("0 to 3", "").replace("4 cells", "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [-7, 777])
def test_report_many_error_names_row_but_not_value(kind, value, entropy):
    with pytest.raises(MechanismError, match="MECH-002  The value in row 2 ") as caught:
        kind(1.0, 4).report_many(np.array([0, 3, value, 1]), entropy)
    assert str(value) not in str(caught.value)


@pytest.mark.parametrize(
    "values", [np.array([[0, 1]]), np.array([0.0, 1.0]), np.array([True, False])]
)
def test_report_many_rejects_other_arrays(values, entropy):
    with pytest.raises(MechanismError, match="MECH-002  Values must be a vector of integers"):
        RandomizedResponse(1.0, 4).report_many(values, entropy)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64])
def test_report_many_accepts_any_integer_type(kind, dtype, entropy):
    mechanism = kind(1.0, 4)
    assert len(mechanism.report_many(np.array([0, 1, 2, 3], dtype), entropy)) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_report_many_accepts_empty_population(kind, entropy):
    mechanism = kind(1.0, 9)
    nothing = mechanism.report_many(np.empty(0, np.int64), entropy)
    assert len(nothing) == 0
    assert mechanism.tally(nothing).tolist() == [0] * 9
    assert mechanism.tally(mechanism.stack([])).tolist() == [0] * 9


@pytest.mark.parametrize("kind", KINDS)
def test_report_many_covers_batches_larger_than_block(kind, entropy):
    mechanism = kind(8.0, 3)
    values = np.arange(70_000) % 3
    estimate = mechanism.debias(
        mechanism.tally(mechanism.report_many(values, entropy)), values.size
    )
    assert np.allclose(estimate, values.size / 3, rtol=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_largest_domain_works_on_both_paths(kind, entropy):
    m = 1 << 16
    mechanism = kind(16.0, m)
    values = np.arange(520) * 100
    many = mechanism.report_many(values, entropy)
    one = mechanism.report(m - 1, entropy)
    assert mechanism.tally(many).shape == (m,)
    assert mechanism.decode(mechanism.encode(one)) == one


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("m", [2, 3, 7, 8, 9, 16, 33, 100, 257])
def test_reports_round_trip_through_encoding(kind, m, entropy):
    mechanism = kind(0.5, m)
    reports = [mechanism.report(value % m, entropy) for value in range(20)]
    wires = [mechanism.encode(report) for report in reports]
    assert len({len(wire) for wire in wires}) == 1
    assert [mechanism.decode(wire) for wire in wires] == reports
    assert mechanism.tally(mechanism.stack(reports)).sum() >= (
        0 if mechanism.name in ("rappor", "pq") else 20
    )
