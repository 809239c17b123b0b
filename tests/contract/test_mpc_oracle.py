"""The MPyC oracle: its tree for the paper's Fig. 1 is the textbook tree."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from shoal.entropy import SeededEntropy
from shoal.protocols.base import run_local
from shoal.protocols.sdq import model
from shoal.protocols.sdq.paper import SDQPaperScript
from shoal.protocols.sdq.params import CellTable, SDQParams
from shoal.simulation.machines import make_sdq_machines
from tests.support.mpc import PLAY_TENNIS, Tree, play_tennis, secure_id3
from tests.support.sdq import Bare, make_schema


def plain_id3(
    rows: list[list[int]],
    labels: list[int],
    arities: list[int],
    left: list[int],
    depth: int,
    majority: int,
) -> Tree:
    """Return the ID3 tree of plain rows, without MPC."""
    if not rows:
        return majority
    counts = Counter(labels)
    majority = min(counts, key=lambda label: (-counts[label], label))
    if len(counts) == 1 or not left or depth == 0:
        return majority

    def compute_remaining_entropy(a: int) -> float:
        parts = [
            Counter(label for row, label in zip(rows, labels, strict=True) if row[a] == value)
            for value in range(arities[a])
        ]
        return sum(
            -count * math.log2(count / part.total()) for part in parts for count in part.values()
        )

    best = min(left, key=lambda a: (round(compute_remaining_entropy(a), 6), a))
    children = []
    for value in range(arities[best]):
        inside = [i for i, row in enumerate(rows) if row[best] == value]
        others = [a for a in left if a != best]
        children.append(
            plain_id3(
                [rows[i] for i in inside],
                [labels[i] for i in inside],
                arities,
                others,
                depth - 1,
                majority,
            )
        )
    return best, tuple(children)


def test_oracle_learns_tree_of_fig_1() -> None:
    rows, labels = play_tennis()
    *arities, n_classes = map(len, PLAY_TENNIS.values())
    assert (len(rows), sum(labels)) == (14, 9)
    tree = secure_id3(rows, labels, arities, n_classes, depth=4)
    outlook, humidity, wind, no, yes = 0, 2, 3, 0, 1
    assert tree == (outlook, ((humidity, (no, yes)), yes, (wind, (yes, no))))
    assert secure_id3(rows, labels, arities, n_classes, depth=1) == (outlook, (no, yes, yes))


def test_oracle_agrees_with_plain_id3() -> None:
    random = np.random.default_rng(5)
    arities = [3, 2, 4]
    rows = np.stack([random.integers(0, arity, 24) for arity in arities], axis=1).tolist()
    labels = random.integers(0, 3, 24).tolist()
    for depth in (2, 3):
        assert secure_id3(rows, labels, arities, 3, depth) == plain_id3(
            rows, labels, arities, [0, 1, 2], depth, 0
        )


def to_oracle_tree(tree: model.DecisionTree, node: int = 0) -> Tree:
    """Return a tree in the form of the oracle."""
    if tree.splits[node] < 0:
        return int(tree.decisions[node])
    return int(tree.splits[node]), tuple(
        to_oracle_tree(tree, child) for child in tree.children(node)
    )


def test_secure_sum_learns_tree_of_mpyc() -> None:
    rows, labels = play_tennis()
    *arities, n_classes = map(len, PLAY_TENNIS.values())
    tables = [CellTable(np.array(rows[i::3]), np.array(labels[i::3])) for i in range(3)]
    params = SDQParams(
        make_schema(arities, n_classes),
        math.inf,
        14,
        n_databases=3,
        minimum=3,
        variant="paper",
        depth=4,
    )
    aggregator, peers = make_sdq_machines(SDQPaperScript(params), tables, peer=Bare)
    outcome = run_local(aggregator, peers, SeededEntropy(1))
    learned = outcome.results["aggregator"].model  # type: ignore[attr-defined]
    assert to_oracle_tree(learned) == secure_id3(rows, labels, arities, n_classes, depth=4)
