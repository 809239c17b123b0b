"""How a private tree grows: level by level, each a release of its own; then its leaves.

Attributes are drawn without a look at the rows, which is free. Of a million nodes only some hundred hold rows, and only there anything
is left to choose.
"""

from __future__ import annotations

import math

import numpy as np

from shoal.entropy import Entropy
from shoal.protocols.pfds.dataset import uniform
from shoal.protocols.pfds.paper import Points, counting_leaves, splitting
from shoal.protocols.pfds.params import Floats, Ints, Params
from shoal.protocols.pfds.tree import MAX_COUNT, Int16s, Int32s, Level, Levels, PrivateTree, Shape, depth_of, least_fans, most_leaves


def grow(params: Params, points: Points, entropy: Entropy) -> PrivateTree:
    """A holder's private tree.

    Notes
    -----
    Ref: PFDS §3.1, Algorithm 3 (makeTree), all nodes of a level at once.

    Privacy
    -------
    epsilon / 2 for the unit, relation and adversary of the parameters' scope: `draw_splits` h_max - 1 times, and `draw_leaves`.

    Examples
    --------
    >>> from shoal.domain import Categorical, Numeric, Schema
    >>> from shoal.entropy import SeededEntropy
    >>> schema = Schema([Numeric("age", 0, 100), Numeric("height", 0, 250)], label=Categorical("ill", ["no", "yes"]))
    >>> params = Params(schema, epsilon=1.0, size=100, variant="paper")
    >>> points = Points(np.array([[20.0, 180.0], [80.0, 170.0]]), np.array([0, 1]))
    >>> grow(params, points, SeededEntropy(1)).counts.shape
    (2, 2)
    """
    levels: list[Level] = []
    for _ in range(depth_of(params) - 1):
        levels.append(draw_splits(params, points, levels, entropy))
    return PrivateTree.of(params, levels, draw_leaves(params, points, levels, entropy))


def draw_attributes(params: Params, levels: Levels, entropy: Entropy) -> Int16s:
    """What each node of the next level splits on: of the attributes left on its path any alike. Numbers are always left.

    Notes
    -----
    Ref: PFDS Algorithm 3, selectAttribute. Rows are not looked at. Where the level would have so many children that even the least splits
    below it led to more leaves than `most_leaves`, all of it is drawn again, from those attributes alone that every node can afford; one
    that is left always is, as `depth_of` sees to.
    """
    shape, n = Shape.of(params), Shape.of(params).n_below(levels[-1]) if levels else 1
    paths = np.empty((n, len(levels)), np.int16)
    for i, (level, above, _) in enumerate(shape.ancestors(levels, np.arange(n))):
        paths[:, i] = level.attributes[above]
    most = most_leaves(params) // math.prod(least_fans(params)[len(levels) + 1 : depth_of(params) - 1])
    drawn = _drawn(shape, paths, np.arange(len(shape.fans)), entropy)
    if shape.fans[drawn].sum() > most:
        drawn = _drawn(shape, paths, np.flatnonzero(shape.fans <= most // n), entropy)
    return drawn


def _drawn(shape: Shape, paths: Int16s, allowed: Ints, entropy: Entropy) -> Int16s:
    """One of the allowed attributes for each path, drawn again where it is a category on the path already."""
    drawn = np.empty(len(paths), np.int16)
    again = np.arange(len(paths))
    while again.size:
        drawn[again] = allowed[entropy.below_many(len(allowed), again.size)]
        picked = drawn[again]
        again = again[~shape.is_number[picked] & (paths[again] == picked[:, np.newaxis]).any(axis=1)]
    return drawn


def draw_splits(params: Params, points: Points, levels: Levels, entropy: Entropy) -> Level:
    """The next level below these: attributes for all of its nodes, and split values for those that split on a number.

    Notes
    -----
    Ref: PFDS Algorithm 3, lines 3 to 10 and selectSplit. At a node with rows one of t values that are uniform in the active range is chosen
    by its score. At a node without rows all score 0, any is chosen alike, and a uniform choice of uniform values is a uniform value: it
    is drawn at once. A range too narrow to be split leaves one side empty.

    Privacy
    -------
    epsilon / (2 h_max) for the whole level: a row changes the scores of one node.
    """
    shape = Shape.of(params)
    attributes = draw_attributes(params, levels, entropy)
    numbers = np.flatnonzero(shape.is_number[attributes])
    lows, highs = shape.active(levels, numbers, attributes[numbers])
    splits = np.zeros(len(attributes))
    splits[numbers] = between(lows, highs, entropy)

    nodes = shape.route(levels, points.values)
    inside = np.flatnonzero(shape.is_number[attributes[nodes]])
    held, places = np.unique(nodes[inside], return_inverse=True)
    each = np.repeat(np.searchsorted(numbers, held), params.n_candidates)
    candidates = between(lows[each], highs[each], entropy).reshape(-1, params.n_candidates)
    scores = _scores(candidates, places, points.values[inside, attributes[nodes[inside]]], points.outcomes[inside], params.n_outcomes)
    mechanism = splitting(params)
    chosen = np.argmax(scores, axis=1) if mechanism is None else mechanism.choose_many(scores, entropy)
    splits[held] = candidates[np.arange(len(held)), chosen]
    return Level(attributes, splits)


def _scores(candidates: Floats, places: Ints, values: Floats, outcomes: Ints, n_outcomes: int) -> Ints:
    """The Max operator: of each candidate ``(n_nodes, t)`` the rows of the largest class below it and of that from it on, together."""
    scores = np.empty(candidates.shape, np.int64)
    for j, splits in enumerate(candidates.T):
        side = 2 * places + (values >= splits[places])
        counts = np.bincount(side * n_outcomes + outcomes, minlength=len(splits) * 2 * n_outcomes)
        scores[:, j] = counts.reshape(-1, 2, n_outcomes).max(axis=2).sum(axis=1)
    return scores


def draw_leaves(params: Params, points: Points, levels: Levels, entropy: Entropy) -> Int32s:
    """The noisy class counts of the leaves, ``(n_leaves, n_outcomes)``.

    Notes
    -----
    Ref: PFDS Algorithm 3, line 13; errata P-03.

    Privacy
    -------
    epsilon / (2 h_max) for all leaves together: a row is in one cell of the table.
    """
    shape, n_outcomes = Shape.of(params), params.n_outcomes
    n_leaves = shape.n_below(levels[-1]) if levels else 1
    counts = np.bincount(shape.route(levels, points.values) * n_outcomes + points.outcomes, minlength=n_leaves * n_outcomes)
    mechanism = counting_leaves(params)
    noisy = counts if mechanism is None else mechanism.randomise_many(counts, entropy)
    return np.clip(noisy, -MAX_COUNT, MAX_COUNT).astype(np.int32).reshape(n_leaves, n_outcomes)


def between(lows: Floats, highs: Floats, entropy: Entropy) -> Floats:
    """A number from each range, uniform, the upper end excluded; an empty range gives its end."""
    places = uniform(lows.size, entropy).reshape(lows.shape)
    return np.clip(lows + places * (highs - lows), lows, np.nextafter(highs, lows))
