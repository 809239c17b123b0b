"""Simulation of all holders: the releases of each holder, in the same order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.paper.growth import draw_leaves, draw_splits
from shoal.protocols.pfds.paper.population import draw_release, simulate_paper
from shoal.protocols.pfds.paper.script import TreeRows
from shoal.protocols.pfds.paper.synthesis import (
    compute_leaf_sizes,
    draw_counts,
    draw_labels,
    draw_rows,
    make_columns,
    take_majority,
)
from shoal.protocols.pfds.paper.tree import PrivateTree, SplitLevel
from shoal.protocols.pfds.params import PFDSParams
from tests.support.pfds_paper import SCHEMA, make_params

N = 150


def make_rows(params: PFDSParams) -> tuple[dict[str, Any], Any, Any]:
    rng = np.random.default_rng(1)
    columns = {
        "age": rng.uniform(0, 100, N),
        "ward": rng.integers(0, 3, N),
        "city": rng.integers(-1, 4, N),
        "weight": rng.uniform(2, 6, N),
    }
    label = columns["age"] / 50 - 1 if params.is_number else (columns["age"] > 40).astype(int)
    return columns, label, np.arange(N) % 3


def test_simulation_equals_draws_level_by_level() -> None:
    params = make_params(labelling="shared")
    columns, labels, owners = make_rows(params)
    shared = simulate_paper(params, columns, labels, owners, SeededEntropy(7), sharers=[2, 0])
    entropy, points = SeededEntropy(7), TreeRows.from_columns(params, columns, labels)
    trees, drawn = [], []
    for holder in (2, 0):
        own = points.take(owners == holder)
        levels: list[SplitLevel] = []
        for _ in range(3):
            levels.append(draw_splits(params, own, levels, entropy))
        tree = PrivateTree.from_counts(params, levels, draw_leaves(params, own, levels, entropy))
        counts = [draw_counts(params, own, levels, i, entropy) for i in (1, 2)]
        trees.append(tree)
        drawn.append(draw_rows(params, tree, compute_leaf_sizes(params, tree, counts), entropy))
    assert shared.sharers == (2, 0)
    for tree, found in zip(trees, shared.trees, strict=True):
        assert found.labels.tolist() == tree.labels.tolist()
        assert found.counts is None
        for level, twin in zip(tree.levels, found.levels, strict=True):
            assert (level.attributes.tolist(), level.splits.tolist()) == (
                twin.attributes.tolist(),
                twin.splits.tolist(),
            )
    for rows, dataset in zip(drawn, shared.datasets, strict=True):
        expected = make_columns(params, rows.values, entropy)
        assert {name: column.tolist() for name, column in dataset.columns.items()} == {
            n: c.tolist() for n, c in expected.items()
        }
        assert (
            dataset.labels.tolist()
            == draw_labels(params, take_majority(params, trees, rows.values), entropy).tolist()
        )


def test_labelling_own_uses_the_own_tree() -> None:
    params = make_params(labelling="own")
    shared = simulate_paper(params, *make_rows(params), SeededEntropy(3))
    for tree, dataset in zip(shared.trees, shared.datasets, strict=True):
        assert (
            dataset.labels.tolist()
            == tree.predict(
                TreeRows.from_columns(params, dataset.columns, dataset.labels).values
            ).tolist()
        )
    together = simulate_paper(make_params(), *make_rows(params), SeededEntropy(3))
    assert any(
        one.labels.tolist() != two.labels.tolist()
        for one, two in zip(shared.datasets, together.datasets, strict=True)
    )


@pytest.mark.parametrize("labelling", ["own", "shared"])
def test_noiseless_datasets_are_similar_to_the_rows(labelling: str) -> None:
    params = make_params(epsilon=math.inf, labelling=labelling)
    shared = simulate_paper(params, *make_rows(params), SeededEntropy(3))
    assert [len(dataset) for dataset in shared.datasets] == [50, 50, 50]
    agree = [
        ((dataset.columns["age"] > 40) == dataset.labels).mean() for dataset in shared.datasets
    ]
    assert np.mean(agree) > 0.7


def test_numeric_labels_are_in_their_range() -> None:
    params = make_params(Schema(SCHEMA.features, label=Numeric("rides", -1, 1)), epsilon=math.inf)
    columns, labels, owners = make_rows(params)
    shared = simulate_paper(params, columns, labels, owners, SeededEntropy(3))
    drawn = np.concatenate([dataset.labels for dataset in shared.datasets])
    assert -1 <= drawn.min() < drawn.max() < 1
    assert (
        np.corrcoef(drawn, np.concatenate([dataset.columns["age"] for dataset in shared.datasets]))[
            0, 1
        ]
        > 0.15
    )


def test_noise_adds_rows_without_projection() -> None:
    rows = make_rows(make_params())
    plain, kept = (
        simulate_paper(make_params(projection=on, size=10_000), *rows, SeededEntropy(3))
        for on in (False, True)
    )
    assert sum(map(len, plain.datasets)) > 1.5 * sum(map(len, kept.datasets))
    assert 90 < sum(map(len, kept.datasets)) < 210


def test_simulation_accepts_holders_without_rows_and_no_sharers() -> None:
    params = make_params(n_holders=4)
    columns, labels, owners = make_rows(params)
    assert len(simulate_paper(params, columns, labels, owners, SeededEntropy(3)).trees) == 4
    for labelling in ("own", "shared"):
        nobody = simulate_paper(
            make_params(labelling=labelling), columns, labels, owners, SeededEntropy(3), sharers=[]
        )
        assert (nobody.trees, nobody.datasets, nobody.sharers) == ((), (), ())


def test_release_is_a_tree_with_rows_of_its_leaves() -> None:
    params = make_params()
    columns, labels, _ = make_rows(params)
    tree, rows = draw_release(
        params, TreeRows.from_columns(params, columns, labels), SeededEntropy(5)
    )
    assert tree.counts is not None
    assert tree.route(rows.values).tolist() == rows.leaves.tolist()
