"""Decision trees: predictions, plain data, and rejected documents."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import SpecError
from shoal.protocols.sdq.counting import find_nodes
from shoal.protocols.sdq.model import DecisionTree, from_plain
from shoal.protocols.sdq.paper import SDQPaperScript
from shoal.protocols.sdq.params import SDQParams
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.variants import make_sdq_script
from tests.support.hostile import at
from tests.support.sdq import make_schema, random_table, run

SCHEMA = Schema(
    [
        Numeric("age", 0, 10, bins=[3], missing=False),
        Categorical("town", ["x", "y", "z"], groups={"near": ["x", "z"], "far": ["y"]}),
        Categorical("wet", ["no", "yes"], missing=False),
    ],
    label=Categorical("ill", ["no", "yes", "maybe"]),
)
# Children may have any position after their parent; those of node 1 are last.
TREE = DecisionTree(
    SCHEMA,
    np.array([1, 0, -1, -1, -1, -1]),
    np.array([1, 4, -1, -1, -1, -1]),
    np.array([[6.0, 8, 1], [2, 3, -4], [3, 5, 0], [1, 0, 1], [math.nan] * 3, [2, 0, 0]]),
    np.array(
        [
            [0.4, 0.5, 0.1],
            [0.4, 0.6, 0],
            [0.375, 0.625, 0],
            [0.5, 0, 0.5],
            [0.2, 0.2, 0.6],
            [1, 0, 0],
        ]
    ),
)
ROWS = {
    "age": np.array([1.0, 3.0, 3.5, 9.0, 9.0]),
    "town": np.array([0, 2, 0, 1, -1]),
    "wet": np.array([0, 1, 0, 1, 0]),
}


def test_tree_predicts_by_the_leaf_of_a_row() -> None:
    assert TREE.probabilities(ROWS).tolist() == TREE.chances[[4, 4, 5, 2, 3]].tolist()
    assert TREE.decide(ROWS).tolist() == [2, 2, 0, 1, 0]
    assert TREE.classes == ("no", "yes", "maybe")
    assert len(TREE) == 6
    assert TREE.below.tolist() == [5, 2, 0, 0, 0, 0]


def test_undeclared_category_gets_the_last_cell() -> None:
    schema = Schema([SCHEMA.features[2]], SCHEMA.label)
    tree = DecisionTree(
        schema, np.array([0, -1, -1]), np.array([1, -1, -1]), np.zeros((3, 3)), np.eye(3)
    )
    assert tree.decide({"wet": np.array([0, 1, -1])}).tolist() == [1, 2, 2]


def test_tree_accepts_an_empty_table() -> None:
    nobody = {name: column[:0] for name, column in ROWS.items()}
    assert TREE.probabilities(nobody).shape == (0, 3)
    assert TREE.decide(nobody).shape == (0,)


def encode_json(tree: DecisionTree) -> dict[str, Any]:
    return json.loads(json.dumps(tree.to_plain(), allow_nan=False, sort_keys=True))


def test_tree_file_round_trip_keeps_the_tree() -> None:
    script = SDQPaperScript(SDQParams(make_schema((2, 3, 4), 3), math.inf, 200, variant="paper"))
    table = random_table((2, 3, 4), 3, 200, seed=3)
    learned = script.build_model(
        *run(script, lambda asked: np.concatenate([part.count(table) for part in asked.parts]))
    )
    assert len(learned) > 10
    for tree in (TREE, learned):
        again = from_plain(encode_json(tree))
        assert again.schema == tree.schema
        assert again.to_plain() == tree.to_plain()
        assert (again.splits.dtype, again.firsts.dtype, again.counts.dtype) == (
            np.int64,
            np.int64,
            np.float64,
        )
    assert from_plain(encode_json(TREE)).decide(ROWS).tolist() == TREE.decide(ROWS).tolist()


@pytest.mark.parametrize(
    ("variant", "choice", "noise"),
    [
        ("paper", "mpc", "all-contribute"),
        ("paper", "mpc", "two-selected"),
        ("plus", "mpc", "all-contribute"),
        ("plus", "sums", "all-contribute"),
    ],
)
def test_stated_noise_is_the_noise_of_the_counts(variant: Any, choice: Any, noise: Any) -> None:
    arities, n_classes = (2, 3, 4), 150
    table = random_table(arities, n_classes, 60_000, seed=5)
    params = SDQParams(
        make_schema(arities, n_classes),
        1.0,
        60_000,
        max_colluders=3,
        variant=variant,
        choice=choice,
        noise=noise,
        depth=2,
    )
    tree = simulate(make_sdq_script(params), table, SeededEntropy(8)).model
    assert tree.splits[0] >= 0 and tree.deviation is not None
    ends = find_nodes(table.cells, tree.splits, tree.firsts)
    true = np.zeros(tree.counts.shape)
    np.add.at(true, (ends, table.labels), 1)
    leaves = tree.splits < 0
    # The relative standard error of the standard deviation is about 0.1 for 150 counts of this
    # kurtosis, and smaller for more counts.
    assert np.std((tree.counts - true)[leaves]) == pytest.approx(tree.deviation[0], rel=0.25)
    assert np.std(tree.counts[0] - np.bincount(table.labels)) == pytest.approx(
        tree.deviation[1], rel=0.4
    )
    assert from_plain(encode_json(tree)).deviation == tree.deviation


def test_root_that_is_a_leaf_states_the_noise_of_a_leaf() -> None:
    params = SDQParams(make_schema((2, 3), 2), 0.01, 100, variant="paper")
    table = random_table((2, 3), 2, 100, seed=1)
    for seed in range(20):
        tree = simulate(make_sdq_script(params), table, SeededEntropy(seed)).model
        if len(tree) == 1:
            assert tree.deviation[0] == tree.deviation[1] > 100
            return
    raise AssertionError("no root was a leaf")


def test_tree_may_be_a_single_leaf() -> None:
    leaf = DecisionTree(
        SCHEMA,
        np.array([-1]),
        np.array([-1]),
        np.array([[math.nan] * 3]),
        np.array([[0.5, 0.25, 0.25]]),
    )
    assert from_plain(encode_json(leaf)).decide(ROWS).tolist() == [0] * 5


T = encode_json(TREE)
WRONG: dict[str, object] = {
    "nothing": None,
    "a list": [],
    "no kind": {key: part for key, part in T.items() if key != "kind"},
    "another kind": at(T, ("kind",), "vote"),
    "one more key": {**T, "code": "import os"},
    "no word of the noise": {key: part for key, part in T.items() if key != "deviation"},
    "noise of one kind of node": {**T, "deviation": [1.0]},
    "negative noise": {**T, "deviation": [1.0, -1.0]},
    "no nodes": {**T, "splits": [], "firsts": [], "counts": [], "chances": []},
    "a node without a first child": at(T, ("firsts",), T["firsts"][:-1]),
    "a node without counts": at(T, ("counts",), T["counts"][:-1]),
    "a node without chances": at(T, ("chances",), T["chances"][:-1]),
    "a feature that is not there": at(T, ("splits", 1), "height"),
    "the label as a feature": at(T, ("splits", 1), "ill"),
    "a position as a feature": at(T, ("splits", 1), 0),
    "a feature twice on a path": {
        **T,
        "splits": ["wet", "wet", None, None, None],
        "firsts": [1, 3, -1, -1, -1],
        **{key: T[key][:5] for key in ("counts", "chances")},
    },
    "too many nodes": {
        **T,
        **{key: [*T[key], T[key][-1]] for key in ("splits", "firsts", "counts", "chances")},
    },
    "children of a leaf": at(T, ("firsts", 5), 1),
    "no children of a split": at(T, ("firsts", 1), -1),
    "a child of itself": at(T, ("firsts", 1), 1),
    "children before their parent": at(T, ("firsts", 1), 0),
    "children of another": at(T, ("firsts", 1), 3),
    "children beyond the end": at(T, ("firsts", 1), 5),
    "children beyond any integer": at(T, ("firsts", 1), 10**30),
    "a parent behind its child": {
        **T,
        "splits": [None, "age", "wet", None, None],
        **{key: T[key][:5] for key in ("counts", "chances")},
        "firsts": [-1, 2, 3, -1, -1],
    },
    "children of two parents": {
        **T,
        "splits": ["wet", "age", "age", None, None],
        "firsts": [1, 3, 3, -1, -1],
        **{key: T[key][:5] for key in ("counts", "chances")},
    },
    "an only child counted from the end": at(
        {
            **T,
            "splits": ["age", None],
            "firsts": [-1, -1],
            **{key: T[key][:2] for key in ("counts", "chances")},
        },
        ("features", 0, "bins"),
        [],
    ),
    "counts of two classes": at(T, ("counts", 1), [1.0, 2.0]),
    "an infinite count": at(T, ("counts", 1, 0), math.inf),
    "a count beyond reason": at(T, ("counts", 1, 0), 1e300),
    "chances of two classes": at(T, ("chances", 1), [0.5, 0.5]),
    "chances that do not add up": at(T, ("chances", 1), [0.5, 0.4, 0.2]),
    "a negative chance": at(T, ("chances", 1), [-0.5, 1.0, 0.5]),
    "unknown chances": at(T, ("chances", 1), None),
    "a number without bins": at(T, ("features", 0, "bins"), None),
    "other bins": at(T, ("features", 0, "bins"), [3, 5]),
}


@pytest.mark.parametrize("fault", WRONG)
def test_from_plain_rejects_invalid_documents(fault: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_plain(WRONG[fault])
    assert caught.value.code == "MODEL-001"
