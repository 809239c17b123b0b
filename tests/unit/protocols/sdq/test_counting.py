"""Counts and scores, compared with counting by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from shoal.protocols.sdq.counting import (
    compute_joint_cells,
    compute_local_scores,
    count_level,
    count_table,
    find_nodes,
)
from shoal.protocols.sdq.params import CellTable, Ints
from tests.support.sdq import parted, random_table

ARITIES, N_CLASSES = (3, 2, 4), 3
TABLE = random_table(ARITIES, N_CLASSES, 200, seed=1, n_databases=7)
EMPTY = CellTable(np.zeros((0, 3), np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))


def compute_scores_by_hand(table: CellTable, chosen: list[int], candidates: list[int]) -> list[int]:
    scores = []
    for candidate in candidates:
        score = 0
        for part in parted(table):
            keys = [tuple(row[[*chosen, candidate]]) for row in part.cells]
            for key in set(keys):
                score += max(
                    Counter(
                        label
                        for k, label in zip(keys, part.labels.tolist(), strict=True)
                        if k == key
                    ).values()
                )
        scores.append(score)
    return scores


def test_joint_table_orders_attributes_then_classes() -> None:
    counts = count_table(TABLE, [2, 0], ARITIES, N_CLASSES).reshape(4, 3, 3)
    for i, j, c in np.ndindex(4, 3, 3):
        assert (
            counts[i, j, c]
            == ((TABLE.cells[:, 2] == i) & (TABLE.cells[:, 0] == j) & (TABLE.labels == c)).sum()
        )
    assert compute_joint_cells(np.array([[1, 0, 3]]), [2, 0], ARITIES).tolist() == [10]


def test_table_without_attributes_counts_classes() -> None:
    assert count_table(TABLE, [], ARITIES, N_CLASSES).tolist() == np.bincount(TABLE.labels).tolist()


def test_count_table_includes_cells_without_rows() -> None:
    assert count_table(EMPTY, [0, 2], ARITIES, N_CLASSES).tolist() == [0] * 36


@pytest.mark.parametrize("chosen", [[], [1], [2, 0]])
def test_local_scores_equal_scores_by_hand(chosen: list[int]) -> None:
    candidates = [j for j in (2, 1, 0) if j not in chosen]
    assert compute_local_scores(
        TABLE, chosen, candidates, ARITIES, N_CLASSES
    ).tolist() == compute_scores_by_hand(TABLE, chosen, candidates)


def test_scores_of_a_table_without_owners_are_those_of_one_database() -> None:
    [alone] = parted(CellTable(TABLE.cells, TABLE.labels, np.zeros(len(TABLE), np.int64)))
    assert alone.owners is None
    assert compute_local_scores(
        alone, [0], [1, 2], ARITIES, N_CLASSES
    ).tolist() == compute_scores_by_hand(
        CellTable(TABLE.cells, TABLE.labels, np.zeros(len(TABLE), np.int64)), [0], [1, 2]
    )


def test_scores_of_databases_add_up() -> None:
    apart = sum(
        compute_local_scores(part, [2], [0, 1], ARITIES, N_CLASSES) for part in parted(TABLE)
    )
    assert compute_local_scores(TABLE, [2], [0, 1], ARITIES, N_CLASSES).tolist() == apart.tolist()  # type: ignore[union-attr]


def test_scores_of_an_empty_table_are_zero() -> None:
    assert compute_local_scores(EMPTY, [0], [1, 2], ARITIES, N_CLASSES).tolist() == [0, 0]
    assert compute_local_scores(TABLE, [0], [], ARITIES, N_CLASSES).tolist() == []


def test_scores_of_very_many_cells_are_computed() -> None:
    """A thousand databases times 10^12 cells cannot be numbered; there are only 300 rows."""
    arities = (10_000, 10_000, 10_000, 2)
    table = random_table(arities, 2, 300, seed=2, n_databases=1000)
    assert compute_local_scores(table, [0, 1, 2], [3], arities, 2).tolist() == [300]


SPLITS = np.array([1, -1, 0, -1, -1, -1])
FIRSTS = np.array([1, -1, 3, -1, -1, -1])


def find_node_by_hand(row: Ints) -> int:
    return 1 if row[1] == 0 else 3 + int(row[0])


def test_find_nodes_returns_the_leaf_of_each_row() -> None:
    assert find_nodes(TABLE.cells, SPLITS, FIRSTS).tolist() == [
        find_node_by_hand(row) for row in TABLE.cells
    ]
    assert find_nodes(TABLE.cells, np.array([-1]), np.array([-1])).tolist() == [0] * len(TABLE)
    assert find_nodes(EMPTY.cells, SPLITS, FIRSTS).tolist() == []


def test_count_level_counts_all_tables_in_one_pass() -> None:
    nodes = find_nodes(TABLE.cells, SPLITS, FIRSTS)
    # Node 3 is counted for all attributes but 1, node 5 for attribute 2 only; nodes 4 and 1
    # are not counted.
    places = np.array([-1, -1, -1, 0, -1, 1])[nodes]
    first_rows = np.array([[0, -1, 3], [-1, -1, 7]])
    rows = count_level(TABLE, places, first_rows, 11, N_CLASSES).reshape(11, 1 + N_CLASSES)
    expected = (
        [(3, 0, i) for i in range(3)]
        + [(3, 2, i) for i in range(4)]
        + [(5, 2, i) for i in range(4)]
    )
    for row, (node, attribute, cell) in zip(rows, expected, strict=True):
        here = (nodes == node) & (TABLE.cells[:, attribute] == cell)
        assert row.tolist() == [here.sum(), *np.bincount(TABLE.labels[here], minlength=N_CLASSES)]
