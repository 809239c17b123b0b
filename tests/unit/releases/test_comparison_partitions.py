"""Distances over random partitions: zero for equal rows, and growing with the difference."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.dataset import Dataset
from shoal.releases import comparison
from shoal.releases.comparison import compute_partition_distances

SCHEMA = Schema(
    [Numeric("a", 0, 1), Categorical("b", ["x", "y", "z"])],
    label=Categorical("c", ["no", "yes"], missing=False),
)


def make_rows(seed: str, shift: float, n: int = 2000) -> Dataset:
    entropy = SeededEntropy(seed)
    places = np.clip(entropy.below_many(1000, n) / 1000 * (1 - shift) + shift, 0, 1)
    places[::50] = np.nan
    return Dataset({"a": places, "b": entropy.below_many(4, n) - 1}, entropy.below_many(2, n))


def compute_mean_distance(one: Dataset, other: Dataset, n_cells: int = 32) -> float:
    return float(
        compute_partition_distances(SCHEMA, one, other, n_cells, 50, SeededEntropy(1)).mean()
    )


def test_equal_rows_have_distance_zero() -> None:
    one = make_rows("one", 0)
    assert compute_mean_distance(one, one) == 0
    assert compute_partition_distances(SCHEMA, one, one, 8, 7, SeededEntropy(1)).shape == (7,)


def test_distance_grows_with_the_difference() -> None:
    found = [
        compute_mean_distance(make_rows("one", 0), make_rows("two", shift))
        for shift in (0, 0.2, 0.5, 0.9)
    ]
    assert found == sorted(found) and found[0] < 0.02 < found[1] and found[-1] < 1


def test_distance_depends_on_shares_and_not_on_sizes() -> None:
    one = make_rows("one", 0)
    half = Dataset(
        {name: np.repeat(column, 2) for name, column in one.columns.items()},
        np.repeat(one.labels, 2),
    )
    assert compute_mean_distance(one, half) < 1e-12


def test_partition_has_n_cells_and_each_row_in_one() -> None:
    one = make_rows("one", 0)
    columns = [*SCHEMA.features, SCHEMA.label]
    cells = comparison._draw_partition(
        columns, comparison._stack_columns(SCHEMA, one), 40, SeededEntropy(2)
    )
    assert len(cells) == 40
    assert sorted(np.concatenate(cells).tolist()) == list(range(2000))


def test_partition_cuts_a_category_down_to_single_values() -> None:
    schema = Schema(
        [Categorical("b", list("vwxyz"))], label=Categorical("c", ["no", "yes"], missing=False)
    )
    some = Dataset({"b": np.arange(600) % 6 - 1}, np.arange(600) // 6 % 2)
    values = comparison._stack_columns(schema, some)
    cells = comparison._draw_partition(
        [*schema.features, schema.label], values, 99, SeededEntropy(3)
    )
    assert len(cells) == 12 and all(len(np.unique(values[rows], axis=0)) == 1 for rows in cells)


def test_partition_of_few_values_has_fewer_cells() -> None:
    schema = Schema(
        [Categorical("b", ["x", "y"], missing=False)],
        label=Categorical("c", ["no", "yes"], missing=False),
    )
    one = Dataset({"b": np.array([0, 1])}, np.array([0, 1]))
    other = Dataset({"b": np.array([1, 0])}, np.array([0, 1]))
    values = comparison._stack_columns(schema, one)
    assert (
        len(
            comparison._draw_partition(
                [*schema.features, schema.label], values, 99, SeededEntropy(3)
            )
        )
        == 4
    )
    assert compute_partition_distances(schema, one, other, 99, 5, SeededEntropy(3)).min() > 0


def test_disjoint_rows_have_distance_one() -> None:
    schema = Schema(
        [Categorical("b", ["x", "y"], missing=False)],
        label=Categorical("c", ["no", "yes"], missing=False),
    )
    one = Dataset({"b": np.array([0, 0])}, np.array([0, 0]))
    other = Dataset({"b": np.array([1, 1])}, np.array([1, 1]))
    # Two cells: whichever column is cut, one set is in the first and the other in the second.
    assert (
        compute_partition_distances(schema, one, other, 2, 5, SeededEntropy(4)).tolist() == [1] * 5
    )


def test_range_without_a_float_inside_cannot_be_cut() -> None:
    tiny = float(np.nextafter(0, 1))
    assert not comparison._can_cut((0.0, tiny)) and comparison._can_cut((0.0, 1.0))


def test_empty_dataset_has_distance_from_rows_only() -> None:
    none = Dataset({"a": np.zeros(0), "b": np.zeros(0, int)}, np.zeros(0, int))
    assert compute_mean_distance(make_rows("one", 0), none) > 0
    assert compute_mean_distance(none, none) == pytest.approx(0)
