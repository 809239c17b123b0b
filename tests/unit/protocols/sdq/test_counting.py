"""Counts against counting by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from sdq_trees import parted, random_table
from shoal.protocols.sdq.counting import joint_cells, level_counts, local_scores, nodes_of, table_counts
from shoal.protocols.sdq.params import Ints, Table

ARITIES, N_CLASSES = (3, 2, 4), 3
TABLE = random_table(ARITIES, N_CLASSES, 200, seed=1, n_databases=7)
NOBODY = Table(np.zeros((0, 3), np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def scores_by_hand(table: Table, chosen: list[int], candidates: list[int]) -> list[int]:
    scores = []
    for candidate in candidates:
        score = 0
        for part in parted(table):
            keys = [tuple(row[[*chosen, candidate]]) for row in part.cells]
            for key in set(keys):
                score += max(Counter(label for k, label in zip(keys, part.labels.tolist(), strict=True) if k == key).values())
        scores.append(score)
    return scores


def test_a_joint_table_has_the_last_attribute_and_then_the_class_side_by_side() -> None:
    counts = table_counts(TABLE, [2, 0], ARITIES, N_CLASSES).reshape(4, 3, 3)
    for i, j, c in np.ndindex(4, 3, 3):
        assert counts[i, j, c] == ((TABLE.cells[:, 2] == i) & (TABLE.cells[:, 0] == j) & (TABLE.labels == c)).sum()
    assert joint_cells(np.array([[1, 0, 3]]), [2, 0], ARITIES).tolist() == [10]


def test_a_table_of_no_attributes_is_that_of_the_classes() -> None:
    assert table_counts(TABLE, [], ARITIES, N_CLASSES).tolist() == np.bincount(TABLE.labels).tolist()


def test_cells_without_rows_are_counted_too() -> None:
    assert table_counts(NOBODY, [0, 2], ARITIES, N_CLASSES).tolist() == [0] * 36


@pytest.mark.parametrize("chosen", [[], [1], [2, 0]])
def test_scores_are_sums_of_local_scores(chosen: list[int]) -> None:
    candidates = [j for j in (2, 1, 0) if j not in chosen]
    assert local_scores(TABLE, chosen, candidates, ARITIES, N_CLASSES).tolist() == scores_by_hand(TABLE, chosen, candidates)


def test_scores_of_one_database_are_those_of_a_table_without_owners() -> None:
    [alone] = parted(Table(TABLE.cells, TABLE.labels, np.zeros(len(TABLE), np.int64)))
    assert alone.whose is None
    assert local_scores(alone, [0], [1, 2], ARITIES, N_CLASSES).tolist() == scores_by_hand(
        Table(TABLE.cells, TABLE.labels, np.zeros(len(TABLE), np.int64)), [0], [1, 2]
    )


def test_scores_of_the_databases_add_up() -> None:
    apart = sum(local_scores(part, [2], [0, 1], ARITIES, N_CLASSES) for part in parted(TABLE))
    assert local_scores(TABLE, [2], [0, 1], ARITIES, N_CLASSES).tolist() == apart.tolist()  # type: ignore[union-attr]


def test_nobody_scores_nothing() -> None:
    assert local_scores(NOBODY, [0], [1, 2], ARITIES, N_CLASSES).tolist() == [0, 0]
    assert local_scores(TABLE, [0], [], ARITIES, N_CLASSES).tolist() == []


def test_many_cells_of_many_databases_are_never_numbered() -> None:
    """A thousand databases times 10^12 cells would be too many; there are 300 rows."""
    arities = (10_000, 10_000, 10_000, 2)
    table = random_table(arities, 2, 300, seed=2, n_databases=1000)
    assert local_scores(table, [0, 1, 2], [3], arities, 2).tolist() == [300]


SPLITS = np.array([1, -1, 0, -1, -1, -1])
FIRSTS = np.array([1, -1, 3, -1, -1, -1])


def by_hand(row: Ints) -> int:
    return 1 if row[1] == 0 else 3 + int(row[0])


def test_rows_fall_through_a_tree() -> None:
    assert nodes_of(TABLE.cells, SPLITS, FIRSTS).tolist() == [by_hand(row) for row in TABLE.cells]
    assert nodes_of(TABLE.cells, np.array([-1]), np.array([-1])).tolist() == [0] * len(TABLE)
    assert nodes_of(NOBODY.cells, SPLITS, FIRSTS).tolist() == []


def test_a_level_is_counted_at_once() -> None:
    nodes = nodes_of(TABLE.cells, SPLITS, FIRSTS)
    # Of node 3 all but attribute 1 are asked about, of node 5 attribute 2 alone; node 4 and node 1 are not asked about.
    places = np.array([-1, -1, -1, 0, -1, 1])[nodes]
    first_rows = np.array([[0, -1, 3], [-1, -1, 7]])
    rows = level_counts(TABLE, places, first_rows, 11, N_CLASSES).reshape(11, 1 + N_CLASSES)
    expected = [(3, 0, i) for i in range(3)] + [(3, 2, i) for i in range(4)] + [(5, 2, i) for i in range(4)]
    for row, (node, attribute, cell) in zip(rows, expected, strict=True):
        here = (nodes == node) & (TABLE.cells[:, attribute] == cell)
        assert row.tolist() == [here.sum(), *np.bincount(TABLE.labels[here], minlength=N_CLASSES)]
