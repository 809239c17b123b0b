"""All holders of a study of variant paper at once, without messages: the same releases, in the same order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.growing import grow
from shoal.protocols.pfds.paper import Points, n_counted
from shoal.protocols.pfds.params import Ints, Params
from shoal.protocols.pfds.synthesis import Unlabelled, columns_of, draw_counts, draw_rows, sizes
from shoal.protocols.pfds.ties import winners
from shoal.protocols.pfds.tree import PrivateTree
from shoal.protocols.pfds.voting import labels_of, votes


@dataclass(frozen=True, eq=False)
class SharedTrees:
    """What all sharers have shared.

    Parameters
    ----------
    trees
        The predictor of each sharer; the counts of its leaves, which take most of the room, are dropped.
    datasets
        The private labelled data of each.
    sharers
        Who they are.
    """

    trees: tuple[PrivateTree, ...]
    datasets: tuple[Dataset, ...]
    sharers: tuple[int, ...]


def simulate_paper(
    params: Params,
    columns: Mapping[str, npt.NDArray[Any]],
    labels: npt.NDArray[Any],
    whose: Ints,
    entropy: Entropy,
    sharers: Sequence[int] | None = None,
) -> SharedTrees:
    """Trees and datasets of those who share, by default of all holders.

    Parameters
    ----------
    columns, labels
        Rows as ``schema.encode`` and ``schema.encode_label`` give them.
    whose
        ``(n,)`` the holder of each row, counted from 0.

    Notes
    -----
    Ref: PFDS Algorithms 1, 2 and 4.

    Privacy
    -------
    Each sharer spends the parameters' epsilon on its own rows; labels are free.

    Examples
    --------
    >>> from shoal.domain import Categorical, Numeric, Schema
    >>> from shoal.entropy import SeededEntropy
    >>> schema = Schema([Numeric("age", 0, 9), Numeric("size", 0, 9)], label=Categorical("ill", ["no", "yes"]))
    >>> params = Params(schema, epsilon=float("inf"), size=10, n_holders=2, variant="paper")
    >>> ages = {"age": np.arange(10.0), "size": np.arange(10.0)}
    >>> shared = simulate_paper(params, ages, np.arange(10) // 5, np.arange(10) % 2, SeededEntropy(1))
    >>> [len(dataset) for dataset in shared.datasets]
    [5, 5]
    """
    points = Points.of(params, columns, labels)
    who = tuple(range(params.n_holders) if sharers is None else sharers)
    trees, drawn = [], []
    for holder in who:
        tree, rows = release(params, points.take(whose == holder), entropy)
        trees.append(tree.predictor)
        drawn.append(rows)
    return SharedTrees(tuple(trees), _labelled(params, trees, drawn, entropy), who)


def release(params: Params, points: Points, entropy: Entropy) -> tuple[PrivateTree, Unlabelled]:
    """What one sharer makes of its rows before labels: its tree, and private rows by the tree and the counts of p - 1 levels."""
    tree = grow(params, points, entropy)
    counts = [draw_counts(params, points, tree.levels, i, entropy) for i in range(1, n_counted(params) + 1)]
    return tree, draw_rows(params, tree, sizes(params, tree, counts), entropy)


def _labelled(params: Params, trees: Sequence[PrivateTree], drawn: Sequence[Unlabelled], entropy: Entropy) -> tuple[Dataset, ...]:
    """All datasets, their rows labelled at once: a tree is gone through once."""
    if params.labelling == "own":
        outcomes = [tree.labels[rows.leaves].astype(np.int64) for tree, rows in zip(trees, drawn, strict=True)]
    else:
        together = np.concatenate([np.empty((0, len(params.schema.features))), *(rows.values for rows in drawn)])
        ends = np.cumsum([len(rows) for rows in drawn], dtype=np.int64)
        outcomes = [winners(tally) for tally in np.split(votes(params, trees, together), ends)[: len(drawn)]]
    return tuple(
        Dataset(columns_of(params, rows.values, entropy), labels_of(params, own, entropy))
        for rows, own in zip(drawn, outcomes, strict=True)
    )
