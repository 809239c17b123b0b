"""What a sharer of variant paper is asked, what it costs, and how it sees its rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pfds_trees import SCHEMA, params_of
from shoal.domain import Numeric, Schema
from shoal.errors import SpecError
from shoal.privacy.rounding import grains_down, grains_up
from shoal.protocols.pfds.paper import (
    Points,
    counting_leaves,
    counting_nodes,
    n_counted,
    outcomes_of,
    prices,
    questions,
    splitting,
    values_of,
)

BIKE = Schema([Numeric(name, 0, 1) for name in "abcdefgh"], label=Numeric("rides", -1, 1))
COLUMNS = {"age": np.array([3.0, 60.5]), "ward": np.array([2, 0]), "city": np.array([3, -1]), "weight": np.array([2.0, 6.0])}


def test_questions_follow_from_depth_and_levels() -> None:
    assert questions(params_of()) == ("split/1", "split/2", "split/3", "leaves", "count/1", "count/2")
    assert questions(params_of(max_depth=8, n_levels=8))[-1] == "count/3"
    assert questions(params_of(n_levels=1)) == questions(params_of(projection=False)) == ("split/1", "split/2", "split/3", "leaves")
    assert questions(params_of(max_depth=1)) == ("leaves",)
    assert [n_counted(params_of(n_levels=p)) for p in (2, 3, 4, 5)] == [1, 2, 3, 3]


def test_half_of_the_budget_is_for_the_tree_and_half_for_the_counts() -> None:
    priced = prices(params_of(BIKE, 1.0, max_depth=8, n_levels=5))
    assert {question: event.epsilon for question, event in priced.items()} == {
        **{f"split/{h}": 1 / 16 for h in range(1, 8)},
        "leaves": 1 / 16,
        **{f"count/{i}": 1 / 8 for i in range(1, 5)},
    }
    assert math.fsum(event.epsilon for event in priced.values()) == 1


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.7, 3.3])
@pytest.mark.parametrize(("depth", "n_levels"), [(8, 4), (7, 4), (6, 6), (3, 2)])
def test_prices_add_up_to_no_more_than_the_budget_and_hardly_less(epsilon: float, depth: int, n_levels: int) -> None:
    priced = prices(params_of(BIKE, epsilon, max_depth=depth, n_levels=n_levels))
    spent = sum(grains_up(event.epsilon) for event in priced.values())
    assert grains_down(epsilon) - len(priced) <= spent <= grains_down(epsilon)


def test_events_say_what_was_run_and_on_what() -> None:
    priced = prices(params_of(unit="person", max_rows=3))
    assert {question: event.mechanism for question, event in priced.items()} == {
        **dict.fromkeys(["split/1", "split/2", "split/3"], "exponential"),
        **dict.fromkeys(["leaves", "count/1", "count/2"], "discrete-laplace"),
    }
    for event in priced.values():
        assert event.parameters["sensitivity"] == 3
        assert event.reads == ("age", "city", "ill", "ward", "weight")
        assert str(event.scope) == "person, add-remove, against all who read the release"


def test_mechanisms_are_made_for_their_prices() -> None:
    params = params_of(unit="person", max_rows=3)
    split, leaf, count = splitting(params), counting_leaves(params), counting_nodes(params)
    assert split is not None
    assert leaf is not None
    assert count is not None
    assert float(split.rate) == pytest.approx(1 / 8 / 3)
    assert float(leaf.rate) == pytest.approx(1 / 8 / 3)
    assert float(count.rate) == pytest.approx(1 / 4 / 3)


def test_without_noise_there_is_no_mechanism() -> None:
    bare = params_of(epsilon=math.inf)
    assert splitting(bare) is counting_leaves(bare) is counting_nodes(bare) is None
    assert counting_nodes(params_of(projection=False)) is None


def test_rows_are_numbers_and_cells() -> None:
    points = Points.of(params_of(), COLUMNS, np.array([1, 0]))
    assert points.values.tolist() == [[3.0, 2.0, 1.0, 2.0], [60.5, 0.0, 2.0, 6.0]]
    assert points.outcomes.tolist() == [1, 0]
    assert len(points) == 2
    assert points.take(np.array([False, True])).values.tolist() == [[60.5, 0.0, 2.0, 6.0]]


def test_a_category_that_nobody_declared_is_in_the_last_cell() -> None:
    assert values_of(params_of(), {**COLUMNS, "ward": np.array([-1, 1])})[:, 1].tolist() == [2, 1]


def test_a_missing_number_is_refused() -> None:
    with pytest.raises(SpecError, match="age: row 2 has a value that is missing") as refusal:
        values_of(params_of(), {**COLUMNS, "age": np.array([60.5, np.nan])})
    assert refusal.value.code == "DATA-005"
    assert "60.5" not in str(refusal.value)


def test_a_number_falls_in_one_of_its_buckets() -> None:
    params = params_of(BIKE, n_buckets=4)
    assert outcomes_of(params, np.array([-1.0, -0.51, -0.5, 0.0, 0.49, 0.99, 1.0])).tolist() == [0, 0, 1, 2, 2, 3, 3]
    assert params.n_outcomes == 4
    assert outcomes_of(params_of(SCHEMA), np.array([1, 0])).tolist() == [1, 0]
