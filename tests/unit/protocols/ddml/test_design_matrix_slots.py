"""Slots of rows: ragged sizes, pairs, hash buckets, and terms side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shoal.data.features import MAX_GRAMS
from shoal.data.schema import Categorical, Numeric, Text
from shoal.protocols.ddml.design_matrix import (
    InputSlots,
    Part,
    count_inputs,
    cross_slots,
    hash_slots,
    join_slots,
    make_slots,
    max_slots,
    pair_slots,
)


def texts(*rows: Any) -> npt.NDArray[Any]:
    column = np.empty(len(rows), object)
    column[:] = [np.array(row, np.int64) for row in rows]
    return column


def by_row(slots: InputSlots) -> list[dict[int, float]]:
    """Position and value of every slot; each position once."""
    rows = []
    for start, size in zip(slots.starts, slots.sizes, strict=True):
        at, values = (
            slots.positions[start : start + size].tolist(),
            slots.values[start : start + size].tolist(),
        )
        assert len(set(at)) == size
        rows.append(dict(zip(at, values, strict=True)))
    assert slots.sizes.sum() == slots.positions.size == slots.values.size
    return rows


NOTE = Text("note", 100)
FIRST = make_slots(NOTE, texts([1, 5], [], [7], [2, 3]), centred=False)
SECOND = make_slots(NOTE, texts([0, 9, 10], [4], [], [8]), centred=False)
THIRD = 1 / np.sqrt(3)


def test_text_has_slot_per_ngram_and_empty_text_none() -> None:
    assert by_row(SECOND) == [
        pytest.approx({0: THIRD, 9: THIRD, 10: THIRD}),
        {4: 1.0},
        {},
        {8: 1.0},
    ]
    assert by_row(make_slots(NOTE, texts(), centred=True)) == []


@pytest.mark.parametrize(
    ("part", "centred", "width", "most"),
    [
        (NOTE, False, 100, 100),
        (Text("long", 5000), True, 5000, MAX_GRAMS),
        (Numeric("x", 0, 1, missing=False), True, 1, 1),
        (Numeric("x", 0, 1), True, 2, 1),
        (Numeric("x", 0, 1, bins=[0.5]), False, 2, 1),
        (Categorical("c", ["a", "b", "c"], missing=False), False, 2, 1),
        (Categorical("c", ["a", "b", "c"]), True, 3, 3),
    ],
)
def test_count_inputs_and_max_slots_of_features(
    part: Part, centred: bool, width: int, most: int
) -> None:
    assert (count_inputs(part), max_slots(part, centred=centred)) == (width, most)


def test_from_dense_omits_zeros() -> None:
    town = Categorical("town", ["a", "b", "c"])
    assert by_row(make_slots(town, np.array([0, 2, -1]), centred=False)) == [{}, {1: 1.0}, {2: 1.0}]
    assert by_row(make_slots(Numeric("x", 0, 4), np.array([2.0, np.nan, 4.0]), centred=True)) == [
        {},
        {1: 1.0},
        {0: 0.5},
    ]
    assert [len(row) for row in by_row(make_slots(town, np.array([0, 2]), centred=True))] == [3, 3]


def test_cross_slots_pairs_all_slots_of_row() -> None:
    expected = [
        {one * 100 + other: x * y for one, x in first.items() for other, y in second.items()}
        for first, second in zip(by_row(FIRST), by_row(SECOND), strict=True)
    ]
    assert by_row(cross_slots(FIRST, SECOND, 100)) == expected
    assert [len(row) for row in expected] == [6, 0, 0, 2]


def test_pair_slots_pairs_all_of_short_texts() -> None:
    assert by_row(pair_slots(FIRST, SECOND, 100)) == [
        pytest.approx(row) for row in by_row(cross_slots(FIRST, SECOND, 100))
    ]


@pytest.mark.parametrize(
    ("n", "m", "ones", "others"),
    [
        (256, 256, 16, 16),
        (100, 100, 16, 16),
        (1, 256, 1, 256),
        (256, 1, 256, 1),
        (4, 100, 4, 64),
        (100, 4, 64, 4),
        (17, 15, 17, 15),
    ],
)
def test_pair_slots_pairs_first_of_long_texts(n: int, m: int, ones: int, others: int) -> None:
    slots = [
        make_slots(Text("t", 1000), texts(np.arange(size) * 3, [5]), centred=False)
        for size in (n, m)
    ]
    row, short = by_row(pair_slots(*slots, 1000))
    assert set(row) == {3 * i * 1000 + 3 * j for i in range(ones) for j in range(others)}
    assert len(row) <= MAX_GRAMS and set(row.values()) == {1 / np.sqrt(ones * others)}
    assert short == {5005: 1.0}, "one long text changes nothing in other rows"


def test_hash_slots_keeps_rows_apart_and_buckets_unique() -> None:
    pairs = cross_slots(FIRST, SECOND, 100)
    for width in (2, 3, 1000):
        rows = by_row(hash_slots(pairs, width))
        assert [len(row) > 0 for row in rows] == [True, False, False, True]
        assert all(position < width for row in rows for position in row)
        assert set(rows[0].values()) <= set(by_row(pairs)[0].values())
    assert [len(row) for row in by_row(hash_slots(pairs, 1 << 20))] == [6, 0, 0, 2]


def test_hash_slots_keeps_first_of_colliding_pairs() -> None:
    slots = InputSlots(np.array([3, 1]), np.array([7, 1, 4, 7]), np.array([0.1, 0.2, 0.3, 0.4]))
    assert by_row(hash_slots(slots, 1)) == [{0: 0.1}, {0: 0.4}]


def test_join_slots_concatenates_terms_in_each_row() -> None:
    rows = by_row(join_slots([FIRST, SECOND], [10, 1000]))
    for row, first, second in zip(rows, by_row(FIRST), by_row(SECOND), strict=True):
        assert row == {at + 10: x for at, x in first.items()} | {
            at + 1000: x for at, x in second.items()
        }
        assert list(row) == sorted(row)
