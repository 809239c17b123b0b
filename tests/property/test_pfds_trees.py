"""PFDS's private trees for any schema, rows and settings, and for any received tree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.privacy.rounding import grains_down, grains_up
from shoal.protocols.pfds.paper.growth import grow_tree
from shoal.protocols.pfds.paper.script import compute_prices, count_projected_levels
from shoal.protocols.pfds.paper.synthesis import compute_leaf_sizes, draw_counts, draw_rows
from shoal.protocols.pfds.paper.tree import SplitLevel, check_tree, compute_depth
from shoal.protocols.pfds.params import PFDSParams
from tests.support.hostile import hostile
from tests.support.pfds_paper import make_params, plain_path, random_points

numbers = st.tuples(st.integers(-1000, 1000), st.integers(1, 1000)).map(
    lambda ends: (ends[0], ends[0] + ends[1])
)
schemas = st.tuples(
    st.lists(numbers | st.integers(2, 5), min_size=1, max_size=5), st.integers(2, 4)
)


def make_schema(kinds: list[Any], n_classes: int) -> Schema:
    """Return a schema with numbers by range and categories by size.

    The last value of a category may be missing.
    """
    features = [
        Numeric(f"a{i}", *kind, missing=False)
        if isinstance(kind, tuple)
        else Categorical(f"a{i}", [str(j) for j in range(max(2, kind - 1))], missing=kind > 2)
        for i, kind in enumerate(kinds)
    ]
    return Schema(features, label=Categorical("kind", [str(i) for i in range(n_classes)]))


studies = st.builds(
    lambda shape, epsilon, **settings: make_params(make_schema(*shape), epsilon, **settings),
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
def test_every_row_reaches_one_leaf_and_synthetic_rows_their_leaf(
    params: PFDSParams, n: int, seed: int
) -> None:
    points, entropy = random_points(params, n, seed), SeededEntropy(seed)
    tree = grow_tree(params, points, entropy)
    check_tree(params, tree.levels, tree.labels)
    leaves = tree.route(points.values)
    assert leaves.tolist() == [plain_path(params, tree.levels, row)[-1] for row in points.values]
    counts = [
        draw_counts(params, points, tree.levels, i, entropy)
        for i in range(1, count_projected_levels(params) + 1)
    ]
    found = compute_leaf_sizes(params, tree, counts)
    assert found.min() >= 0
    if params.is_noiseless:
        assert np.allclose(found, np.bincount(leaves, minlength=len(found)))
    rows = draw_rows(params, tree, found, entropy)
    assert tree.route(rows.values).tolist() == rows.leaves.tolist()
    assert abs(len(rows) - min(found.sum(), params.size)) <= np.count_nonzero(
        found % 1 if found.sum() <= params.size else found
    )


@hostile(60)
@given(studies.filter(lambda params: not params.is_noiseless))
def test_pfds_paper_study_spends_at_most_its_budget(params: PFDSParams) -> None:
    assert sum(
        grains_up(event.epsilon) for event in compute_prices(params).values()
    ) <= grains_down(params.epsilon)


wild = st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -1e308, 2.0**-1074])


@hostile(80)
@given(studies.filter(lambda params: compute_depth(params) > 1), st.integers(0, 1000), st.data())
def test_checked_tree_of_stranger_is_rejected_or_can_be_walked(
    params: PFDSParams, seed: int, data: st.DataObject
) -> None:
    tree = grow_tree(params, random_points(params, 5, seed), SeededEntropy(seed))
    number = data.draw(st.integers(0, len(tree.levels) - 1))
    attributes, splits = tree.levels[number].attributes.copy(), tree.levels[number].splits.copy()
    node = data.draw(st.integers(0, len(attributes) - 1))
    if data.draw(st.booleans()):
        attributes[node] = data.draw(st.integers(-(2**15), 2**15 - 1) | st.integers(-1, 5))
    else:
        splits[node] = data.draw(wild | st.floats(-1500, 1500))
    levels = [*tree.levels[:number], SplitLevel(attributes, splits), *tree.levels[number + 1 :]]
    try:
        check_tree(params, levels, tree.labels)
    except RemoteProtocolError:
        return
    rows = random_points(params, 20, seed).values
    assert max(plain_path(params, levels, row)[-1] for row in rows) < len(tree.labels)


@hostile(40)
@given(studies, st.integers(-2, 2), st.integers(-1, 1))
def test_leaves_of_other_number_or_label_are_rejected(
    params: PFDSParams, more_leaves: int, more_outcomes: int
) -> None:
    tree = grow_tree(params, random_points(params, 5, 1), SeededEntropy(1))
    labels = np.full(
        max(0, len(tree.labels) + more_leaves), params.n_outcomes - 1 + more_outcomes, np.uint8
    )
    if len(labels) == len(tree.labels) and more_outcomes < 1:
        check_tree(params, tree.levels, labels)
    else:
        with pytest.raises(RemoteProtocolError):
            check_tree(params, tree.levels, labels)
