"""Variant paper: questions of a sharer, prices, mechanisms, and encoded rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.data.schema import Numeric, Schema
from shoal.errors import SpecError
from shoal.privacy.rounding import grains_down, grains_up
from shoal.protocols.pfds.paper.script import (
    TreeRows,
    compute_prices,
    count_projected_levels,
    encode_outcomes,
    encode_values,
    list_questions,
    make_leaf_mechanism,
    make_node_mechanism,
    make_split_mechanism,
)
from tests.support.pfds_paper import SCHEMA, make_params

BIKE = Schema([Numeric(name, 0, 1) for name in "abcdefgh"], label=Numeric("rides", -1, 1))
COLUMNS = {
    "age": np.array([3.0, 60.5]),
    "ward": np.array([2, 0]),
    "city": np.array([3, -1]),
    "weight": np.array([2.0, 6.0]),
}


def test_questions_follow_from_depth_and_levels() -> None:
    assert list_questions(make_params()) == (
        "split/1",
        "split/2",
        "split/3",
        "leaves",
        "count/1",
        "count/2",
    )
    assert list_questions(make_params(max_depth=8, n_levels=8))[-1] == "count/3"
    assert (
        list_questions(make_params(n_levels=1))
        == list_questions(make_params(projection=False))
        == ("split/1", "split/2", "split/3", "leaves")
    )
    assert list_questions(make_params(max_depth=1)) == ("leaves",)
    assert [count_projected_levels(make_params(n_levels=p)) for p in (2, 3, 4, 5)] == [1, 2, 3, 3]


def test_prices_give_half_to_the_tree_and_half_to_the_counts() -> None:
    priced = compute_prices(make_params(BIKE, 1.0, max_depth=8, n_levels=5))
    assert {question: event.epsilon for question, event in priced.items()} == {
        **{f"split/{h}": 1 / 16 for h in range(1, 8)},
        "leaves": 1 / 16,
        **{f"count/{i}": 1 / 8 for i in range(1, 5)},
    }
    assert math.fsum(event.epsilon for event in priced.values()) == 1


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.7, 3.3])
@pytest.mark.parametrize(("depth", "n_levels"), [(8, 4), (7, 4), (6, 6), (3, 2)])
def test_prices_add_up_to_the_budget(epsilon: float, depth: int, n_levels: int) -> None:
    priced = compute_prices(make_params(BIKE, epsilon, max_depth=depth, n_levels=n_levels))
    spent = sum(grains_up(event.epsilon) for event in priced.values())
    assert grains_down(epsilon) - len(priced) <= spent <= grains_down(epsilon)


def test_price_events_name_mechanism_columns_and_scope() -> None:
    priced = compute_prices(make_params(unit="person", max_rows=3))
    assert {question: event.mechanism for question, event in priced.items()} == {
        **dict.fromkeys(["split/1", "split/2", "split/3"], "exponential"),
        **dict.fromkeys(["leaves", "count/1", "count/2"], "discrete-laplace"),
    }
    for event in priced.values():
        assert event.parameters["sensitivity"] == 3
        assert event.reads == ("age", "city", "ill", "ward", "weight")
        assert str(event.scope) == "person, add-remove, against all who read the release"


def test_mechanisms_have_the_rate_of_their_price() -> None:
    params = make_params(unit="person", max_rows=3)
    split, leaf, count = (
        make_split_mechanism(params),
        make_leaf_mechanism(params),
        make_node_mechanism(params),
    )
    assert split is not None
    assert leaf is not None
    assert count is not None
    assert float(split.rate) == pytest.approx(1 / 8 / 3)
    assert float(leaf.rate) == pytest.approx(1 / 8 / 3)
    assert float(count.rate) == pytest.approx(1 / 4 / 3)


def test_noiseless_study_has_no_mechanisms() -> None:
    bare = make_params(epsilon=math.inf)
    assert (
        make_split_mechanism(bare) is make_leaf_mechanism(bare) is make_node_mechanism(bare) is None
    )
    assert make_node_mechanism(make_params(projection=False)) is None


def test_tree_rows_contain_numbers_and_cells() -> None:
    points = TreeRows.from_columns(make_params(), COLUMNS, np.array([1, 0]))
    assert points.values.tolist() == [[3.0, 2.0, 1.0, 2.0], [60.5, 0.0, 2.0, 6.0]]
    assert points.outcomes.tolist() == [1, 0]
    assert len(points) == 2
    assert points.take(np.array([False, True])).values.tolist() == [[60.5, 0.0, 2.0, 6.0]]


def test_undeclared_category_gets_the_last_cell() -> None:
    assert encode_values(make_params(), {**COLUMNS, "ward": np.array([-1, 1])})[:, 1].tolist() == [
        2,
        1,
    ]


def test_encode_values_rejects_missing_numbers() -> None:
    with pytest.raises(SpecError, match="age: row 2 has a value that is missing") as refusal:
        encode_values(make_params(), {**COLUMNS, "age": np.array([60.5, np.nan])})
    assert refusal.value.code == "DATA-005"
    assert "60.5" not in str(refusal.value)


def test_encode_outcomes_puts_numbers_into_buckets() -> None:
    params = make_params(BIKE, n_buckets=4)
    assert encode_outcomes(
        params, np.array([-1.0, -0.51, -0.5, 0.0, 0.49, 0.99, 1.0])
    ).tolist() == [0, 0, 1, 2, 2, 3, 3]
    assert params.n_outcomes == 4
    assert encode_outcomes(make_params(SCHEMA), np.array([1, 0])).tolist() == [1, 0]
