"""The tree of variant plus: it splits on one attribute at each level.

`SDQPlusScript` and `SDQRankedScript` call it when they build their model. Every node is labelled by
naive Bayes; if there is a joint table of the attributes, its noisy counts correct the labels. Nodes
are numbered in breadth-first order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shoal.data.schema import Schema
from shoal.protocols.sdq.model import DecisionTree
from shoal.protocols.sdq.naive_bayes import Floats, back_off, compute_naive_bayes


def build_level_tree(
    schema: Schema,
    attributes: Sequence[int],
    joint: Floats,
    deviation: float,
    shares: Floats,
    likelihoods: Sequence[Floats],
) -> DecisionTree:
    """Build the tree that splits on one attribute at each level.

    Every node is labelled by its noisy counts and naive Bayes.

    Parameters
    ----------
    schema, attributes
        The features, and those that are split on, from the root down.
    joint
        ``(cells, L)`` noisy counts in the joint cells of the attributes.
    deviation
        Standard deviation of the noise on each of them.
    shares, likelihoods
        Shares of the classes, and P(cell | class) of each of the attributes.
    """
    arities = _list_arities(schema, attributes)
    n_cells, n_classes = joint.shape
    counts, chances = [], []
    for level in range(len(arities) + 1):
        n_nodes = math.prod(arities[:level])
        counts.append(joint.reshape(n_nodes, -1, n_classes).sum(axis=1))
        chances.append(
            back_off(
                counts[-1],
                compute_naive_bayes(shares, likelihoods[:level]),
                deviation * math.sqrt(n_cells / n_nodes),
            )
        )
    noise = (deviation, deviation * math.sqrt(n_cells))
    return _build_complete_tree(
        schema, attributes, np.concatenate(counts), np.concatenate(chances), noise
    )


def build_naive_tree(
    schema: Schema, attributes: Sequence[int], shares: Floats, likelihoods: Sequence[Floats]
) -> DecisionTree:
    """Build the same tree from naive Bayes alone; its nodes have no counts."""
    chances = np.concatenate(
        [compute_naive_bayes(shares, likelihoods[:level]) for level in range(len(attributes) + 1)]
    )
    return _build_complete_tree(schema, attributes, np.full(chances.shape, np.nan), chances)


def _list_arities(schema: Schema, attributes: Sequence[int]) -> list[int]:
    """List the numbers of cells of some attributes."""
    return [schema.features[attribute].n_bins or 1 for attribute in attributes]


def _build_complete_tree(
    schema: Schema,
    attributes: Sequence[int],
    counts: Floats,
    chances: Floats,
    deviation: tuple[float, float] | None = None,
) -> DecisionTree:
    """Build the tree of nodes in breadth-first order; a level splits on one attribute."""
    arities = [*_list_arities(schema, attributes), 0]
    sizes = [math.prod(arities[:level]) for level in range(len(arities))]
    splits = np.repeat([*attributes, -1], sizes)
    children = np.repeat(arities, sizes)
    first_children = np.where(splits >= 0, 1 + np.cumsum(children) - children, -1)
    return DecisionTree(schema, splits, first_children, counts, chances, deviation)
