"""What a database counts: joint tables, the scores of candidates for a split, and all tables of a level of a tree at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shoal.protocols.sdq.params import Ints, Table


def joint_cells(cells: Ints, attributes: Sequence[int], arities: Sequence[int]) -> Ints:
    """The cell of each row, ``(n,)``, in the joint table of some attributes; the last attribute's cells lie side by side."""
    joint = np.zeros(len(cells), np.int64)
    for attribute in attributes:
        joint = joint * arities[attribute] + cells[:, attribute]
    return joint


def table_counts(table: Table, attributes: Sequence[int], arities: Sequence[int], n_classes: int) -> Ints:
    """The joint table of some attributes and the label, ``(cells * L,)``; a row is in one cell of it.

    Examples
    --------
    >>> table = Table(np.array([[0, 1], [0, 1], [1, 0]]), np.array([1, 1, 0]))
    >>> table_counts(table, [1], (2, 2), 2).tolist()
    [1, 0, 0, 2]
    """
    size = math.prod(arities[attribute] for attribute in attributes) * n_classes
    return np.bincount(joint_cells(table.cells, attributes, arities) * n_classes + table.labels, minlength=size)


def local_scores(table: Table, chosen: Sequence[int], candidates: Sequence[int], arities: Sequence[int], n_classes: int) -> Ints:
    """The score of each candidate for the next split, ``(n_candidates,)``: the sum over databases of their local scores.

    A database's own score is the sum, over the cells of the chosen attributes and the candidate, of the largest class count: how many of
    its rows the majority of their cell would predict. A row more raises every score by 0 or 1.
    """
    # Only cells with rows in them are ever numbered: databases times cells may be far more than there are rows.
    group = np.zeros(len(table), np.int64) if table.whose is None else table.whose
    for attribute in chosen:
        group = np.unique(group * arities[attribute] + table.cells[:, attribute], return_inverse=True)[1]
    scores = []
    for candidate in candidates:
        cell = group * arities[candidate] + table.cells[:, candidate]
        keys, counts = np.unique(cell * n_classes + table.labels, return_counts=True)
        starts = np.flatnonzero(np.diff(keys // n_classes, prepend=-1))
        scores.append(int(np.maximum.reduceat(counts, starts).sum()) if len(keys) else 0)
    return np.array(scores, np.int64)


def nodes_of(cells: Ints, splits: Ints, firsts: Ints) -> Ints:
    """The node of a tree that each row ends in, ``(n,)``.

    Parameters
    ----------
    cells
        ``(n, k)`` the cell of each attribute.
    splits, firsts
        ``(n_nodes,)`` the attribute of each node, -1 for none; the position of its first child, behind it, one for each cell.
    """
    node = np.zeros(len(cells), np.int64)
    going = np.arange(len(cells))
    while going.size:
        going = going[splits[node[going]] >= 0]
        node[going] = firsts[node[going]] + cells[going, splits[node[going]]]
    return node


def level_counts(table: Table, nodes: Ints, first_rows: Ints, n_rows: int, n_classes: int) -> Ints:
    """All tables of attributes and the label at some nodes, by one pass: for each cell its rows, and its rows of each class.

    Parameters
    ----------
    table
        What is counted.
    nodes
        ``(n,)`` which of the nodes each row of the table is at; -1 for none.
    first_rows
        ``(n_nodes, k)`` where the cells of an attribute at a node begin among the result's rows; -1 for an attribute that is not asked
        about there.
    n_rows, n_classes
        Rows of the result, and L.

    Returns
    -------
    ``(n_rows, 1 + L)``, flattened.
    """
    inside = np.flatnonzero(nodes >= 0)
    first = first_rows[nodes[inside]]
    keys = (first + table.cells[inside]) * (1 + n_classes) + 1 + table.labels[inside, np.newaxis]
    counts = np.bincount(keys[first >= 0], minlength=n_rows * (1 + n_classes)).reshape(n_rows, 1 + n_classes)
    counts[:, 0] = counts[:, 1:].sum(axis=1)
    return counts.reshape(-1)
