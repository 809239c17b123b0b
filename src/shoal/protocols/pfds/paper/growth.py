"""Growth of a private tree, level by level; then its leaves.

The paper's peer releases each level separately; simulations call `grow_tree`. Attributes are drawn
without reading rows, which is free. Among a million nodes only some hundred contain rows, and only
those nodes have a choice of split values.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.entropy import Entropy
from shoal.protocols.pfds.dataset import draw_uniform
from shoal.protocols.pfds.paper.script import TreeRows, make_leaf_mechanism, make_split_mechanism
from shoal.protocols.pfds.paper.tree import (
    MAX_COUNT,
    Int16s,
    Int32s,
    Levels,
    PrivateTree,
    SplitLevel,
    TreeShape,
    compute_depth,
    compute_least_fans,
    compute_max_leaves,
)
from shoal.protocols.pfds.params import Floats, Ints, PFDSParams


def grow_tree(params: PFDSParams, points: TreeRows, entropy: Entropy) -> PrivateTree:
    """Return a holder's private tree.

    Notes
    -----
    Ref: PFDS §3.1, Algorithm 3 (makeTree), with all nodes of a level together.

    Privacy
    -------
    epsilon / 2 for the unit, relation and adversary of the parameters' scope: `draw_splits` h_max -
    1 times, and `draw_leaves`.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Numeric, Schema
    >>> from shoal.entropy import SeededEntropy
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100), Numeric("height", 0, 250)],
    ...     label=Categorical("ill", ["no", "yes"]),
    ... )
    >>> params = PFDSParams(schema, epsilon=1.0, size=100, variant="paper")
    >>> points = TreeRows(np.array([[20.0, 180.0], [80.0, 170.0]]), np.array([0, 1]))
    >>> grow_tree(params, points, SeededEntropy(1)).counts.shape
    (2, 2)
    """
    levels: list[SplitLevel] = []
    for _ in range(compute_depth(params) - 1):
        levels.append(draw_splits(params, points, levels, entropy))
    return PrivateTree.from_counts(params, levels, draw_leaves(params, points, levels, entropy))


def draw_attributes(params: PFDSParams, levels: Levels, entropy: Entropy) -> Int16s:
    """Return the attribute of each node of the next level.

    All attributes left on the node's path are equally likely. Numbers are always left.

    Notes
    -----
    Ref: PFDS Algorithm 3, selectAttribute. Rows are not read. If even the smallest splits below the
    level would lead to more leaves than `compute_max_leaves`, the whole level is drawn again, only
    from those attributes that every node can afford. One such attribute is always left;
    `compute_depth` ensures it.
    """
    shape, n = (
        TreeShape.from_params(params),
        TreeShape.from_params(params).count_below(levels[-1]) if levels else 1,
    )
    paths = np.empty((n, len(levels)), np.int16)
    for i, (level, above, _) in enumerate(shape.iterate_ancestors(levels, np.arange(n))):
        paths[:, i] = level.attributes[above]
    max_leaves = compute_max_leaves(params) // math.prod(
        compute_least_fans(params)[len(levels) + 1 : compute_depth(params) - 1]
    )
    attributes = _draw_among(shape, paths, np.arange(len(shape.fans)), entropy)
    if shape.fans[attributes].sum() > max_leaves:
        attributes = _draw_among(
            shape, paths, np.flatnonzero(shape.fans <= max_leaves // n), entropy
        )
    return attributes


def _draw_among(shape: TreeShape, paths: Int16s, allowed: Ints, entropy: Entropy) -> Int16s:
    """Return one of the allowed attributes for each path.

    A category that is already on the path is drawn again.
    """
    drawn = np.empty(len(paths), np.int16)
    again = np.arange(len(paths))
    while again.size:
        drawn[again] = allowed[entropy.below_many(len(allowed), again.size)]
        picked = drawn[again]
        again = again[
            ~shape.is_number[picked] & (paths[again] == picked[:, np.newaxis]).any(axis=1)
        ]
    return drawn


def draw_splits(
    params: PFDSParams, points: TreeRows, levels: Levels, entropy: Entropy
) -> SplitLevel:
    """Return the next level: attributes of all its nodes, and split values of numbers.

    Notes
    -----
    Ref: PFDS Algorithm 3, lines 3 to 10 and selectSplit. At a node with rows, one of t uniform
    values in the active range is chosen by its score. At a node without rows all scores are 0 and
    the choice is uniform; a uniform choice among uniform values is a uniform value, which is drawn
    directly. A range too narrow to be split leaves one side empty.

    Privacy
    -------
    epsilon / (2 h_max) for the whole level: a row changes the scores of one node.
    """
    shape = TreeShape.from_params(params)
    attributes = draw_attributes(params, levels, entropy)
    numbers = np.flatnonzero(shape.is_number[attributes])
    lows, highs = shape.find_active_ranges(levels, numbers, attributes[numbers])
    splits = np.zeros(len(attributes))
    splits[numbers] = draw_between(lows, highs, entropy)

    nodes = shape.route(levels, points.values)
    inside = np.flatnonzero(shape.is_number[attributes[nodes]])
    held, places = np.unique(nodes[inside], return_inverse=True)
    each = np.repeat(np.searchsorted(numbers, held), params.n_candidates)
    candidates = draw_between(lows[each], highs[each], entropy).reshape(-1, params.n_candidates)
    scores = _compute_scores(
        candidates,
        places,
        points.values[inside, attributes[nodes[inside]]],
        points.outcomes[inside],
        params.n_outcomes,
    )
    mechanism = make_split_mechanism(params)
    chosen = (
        np.argmax(scores, axis=1) if mechanism is None else mechanism.choose_many(scores, entropy)
    )
    splits[held] = candidates[np.arange(len(held)), chosen]
    return SplitLevel(attributes, splits)


def _compute_scores(
    candidates: Floats, places: Ints, values: Floats, outcomes: Ints, n_outcomes: int
) -> Ints:
    """Return the score of each candidate ``(n_nodes, t)``: the Max operator.

    It is the number of rows of the largest class below the candidate plus that of the largest class
    from it on.
    """
    scores = np.empty(candidates.shape, np.int64)
    for j, splits in enumerate(candidates.T):
        side = 2 * places + (values >= splits[places])
        counts = np.bincount(side * n_outcomes + outcomes, minlength=len(splits) * 2 * n_outcomes)
        scores[:, j] = counts.reshape(-1, 2, n_outcomes).max(axis=2).sum(axis=1)
    return scores


def draw_leaves(params: PFDSParams, points: TreeRows, levels: Levels, entropy: Entropy) -> Int32s:
    """Return the noisy class counts of the leaves, ``(n_leaves, n_outcomes)``.

    Notes
    -----
    Ref: PFDS Algorithm 3, line 13; errata P-03.

    Privacy
    -------
    epsilon / (2 h_max) for all leaves together: a row is in one cell of the table.
    """
    shape, n_outcomes = TreeShape.from_params(params), params.n_outcomes
    n_leaves = shape.count_below(levels[-1]) if levels else 1
    counts = np.bincount(
        shape.route(levels, points.values) * n_outcomes + points.outcomes,
        minlength=n_leaves * n_outcomes,
    )
    mechanism = make_leaf_mechanism(params)
    noisy = counts if mechanism is None else mechanism.randomise_many(counts, entropy)
    return np.clip(noisy, -MAX_COUNT, MAX_COUNT).astype(np.int32).reshape(n_leaves, n_outcomes)


def draw_between(lows: Floats, highs: Floats, entropy: Entropy) -> Floats:
    """Return a uniform number from each range, without its upper end.

    An empty range gives its end.
    """
    places = draw_uniform(lows.size, entropy).reshape(lows.shape)
    return np.clip(lows + places * (highs - lows), lows, np.nextafter(highs, lows))
