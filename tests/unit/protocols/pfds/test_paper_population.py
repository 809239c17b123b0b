"""All holders at once: what each would release on its own, in the same order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pfds_trees import SCHEMA, params_of
from shoal.domain import Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.growing import draw_leaves, draw_splits
from shoal.protocols.pfds.paper import Points
from shoal.protocols.pfds.paper_population import release, simulate_paper
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.synthesis import columns_of, draw_counts, draw_rows, sizes
from shoal.protocols.pfds.tree import Level, PrivateTree
from shoal.protocols.pfds.voting import labels_of, majority

N = 150


def rows_of(params: Params) -> tuple[dict[str, Any], Any, Any]:
    rng = np.random.default_rng(1)
    columns = {
        "age": rng.uniform(0, 100, N),
        "ward": rng.integers(0, 3, N),
        "city": rng.integers(-1, 4, N),
        "weight": rng.uniform(2, 6, N),
    }
    label = columns["age"] / 50 - 1 if params.is_number else (columns["age"] > 40).astype(int)
    return columns, label, np.arange(N) % 3


def test_it_is_what_draws_level_by_level_give() -> None:
    params = params_of(labelling="shared")
    columns, labels, whose = rows_of(params)
    shared = simulate_paper(params, columns, labels, whose, SeededEntropy(7), sharers=[2, 0])
    entropy, points = SeededEntropy(7), Points.of(params, columns, labels)
    trees, drawn = [], []
    for holder in (2, 0):
        own = points.take(whose == holder)
        levels: list[Level] = []
        for _ in range(3):
            levels.append(draw_splits(params, own, levels, entropy))
        tree = PrivateTree.of(params, levels, draw_leaves(params, own, levels, entropy))
        counts = [draw_counts(params, own, levels, i, entropy) for i in (1, 2)]
        trees.append(tree)
        drawn.append(draw_rows(params, tree, sizes(params, tree, counts), entropy))
    assert shared.sharers == (2, 0)
    for tree, found in zip(trees, shared.trees, strict=True):
        assert found.labels.tolist() == tree.labels.tolist()
        assert found.counts is None
        for level, twin in zip(tree.levels, found.levels, strict=True):
            assert (level.attributes.tolist(), level.splits.tolist()) == (twin.attributes.tolist(), twin.splits.tolist())
    for rows, dataset in zip(drawn, shared.datasets, strict=True):
        expected = columns_of(params, rows.values, entropy)
        assert {name: column.tolist() for name, column in dataset.columns.items()} == {n: c.tolist() for n, c in expected.items()}
        assert dataset.labels.tolist() == labels_of(params, majority(params, trees, rows.values), entropy).tolist()


def test_labels_are_those_of_the_own_tree_in_pfds_s() -> None:
    params = params_of(labelling="own")
    shared = simulate_paper(params, *rows_of(params), SeededEntropy(3))
    for tree, dataset in zip(shared.trees, shared.datasets, strict=True):
        assert dataset.labels.tolist() == tree.predict(Points.of(params, dataset.columns, dataset.labels).values).tolist()
    together = simulate_paper(params_of(), *rows_of(params), SeededEntropy(3))
    assert any(one.labels.tolist() != two.labels.tolist() for one, two in zip(shared.datasets, together.datasets, strict=True))


@pytest.mark.parametrize("labelling", ["own", "shared"])
def test_without_noise_datasets_look_like_the_rows(labelling: str) -> None:
    params = params_of(epsilon=math.inf, labelling=labelling)
    shared = simulate_paper(params, *rows_of(params), SeededEntropy(3))
    assert [len(dataset) for dataset in shared.datasets] == [50, 50, 50]
    agree = [((dataset.columns["age"] > 40) == dataset.labels).mean() for dataset in shared.datasets]
    assert np.mean(agree) > 0.7


def test_a_numeric_label_lies_in_its_range() -> None:
    params = params_of(Schema(SCHEMA.features, label=Numeric("rides", -1, 1)), epsilon=math.inf)
    columns, labels, whose = rows_of(params)
    shared = simulate_paper(params, columns, labels, whose, SeededEntropy(3))
    drawn = np.concatenate([dataset.labels for dataset in shared.datasets])
    assert -1 <= drawn.min() < drawn.max() < 1
    assert np.corrcoef(drawn, np.concatenate([dataset.columns["age"] for dataset in shared.datasets]))[0, 1] > 0.15


def test_without_projection_noise_makes_rows() -> None:
    rows = rows_of(params_of())
    plain, kept = (simulate_paper(params_of(projection=on, size=10_000), *rows, SeededEntropy(3)) for on in (False, True))
    assert sum(map(len, plain.datasets)) > 1.5 * sum(map(len, kept.datasets))
    assert 90 < sum(map(len, kept.datasets)) < 210


def test_holders_without_rows_share_and_nobody_has_to() -> None:
    params = params_of(n_holders=4)
    columns, labels, whose = rows_of(params)
    assert len(simulate_paper(params, columns, labels, whose, SeededEntropy(3)).trees) == 4
    for labelling in ("own", "shared"):
        nobody = simulate_paper(params_of(labelling=labelling), columns, labels, whose, SeededEntropy(3), sharers=[])
        assert (nobody.trees, nobody.datasets, nobody.sharers) == ((), (), ())


def test_a_release_is_a_tree_and_rows_of_its_leaves() -> None:
    params = params_of()
    columns, labels, _ = rows_of(params)
    tree, rows = release(params, Points.of(params, columns, labels), SeededEntropy(5))
    assert tree.counts is not None
    assert tree.route(rows.values).tolist() == rows.leaves.tolist()
