"""All holders of a study of variant paper together, vectorised.

Simulations and benchmarks call `simulate_paper`. The releases and their order equal those of real
peers; contract tests compare their distributions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.paper.growth import grow_tree
from shoal.protocols.pfds.paper.script import TreeRows, count_projected_levels
from shoal.protocols.pfds.paper.synthesis import (
    UnlabelledRows,
    compute_leaf_sizes,
    count_votes,
    draw_counts,
    draw_labels,
    draw_rows,
    make_columns,
)
from shoal.protocols.pfds.paper.tree import PrivateTree, choose_winners
from shoal.protocols.pfds.params import Ints, PFDSParams


@dataclass(frozen=True, eq=False)
class PFDSPaperSimulationResult:
    """The shared trees and data of all sharing holders.

    Parameters
    ----------
    trees
        The predictor of each holder; the counts of its leaves, which take most of the memory, are
        dropped.
    datasets
        The private labelled data of each holder.
    sharers
        The sharing holders, counted from 0.
    """

    trees: tuple[PrivateTree, ...]
    datasets: tuple[Dataset, ...]
    sharers: tuple[int, ...]


def simulate_paper(
    params: PFDSParams,
    columns: Mapping[str, npt.NDArray[Any]],
    labels: npt.NDArray[Any],
    owners: Ints,
    entropy: Entropy,
    sharers: Sequence[int] | None = None,
) -> PFDSPaperSimulationResult:
    """Return trees and datasets of the sharing holders, by default of all.

    Parameters
    ----------
    columns, labels
        Rows as ``schema.encode`` and ``schema.encode_label`` give them.
    owners
        ``(n,)`` the holder of each row, counted from 0.

    Notes
    -----
    Ref: PFDS Algorithms 1, 2 and 4.

    Privacy
    -------
    Each sharing holder spends the parameters' epsilon on its own rows; labels are free.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Numeric, Schema
    >>> from shoal.entropy import SeededEntropy
    >>> schema = Schema(
    ...     [Numeric("age", 0, 9), Numeric("size", 0, 9)], label=Categorical("ill", ["no", "yes"])
    ... )
    >>> params = PFDSParams(schema, epsilon=float("inf"), size=10, n_holders=2, variant="paper")
    >>> ages = {"age": np.arange(10.0), "size": np.arange(10.0)}
    >>> shared = simulate_paper(
    ...     params, ages, np.arange(10) // 5, np.arange(10) % 2, SeededEntropy(1)
    ... )
    >>> [len(dataset) for dataset in shared.datasets]
    [5, 5]
    """
    points = TreeRows.from_columns(params, columns, labels)
    who = tuple(range(params.n_holders) if sharers is None else sharers)
    trees, drawn = [], []
    for holder in who:
        tree, rows = draw_release(params, points.take(owners == holder), entropy)
        trees.append(tree.predictor)
        drawn.append(rows)
    return PFDSPaperSimulationResult(tuple(trees), _label_rows(params, trees, drawn, entropy), who)


def draw_release(
    params: PFDSParams, points: TreeRows, entropy: Entropy
) -> tuple[PrivateTree, UnlabelledRows]:
    """Return one holder's tree and its unlabelled synthetic rows.

    The rows follow from the tree and the noisy counts of p - 1 levels.
    """
    tree = grow_tree(params, points, entropy)
    counts = [
        draw_counts(params, points, tree.levels, i, entropy)
        for i in range(1, count_projected_levels(params) + 1)
    ]
    return tree, draw_rows(params, tree, compute_leaf_sizes(params, tree, counts), entropy)


def _label_rows(
    params: PFDSParams,
    trees: Sequence[PrivateTree],
    drawn: Sequence[UnlabelledRows],
    entropy: Entropy,
) -> tuple[Dataset, ...]:
    """Return all datasets; their rows are labelled together, so each tree is used once."""
    if params.labelling == "own":
        outcomes = [
            tree.labels[rows.leaves].astype(np.int64)
            for tree, rows in zip(trees, drawn, strict=True)
        ]
    else:
        together = np.concatenate(
            [np.empty((0, len(params.schema.features))), *(rows.values for rows in drawn)]
        )
        ends = np.cumsum([len(rows) for rows in drawn], dtype=np.int64)
        outcomes = [
            choose_winners(tally)
            for tally in np.split(count_votes(params, trees, together), ends)[: len(drawn)]
        ]
    return tuple(
        Dataset(make_columns(params, rows.values, entropy), draw_labels(params, own, entropy))
        for rows, own in zip(drawn, outcomes, strict=True)
    )
