"""PFDS's private trees whatever the schema, the rows and the settings are, and whatever a stranger sends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile import hostile
from pfds_trees import params_of, plain_path, random_points
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.privacy.rounding import grains_down, grains_up
from shoal.protocols.pfds.growing import grow
from shoal.protocols.pfds.paper import n_counted, prices
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.synthesis import draw_counts, draw_rows, sizes
from shoal.protocols.pfds.tree import Level, check, depth_of

numbers = st.tuples(st.integers(-1000, 1000), st.integers(1, 1000)).map(lambda ends: (ends[0], ends[0] + ends[1]))
schemas = st.tuples(st.lists(numbers | st.integers(2, 5), min_size=1, max_size=5), st.integers(2, 4))


def schema_of(kinds: list[Any], n_classes: int) -> Schema:
    """Numbers by their ranges and categories by their number of values, the last of which may be missing."""
    features = [
        Numeric(f"a{i}", *kind, missing=False)
        if isinstance(kind, tuple)
        else Categorical(f"a{i}", [str(j) for j in range(max(2, kind - 1))], missing=kind > 2)
        for i, kind in enumerate(kinds)
    ]
    return Schema(features, label=Categorical("kind", [str(i) for i in range(n_classes)]))


studies = st.builds(
    lambda shape, epsilon, **settings: params_of(schema_of(*shape), epsilon, **settings),
    schemas,
    st.sampled_from([0.1, 1.0, 8.0, math.inf]),
    max_depth=st.integers(1, 6),
    n_levels=st.integers(1, 6),
    n_candidates=st.integers(1, 12),
    projection=st.booleans(),
    size=st.sampled_from([20, 100_000]),
)


@hostile(60)
@given(studies, st.integers(0, 60), st.integers(0, 1000))
def test_every_row_reaches_one_leaf_and_synthetic_rows_their_own(params: Params, n: int, seed: int) -> None:
    points, entropy = random_points(params, n, seed), SeededEntropy(seed)
    tree = grow(params, points, entropy)
    check(params, tree.levels, tree.labels)
    leaves = tree.route(points.values)
    assert leaves.tolist() == [plain_path(params, tree.levels, row)[-1] for row in points.values]
    counts = [draw_counts(params, points, tree.levels, i, entropy) for i in range(1, n_counted(params) + 1)]
    found = sizes(params, tree, counts)
    assert found.min() >= 0
    if params.is_bare:
        assert np.allclose(found, np.bincount(leaves, minlength=len(found)))
    rows = draw_rows(params, tree, found, entropy)
    assert tree.route(rows.values).tolist() == rows.leaves.tolist()
    assert abs(len(rows) - min(found.sum(), params.size)) <= np.count_nonzero(found % 1 if found.sum() <= params.size else found)


@hostile(60)
@given(studies.filter(lambda params: not params.is_bare))
def test_no_study_spends_more_than_its_budget(params: Params) -> None:
    assert sum(grains_up(event.epsilon) for event in prices(params).values()) <= grains_down(params.epsilon)


wild = st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 2.0**-1074])


@hostile(80)
@given(studies.filter(lambda params: depth_of(params) > 1), st.integers(0, 1000), st.data())
def test_no_stranger_breaks_the_check_and_what_it_lets_through_can_be_walked(params: Params, seed: int, data: st.DataObject) -> None:
    tree = grow(params, random_points(params, 5, seed), SeededEntropy(seed))
    number = data.draw(st.integers(0, len(tree.levels) - 1))
    attributes, splits = tree.levels[number].attributes.copy(), tree.levels[number].splits.copy()
    node = data.draw(st.integers(0, len(attributes) - 1))
    if data.draw(st.booleans()):
        attributes[node] = data.draw(st.integers(-(2**15), 2**15 - 1) | st.integers(-1, 5))
    else:
        splits[node] = data.draw(wild | st.floats(-1500, 1500))
    levels = [*tree.levels[:number], Level(attributes, splits), *tree.levels[number + 1 :]]
    try:
        check(params, levels, tree.labels)
    except RemoteProtocolError:
        return
    rows = random_points(params, 20, seed).values
    assert max(plain_path(params, levels, row)[-1] for row in rows) < len(tree.labels)


@hostile(40)
@given(studies, st.integers(-2, 2), st.integers(-1, 1))
def test_leaves_of_another_number_or_label_are_refused(params: Params, more_leaves: int, more_outcomes: int) -> None:
    tree = grow(params, random_points(params, 5, 1), SeededEntropy(1))
    labels = np.full(max(0, len(tree.labels) + more_leaves), params.n_outcomes - 1 + more_outcomes, np.uint8)
    if len(labels) == len(tree.labels) and more_outcomes < 1:
        check(params, tree.levels, labels)
    else:
        with pytest.raises(RemoteProtocolError):
            check(params, tree.levels, labels)
