"""Counts of one database.

Joint tables, scores of split candidates, and all tables of one level of a tree. Scripts build the
parts of their rounds from these functions; peers and the simulation run them on their rows. The
sensitivity of a count follows from the number of cells in which one row counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shoal.protocols.sdq.params import CellTable, Ints


def compute_joint_cells(cells: Ints, attributes: Sequence[int], arities: Sequence[int]) -> Ints:
    """Return the cell of each row, ``(n,)``, in the joint table of some attributes.

    The last attribute varies fastest.
    """
    joint = np.zeros(len(cells), np.int64)
    for attribute in attributes:
        joint = joint * arities[attribute] + cells[:, attribute]
    return joint


def count_table(
    table: CellTable, attributes: Sequence[int], arities: Sequence[int], n_classes: int
) -> Ints:
    """Return the joint table of some attributes and the label, ``(cells * L,)``.

    A row counts in one cell.

    Examples
    --------
    >>> table = CellTable(np.array([[0, 1], [0, 1], [1, 0]]), np.array([1, 1, 0]))
    >>> count_table(table, [1], (2, 2), 2).tolist()
    [1, 0, 0, 2]
    """
    size = math.prod(arities[attribute] for attribute in attributes) * n_classes
    return np.bincount(
        compute_joint_cells(table.cells, attributes, arities) * n_classes + table.labels,
        minlength=size,
    )


def compute_local_scores(
    table: CellTable,
    chosen: Sequence[int],
    candidates: Sequence[int],
    arities: Sequence[int],
    n_classes: int,
) -> Ints:
    """Return the score of each candidate for the next split, ``(n_candidates,)``.

    A database's score of a candidate is the number of its rows that the majority of their cell
    predicts: the sum of the largest class count over the cells of the chosen attributes and the
    candidate. One more row raises every score by 0 or 1. For a table of several databases the
    result is the sum of their scores.
    """
    # Number only the cells that contain rows: databases times cells may far exceed the rows.
    group = np.zeros(len(table), np.int64) if table.owners is None else table.owners
    for attribute in chosen:
        group = np.unique(
            group * arities[attribute] + table.cells[:, attribute], return_inverse=True
        )[1]
    scores = []
    for candidate in candidates:
        cell = group * arities[candidate] + table.cells[:, candidate]
        keys, counts = np.unique(cell * n_classes + table.labels, return_counts=True)
        starts = np.flatnonzero(np.diff(keys // n_classes, prepend=-1))
        scores.append(int(np.maximum.reduceat(counts, starts).sum()) if len(keys) else 0)
    return np.array(scores, np.int64)


def find_nodes(cells: Ints, splits: Ints, firsts: Ints) -> Ints:
    """Return the node of a tree that each row ends in, ``(n,)``.

    Parameters
    ----------
    cells
        ``(n, k)`` the cell of each attribute.
    splits, firsts
        ``(n_nodes,)`` the attribute of each node, -1 for none; the index of its first child.
        Children follow their parent, one for each cell.
    """
    node = np.zeros(len(cells), np.int64)
    active = np.arange(len(cells))
    while active.size:
        active = active[splits[node[active]] >= 0]
        node[active] = firsts[node[active]] + cells[active, splits[node[active]]]
    return node


def count_level(
    table: CellTable, nodes: Ints, first_rows: Ints, n_rows: int, n_classes: int
) -> Ints:
    """Count all tables of attributes and the label at some nodes, in one pass.

    The result has for each cell its rows, and its rows of each class.

    Parameters
    ----------
    nodes
        ``(n,)`` the node of each row of the table; -1 for none.
    first_rows
        ``(n_nodes, k)`` the first result row of an attribute's cells at a node; -1 for an attribute
        that is not asked about there.
    n_rows, n_classes
        Rows of the result, and L.

    Returns
    -------
    ``(n_rows, 1 + L)``, flattened.
    """
    inside = np.flatnonzero(nodes >= 0)
    first = first_rows[nodes[inside]]
    keys = (first + table.cells[inside]) * (1 + n_classes) + 1 + table.labels[inside, np.newaxis]
    counts = np.bincount(keys[first >= 0], minlength=n_rows * (1 + n_classes)).reshape(
        n_rows, 1 + n_classes
    )
    counts[:, 0] = counts[:, 1:].sum(axis=1)
    return counts.reshape(-1)
