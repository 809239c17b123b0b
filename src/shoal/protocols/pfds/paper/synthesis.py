"""Consistent leaf counts, synthetic rows, labels by majority, and their wire form.

The paper's peers call `synthesise`, `encode_dataset` and `decode_dataset`; simulations call the
steps. Apart from `draw_counts`, which releases counts, a change must keep that nothing here reads a
holder's rows: synthetic rows and labels are computed from released numbers and are free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, Feature, Numeric
from shoal.entropy import Entropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array
from shoal.protocols.pfds.dataset import Dataset, draw_uniform, place_values
from shoal.protocols.pfds.messages import SyntheticData, decode_floats, encode_floats
from shoal.protocols.pfds.paper.growth import draw_between
from shoal.protocols.pfds.paper.script import TreeRows, make_node_mechanism
from shoal.protocols.pfds.paper.tree import Levels, PrivateTree, TreeShape, choose_winners
from shoal.protocols.pfds.params import Floats, Ints, PFDSParams


def project_counts(
    parents: Sequence[Ints], counts: Sequence[npt.NDArray[Any]], weights: Sequence[float]
) -> list[Floats]:
    """Return the nearest consistent counts without negative ones.

    It is the x that minimises ``sum_i weights[i] * sum_j (x_ij - counts[i][j])^2``, where each node
    is the sum of its children and no leaf is negative.

    Parameters
    ----------
    parents
        For each level, the position of each node's parent in the level above; the first entry is
        not read. All nodes except leaves have children.
    counts
        The noisy counts of each level, from the top; the last are those of the leaves. At least two
        levels.
    weights
        Positive weight of a squared difference in each level; the paper uses one over the level's
        number of nodes.

    Notes
    -----
    Ref: PFDS §3.2.1, Algorithm 5, lines 3 to 5. Exact except for rounding: no solver, no tolerance.

    Each node pays its children a price for one more row. The price is higher if the node and those
    above it are further below their counts; a leaf exceeds its own count by its parent's price over
    twice the leaves' weight. If leaves may be negative, the prices solve linear equations: one pass
    up the tree and one down. A leaf with a negative result is set to zero for good, and the prices
    are computed again. Zero is more than it had, so the nodes above it contain more and no price
    rises: a leaf that was set to zero would stay negative to the end, which is the condition of the
    optimum. (In matrices: the inverse of an ultrametric matrix is an M-matrix, for which
    Chandrasekaran's pivots never turn back.) With noise around small counts each round drops most
    of the remaining leaves, so a million leaves take about a dozen rounds and less than twice the
    work of the first.

    Examples
    --------
    >>> root, leaves = project_counts(
    ...     [np.zeros(1, int), np.zeros(3, int)], [np.array([6]), np.array([4, 5, -2])], [1, 1]
    ... )
    >>> root.tolist(), leaves.tolist()
    ([7.0], [3.0, 4.0, 0.0])
    """
    wanted, reach, inner = counts[-1].astype(np.float64), 0.5 / weights[-1], counts[:-1]
    above, leaves = parents[-1], wanted
    while True:
        n_leaves = np.bincount(above, minlength=len(inner[-1]))
        prices = _compute_prices(
            parents,
            inner,
            weights,
            _sum_children(above, leaves, len(inner[-1])),
            reach * n_leaves.astype(np.float64),
        )
        kept = leaves + reach * prices[above] >= 0
        if kept.all():
            break
        above, leaves = above[kept], leaves[kept]
    sizes = [np.maximum(wanted + reach * prices[parents[-1]], 0.0)]
    for below, level in zip(parents[:0:-1], inner[::-1], strict=True):
        sizes.append(_sum_children(below, sizes[-1], len(level)))
    return sizes[::-1]


def _compute_prices(
    parents: Sequence[Ints],
    counts: Sequence[npt.NDArray[Any]],
    weights: Sequence[float],
    sums: Floats,
    slopes: Floats,
) -> Floats:
    """Return the price that each node of the last of these levels pays for one more row.

    The children of such a node contain ``sums + slopes * price``. A node that is paid p and
    contains x pays q = p - 2 w (x - c), and x = sums + slopes * q: q = gain * (p + offer).
    """
    gains, offers = [], []
    for i in range(len(counts) - 1, -1, -1):
        gains.append(1 / (1 + 2 * weights[i] * slopes))
        offers.append(2 * weights[i] * (counts[i] - sums))
        if i:
            passed, n_above = slopes * gains[-1], len(counts[i - 1])
            sums, slopes = (
                _sum_children(parents[i], sums + passed * offers[-1], n_above),
                _sum_children(parents[i], passed, n_above),
            )
    prices = gains.pop() * offers.pop()
    for above in parents[1 : len(counts)]:
        prices = gains.pop() * (prices[above] + offers.pop())
    return prices


def _sum_children(parents: Ints, values: Floats, n: int) -> Floats:
    """Return the sum of the values of each parent's children."""
    return np.asarray(np.bincount(parents, values, n), np.float64)


@dataclass(frozen=True, eq=False)
class UnlabelledRows:
    """Synthetic rows.

    Parameters
    ----------
    values
        ``(n, k)`` numbers, and cells of categories.
    leaves
        ``(n,)`` the leaf that each row was drawn from.
    """

    values: Floats
    leaves: Ints

    def __len__(self) -> int:
        return len(self.leaves)


def draw_counts(
    params: PFDSParams, points: TreeRows, levels: Levels, number: int, entropy: Entropy
) -> Ints:
    """Return the noisy numbers of rows in all nodes of a level; the root's level is 1.

    Notes
    -----
    Ref: PFDS Algorithm 5, lines 1 and 2; errata P-03.

    Privacy
    -------
    epsilon / (2 (p - 1)) for the level: a row is in one of its nodes.
    """
    shape, above = TreeShape.from_params(params), levels[: number - 1]
    counts = np.bincount(
        shape.route(above, points.values), minlength=shape.count_below(above[-1]) if above else 1
    )
    mechanism = make_node_mechanism(params)
    return counts if mechanism is None else mechanism.randomise_many(counts, entropy)


def compute_leaf_sizes(
    params: PFDSParams, tree: PrivateTree, level_counts: Sequence[Ints]
) -> Floats:
    """Return the number of rows in each leaf according to all releases, ``(n_leaves,)``.

    Parameters
    ----------
    level_counts
        The noisy counts of levels 1 to p - 1. PFDS- has none and uses the leaves' own counts, with
        0 for negative ones.

    Notes
    -----
    Ref: PFDS Algorithm 5, lines 3 to 5: each level weighs one over its number of nodes.
    """
    assert tree.counts is not None, "a predictor has no counts"
    sums: Ints = tree.counts.sum(axis=1, dtype=np.int64)
    if not level_counts:
        return sums.clip(0).astype(np.float64)
    shape, last = TreeShape.from_params(params), len(level_counts) - 1
    n_leaves = np.ones(len(sums), np.int64)
    for level in reversed(tree.levels[last:]):
        n_leaves = np.add.reduceat(n_leaves, shape.find_first_children(level))
    parents = [
        np.zeros(1, np.int64),
        *map(shape.find_parents, tree.levels[:last]),
        np.repeat(np.arange(len(n_leaves)), n_leaves),
    ]
    counts = [*level_counts, sums]
    return project_counts(parents, counts, [1 / len(level) for level in counts])[-1]


def draw_rows(
    params: PFDSParams, tree: PrivateTree, sizes: Floats, entropy: Entropy
) -> UnlabelledRows:
    """Return rows by the sizes of the leaves; a fraction is the probability of one more row.

    Notes
    -----
    Ref: PFDS Algorithm 5, lines 6 to 8. A number is uniform in its remaining range on the path to
    the leaf; a category is that of the path, or any cell with equal probability. Noise on a million
    leaves can add up to more rows than are useful: if the sizes exceed the rows that the whole
    study expects, all sizes shrink in proportion, and never more rows are drawn.
    """
    scaled = sizes * min(1.0, params.size / max(float(sizes.sum()), 1.0))
    leaves = _limit_rows(
        params.size, np.repeat(np.arange(len(sizes)), _round_randomly(scaled, entropy)), entropy
    )
    shape = TreeShape.from_params(params)
    n, k = len(leaves), len(shape.fans)
    lows, highs = np.tile(shape.lows, (n, 1)), np.tile(shape.highs, (n, 1))
    cells = np.empty((n, k))
    for a in np.flatnonzero(~shape.is_number).tolist():
        cells[:, a] = entropy.below_many(int(shape.fans[a]), n)
    rows = np.arange(n)
    for level, above, edges in shape.iterate_ancestors(tree.levels, leaves):
        attributes, splits = level.attributes[above], level.splits[above]
        cells[rows, attributes] = edges
        # The edges of numbers are written to the cells too, but replaced below; the ranges of
        # categories are not used.
        here = rows, attributes
        highs[here] = np.where(edges == 0, np.minimum(highs[here], splits), highs[here])
        lows[here] = np.where(edges == 1, np.maximum(lows[here], splits), lows[here])
    cells[:, shape.is_number] = draw_between(
        lows[:, shape.is_number], highs[:, shape.is_number], entropy
    )
    return UnlabelledRows(cells, leaves)


def _limit_rows(max_rows: int, leaves: Ints, entropy: Entropy) -> Ints:
    """Return the leaves of up to ``max_rows`` rows, in order; all choices are equally likely."""
    if len(leaves) <= max_rows:
        return leaves
    kept: Ints = np.sort(
        np.argsort(entropy.words(len(leaves), np.uint64), kind="stable")[:max_rows]
    )
    return leaves[kept]


def _round_randomly(sizes: Floats, entropy: Entropy) -> Ints:
    whole = np.floor(sizes)
    broken = np.flatnonzero(sizes > whole)
    whole[broken] += draw_uniform(broken.size, entropy) < (sizes - whole)[broken]
    return whole.astype(np.int64)


def make_columns(
    params: PFDSParams, values: Floats, entropy: Entropy
) -> dict[str, npt.NDArray[Any]]:
    """Return synthetic rows as ``schema.encode`` would give them.

    All values of a group are equally likely.
    """
    columns: dict[str, npt.NDArray[Any]] = {}
    for feature, column in zip(params.schema.features, values.T, strict=True):
        is_category = isinstance(feature, Categorical)
        columns[feature.name] = (
            place_values(feature, column.astype(np.int64), draw_uniform(len(column), entropy))
            if is_category
            else column.copy()
        )
    return columns


def count_votes(params: PFDSParams, trees: Iterable[PrivateTree], values: Floats) -> Ints:
    """Return the number of trees that predict each outcome, ``(n, n_outcomes)``."""
    tally = np.zeros((len(values), params.n_outcomes), np.int64)
    rows = np.arange(len(values))
    for tree in trees:
        tally[rows, tree.predict(values)] += 1
    return tally


def take_majority(params: PFDSParams, trees: Iterable[PrivateTree], values: Floats) -> Ints:
    """Return the outcome that most trees predict; ties are resolved by `choose_winners`.

    Notes
    -----
    Ref: PFDS §3.2.2, Algorithm 4, lines 5 and 6.

    Privacy
    -------
    Only released trees and synthetic rows are read, so labels are free.
    """
    return choose_winners(count_votes(params, trees, values))


def draw_labels(params: PFDSParams, outcomes: Ints, entropy: Entropy) -> npt.NDArray[Any]:
    """Return labels as ``schema.encode_label`` would give them.

    A label is the class, or a uniform number in its bucket.
    """
    if not isinstance(params.label, Numeric):
        return outcomes
    low, high = float(params.label.low), float(params.label.high)
    # Divide first: a multiple of a very wide range would overflow.
    edges = low + (high - low) * (np.arange(params.n_buckets + 1) / params.n_buckets)
    return draw_between(edges[outcomes], edges[outcomes + 1], entropy)


MAX_ROWS = 200_000
"""Largest number of rows of a holder's data.

Without the projection, noise on many leaves creates more.
"""
_OF_AN_ARRAY = 64
"""Upper bound of the bytes around the numbers of an encoded array."""


def synthesise(
    params: PFDSParams,
    own: PrivateTree,
    level_counts: Sequence[Ints],
    trees: Iterable[PrivateTree],
    entropy: Entropy,
) -> Dataset:
    """Return the private labelled data of a sharing holder.

    Parameters
    ----------
    own
        The holder's tree, with its counts.
    level_counts
        Its noisy counts of levels 1 to p - 1.
    trees
        All trees that label; with labelling ``"own"`` they are not read.

    Notes
    -----
    Ref: PFDS Algorithms 4 and 5. If there are more rows than fit in a message, a uniform sample of
    them is kept.

    Privacy
    -------
    Only released numbers are read, so the data is free.
    """
    rows = thin_rows(
        draw_rows(params, own, compute_leaf_sizes(params, own, level_counts), entropy),
        compute_max_rows(params),
        entropy,
    )
    outcomes = (
        own.labels[rows.leaves].astype(np.int64)
        if params.labelling == "own"
        else take_majority(params, trees, rows.values)
    )
    return Dataset(
        make_columns(params, rows.values, entropy), draw_labels(params, outcomes, entropy)
    )


def thin_rows(rows: UnlabelledRows, max_rows: int, entropy: Entropy) -> UnlabelledRows:
    """Return up to ``max_rows`` rows, in order; all choices are equally likely."""
    if len(rows) <= max_rows:
        return rows
    kept = np.sort(np.argsort(entropy.words(len(rows), np.uint64), kind="stable")[:max_rows])
    return UnlabelledRows(rows.values[kept], rows.leaves[kept])


def compute_max_rows(params: PFDSParams) -> int:
    """Return the largest number of rows of a holder's data.

    It is limited by the study's expected number of rows and by the size of a message.
    """
    parts = (*params.schema.features, params.label)
    room = SyntheticData.max_bytes - _OF_AN_ARRAY * (len(parts) + 4)
    return min(
        MAX_ROWS, params.size, room // sum(8 if isinstance(part, Numeric) else 2 for part in parts)
    )


def encode_dataset(params: PFDSParams, study: bytes, dataset: Dataset) -> SyntheticData:
    """Return the data as a message."""
    columns = tuple(
        _encode_column(feature, dataset.columns[feature.name]) for feature in params.schema.features
    )
    return SyntheticData(
        study=study,
        n_rows=len(dataset),
        columns=columns,
        labels=_encode_column(params.label, dataset.labels),
    )


def decode_dataset(params: PFDSParams, data: SyntheticData) -> Dataset:
    """Return the shared rows if a holder could have made them; else `RemoteProtocolError`."""
    features = params.schema.features
    if data.n_rows > compute_max_rows(params) or len(data.columns) != len(features):
        raise _invalid_data_error(
            f"they have {data.n_rows:,} rows of {len(data.columns)} columns instead of up to "
            f"{compute_max_rows(params):,} rows of {len(features)}"
        )
    columns = {
        feature.name: _decode_column(feature, column, data.n_rows, feature.missing)
        for feature, column in zip(features, data.columns, strict=True)
    }
    return Dataset(columns, _decode_column(params.label, data.labels, data.n_rows, may_miss=False))


def _encode_column(feature: Feature, column: npt.NDArray[Any]) -> Array:
    if isinstance(feature, Numeric):
        # Rounding may move the upper end of the last bucket of a number beyond its range.
        return encode_floats(np.clip(column, feature.low, feature.high))
    return Array.from_values(column.astype(np.int16))


def _decode_column(feature: Feature, column: Array, n: int, may_miss: bool) -> npt.NDArray[Any]:
    """Return a column as a schema encodes it.

    A number is never missing: variant paper creates no missing numbers.
    """
    if isinstance(feature, Numeric):
        values, low, high = decode_floats(column, n), float(feature.low), float(feature.high)
    else:
        values, low, high = (
            column.expect("int16", n).astype(np.int64),
            -1 if may_miss else 0,
            len(feature.values) - 1,
        )
    if n and not low <= values.min() <= values.max() <= high:
        raise _invalid_data_error(f"column {feature.name} has a value that is not in the schema")
    return values


def _invalid_data_error(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        "PFDS-102",
        f"The synthetic rows of a holder are impossible: {what}.",
        why="Their columns and values follow from the study's schema.",
        fix="The study continues without these rows; no action is needed.",
    )
