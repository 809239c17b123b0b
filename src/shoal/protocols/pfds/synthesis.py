"""The private dataset of a sharer before it is labelled: how many rows each leaf gets, and where in the leaf they lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical
from shoal.entropy import Entropy
from shoal.protocols.pfds.dataset import uniform, values_in
from shoal.protocols.pfds.growing import between
from shoal.protocols.pfds.paper import Points, counting_nodes
from shoal.protocols.pfds.params import Floats, Ints, Params
from shoal.protocols.pfds.projection import project
from shoal.protocols.pfds.tree import Levels, PrivateTree, Shape


@dataclass(frozen=True, eq=False)
class Unlabelled:
    """Synthetic rows.

    Parameters
    ----------
    values
        ``(n, k)`` numbers, and cells of categories.
    leaves
        ``(n,)`` the leaf that each was drawn from.
    """

    values: Floats
    leaves: Ints

    def __len__(self) -> int:
        return len(self.leaves)


def draw_counts(params: Params, points: Points, levels: Levels, number: int, entropy: Entropy) -> Ints:
    """The noisy numbers of rows in all nodes of a level, the root's being number 1.

    Notes
    -----
    Ref: PFDS Algorithm 5, lines 1 and 2; errata P-03.

    Privacy
    -------
    epsilon / (2 (p - 1)) for the level: a row is in one of its nodes.
    """
    shape, above = Shape.of(params), levels[: number - 1]
    counts = np.bincount(shape.route(above, points.values), minlength=shape.n_below(above[-1]) if above else 1)
    mechanism = counting_nodes(params)
    return counts if mechanism is None else mechanism.randomise_many(counts, entropy)


def sizes(params: Params, tree: PrivateTree, level_counts: Sequence[Ints]) -> Floats:
    """How many rows each leaf holds by all that was released, ``(n_leaves,)``.

    Parameters
    ----------
    level_counts
        The noisy counts of levels 1 to p - 1; none for PFDS-, and the leaves' own counts stand, but for those below 0.

    Notes
    -----
    Ref: PFDS Algorithm 5, lines 3 to 5: each level weighs one over its number of nodes.
    """
    assert tree.counts is not None, "a predictor alone does not say how many rows it comes from"
    sums: Ints = tree.counts.sum(axis=1, dtype=np.int64)
    if not level_counts:
        return sums.clip(0).astype(np.float64)
    shape, last = Shape.of(params), len(level_counts) - 1
    n_leaves = np.ones(len(sums), np.int64)
    for level in reversed(tree.levels[last:]):
        n_leaves = np.add.reduceat(n_leaves, shape.firsts(level))
    parents = [np.zeros(1, np.int64), *map(shape.parents, tree.levels[:last]), np.repeat(np.arange(len(n_leaves)), n_leaves)]
    counts = [*level_counts, sums]
    return project(parents, counts, [1 / len(level) for level in counts])[-1]


def draw_rows(params: Params, tree: PrivateTree, sizes: Floats, entropy: Entropy) -> Unlabelled:
    """Rows by the sizes of the leaves; of a size's fraction a row with that chance.

    Notes
    -----
    Ref: PFDS Algorithm 5, lines 6 to 8. A number is uniform in the range that is left of it on the path to the leaf; a category is that of
    the path, or any cell alike. Noise on a million leaves can add up to more rows than anyone could use: beyond the rows that the whole
    study expects, all sizes shrink in proportion, and never more are drawn.
    """
    scaled = sizes * min(1.0, params.size / max(float(sizes.sum()), 1.0))
    leaves = _at_most(params.size, np.repeat(np.arange(len(sizes)), _rounded(scaled, entropy)), entropy)
    shape = Shape.of(params)
    n, k = len(leaves), len(shape.fans)
    lows, highs = np.tile(shape.lows, (n, 1)), np.tile(shape.highs, (n, 1))
    cells = np.empty((n, k))
    for a in np.flatnonzero(~shape.is_number).tolist():
        cells[:, a] = entropy.below_many(int(shape.fans[a]), n)
    rows = np.arange(n)
    for level, above, edges in shape.ancestors(tree.levels, leaves):
        attributes, splits = level.attributes[above], level.splits[above]
        cells[rows, attributes] = edges
        # A number's edges are among its cells too, and are not looked at there; a category's range is not looked at here.
        here = rows, attributes
        highs[here] = np.where(edges == 0, np.minimum(highs[here], splits), highs[here])
        lows[here] = np.where(edges == 1, np.maximum(lows[here], splits), lows[here])
    cells[:, shape.is_number] = between(lows[:, shape.is_number], highs[:, shape.is_number], entropy)
    return Unlabelled(cells, leaves)


def _at_most(most: int, leaves: Ints, entropy: Entropy) -> Ints:
    """The leaves of the rows; of more rows than so many, of so many, every choice alike and in their order."""
    if len(leaves) <= most:
        return leaves
    kept: Ints = np.sort(np.argsort(entropy.words(len(leaves), np.uint64), kind="stable")[:most])
    return leaves[kept]


def _rounded(sizes: Floats, entropy: Entropy) -> Ints:
    whole = np.floor(sizes)
    broken = np.flatnonzero(sizes > whole)
    whole[broken] += uniform(broken.size, entropy) < (sizes - whole)[broken]
    return whole.astype(np.int64)


def columns_of(params: Params, values: Floats, entropy: Entropy) -> dict[str, npt.NDArray[Any]]:
    """Synthetic rows as ``schema.encode`` would give them; of a group any value alike."""
    columns: dict[str, npt.NDArray[Any]] = {}
    for feature, column in zip(params.schema.features, values.T, strict=True):
        is_category = isinstance(feature, Categorical)
        columns[feature.name] = values_in(feature, column.astype(np.int64), uniform(len(column), entropy)) if is_category else column.copy()
    return columns
