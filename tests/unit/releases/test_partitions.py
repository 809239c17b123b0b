"""Distances over random partitions: none between equal rows, more between rows that differ more."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.dataset import Dataset
from shoal.releases import partitions
from shoal.releases.partitions import partition_distance

SCHEMA = Schema([Numeric("a", 0, 1), Categorical("b", ["x", "y", "z"])], label=Categorical("c", ["no", "yes"], missing=False))


def rows(seed: str, shift: float, n: int = 2000) -> Dataset:
    entropy = SeededEntropy(seed)
    places = np.clip(entropy.below_many(1000, n) / 1000 * (1 - shift) + shift, 0, 1)
    places[::50] = np.nan
    return Dataset({"a": places, "b": entropy.below_many(4, n) - 1}, entropy.below_many(2, n))


def distance(one: Dataset, other: Dataset, n_cells: int = 32) -> float:
    return float(partition_distance(SCHEMA, one, other, n_cells, 50, SeededEntropy(1)).mean())


def test_equal_rows_are_at_no_distance() -> None:
    one = rows("one", 0)
    assert distance(one, one) == 0
    assert partition_distance(SCHEMA, one, one, 8, 7, SeededEntropy(1)).shape == (7,)


def test_the_more_rows_differ_the_larger_the_distance() -> None:
    found = [distance(rows("one", 0), rows("two", shift)) for shift in (0, 0.2, 0.5, 0.9)]
    assert found == sorted(found) and found[0] < 0.02 < found[1] and found[-1] < 1


def test_sizes_do_not_matter_but_shares_do() -> None:
    one = rows("one", 0)
    half = Dataset({name: np.repeat(column, 2) for name, column in one.columns.items()}, np.repeat(one.labels, 2))
    assert distance(one, half) < 1e-12


def test_every_row_is_in_one_cell_and_there_are_as_many_as_asked_for() -> None:
    one = rows("one", 0)
    columns = [*SCHEMA.features, SCHEMA.label]
    cells = partitions._partition(columns, partitions._values(SCHEMA, one), 40, SeededEntropy(2))
    assert len(cells) == 40
    assert sorted(np.concatenate(cells).tolist()) == list(range(2000))


def test_a_category_is_cut_until_every_value_is_alone() -> None:
    schema = Schema([Categorical("b", list("vwxyz"))], label=Categorical("c", ["no", "yes"], missing=False))
    some = Dataset({"b": np.arange(600) % 6 - 1}, np.arange(600) // 6 % 2)
    values = partitions._values(schema, some)
    cells = partitions._partition([*schema.features, schema.label], values, 99, SeededEntropy(3))
    assert len(cells) == 12 and all(len(np.unique(values[rows], axis=0)) == 1 for rows in cells)


def test_a_small_universe_has_fewer_cells() -> None:
    schema = Schema([Categorical("b", ["x", "y"], missing=False)], label=Categorical("c", ["no", "yes"], missing=False))
    one = Dataset({"b": np.array([0, 1])}, np.array([0, 1]))
    other = Dataset({"b": np.array([1, 0])}, np.array([0, 1]))
    values = partitions._values(schema, one)
    assert len(partitions._partition([*schema.features, schema.label], values, 99, SeededEntropy(3))) == 4
    assert partition_distance(schema, one, other, 99, 5, SeededEntropy(3)).min() > 0


def test_a_distance_is_that_between_histograms() -> None:
    schema = Schema([Categorical("b", ["x", "y"], missing=False)], label=Categorical("c", ["no", "yes"], missing=False))
    one = Dataset({"b": np.array([0, 0])}, np.array([0, 0]))
    other = Dataset({"b": np.array([1, 1])}, np.array([1, 1]))
    # Two cells, and whatever column is cut, one set is in the first and the other in the second.
    assert partition_distance(schema, one, other, 2, 5, SeededEntropy(4)).tolist() == [1] * 5


def test_a_range_that_is_used_up_is_not_cut() -> None:
    tiny = float(np.nextafter(0, 1))
    assert not partitions._is_open((0.0, tiny)) and partitions._is_open((0.0, 1.0))


def test_no_rows_are_at_a_distance_from_some() -> None:
    none = Dataset({"a": np.zeros(0), "b": np.zeros(0, int)}, np.zeros(0, int))
    assert distance(rows("one", 0), none) > 0
    assert distance(none, none) == pytest.approx(0)
