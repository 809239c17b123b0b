"""SDQ-ID3: equal to ID3 without noise; prices; leaves if noise exceeds the counts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shoal.errors import RemoteProtocolError
from shoal.privacy.rounding import grains_up
from shoal.protocols.sdq import paper as module
from shoal.protocols.sdq.model import DecisionTree
from shoal.protocols.sdq.paper import SDQPaperScript
from shoal.protocols.sdq.params import CellTable, SDQParams
from shoal.protocols.sdq.script import SDQRound, SDQScriptState
from tests.support.sdq import (
    WEATHER,
    CentralID3,
    make_schema,
    parted,
    random_table,
    run,
    summed,
    weather,
)

ARITIES = (2, 3, 4)


def make_script(
    epsilon: float = 3.0,
    arities: tuple[int, ...] = ARITIES,
    n_classes: int = 2,
    depth: int = 2,
    **changes: Any,
) -> SDQPaperScript:
    return SDQPaperScript(
        SDQParams(
            make_schema(arities, n_classes), epsilon, 1000, variant="paper", depth=depth, **changes
        )
    )


def learn_tree(script: SDQPaperScript, table: CellTable) -> DecisionTree:
    databases = [table] if table.owners is None else list(parted(table))
    return script.build_model(*run(script, lambda asked: summed(asked, databases)))


# Without noise.


def test_tree_equals_figure_of_paper() -> None:
    script = SDQPaperScript(SDQParams(WEATHER, math.inf, 14, variant="paper"))
    tree = learn_tree(script, weather(script.params))
    assert tree.to_text() == (
        "outlook?  [No 5, Yes 9]\n"
        "├─ Overcast → Yes  [No 0, Yes 4]\n"
        "├─ Rain: wind?  [No 2, Yes 3]\n"
        "│  ├─ Strong → No  [No 2, Yes 0]\n"
        "│  └─ Weak → Yes  [No 0, Yes 3]\n"
        "└─ Sunny: humidity?  [No 3, Yes 2]\n"
        "   ├─ High → No  [No 3, Yes 0]\n"
        "   └─ Normal → Yes  [No 0, Yes 2]"
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_tree_without_noise_equals_central_id3(seed: int, depth: int) -> None:
    arities, n_classes = [(2, 3, 4), (3, 3, 2, 2), (5, 1, 2)][seed % 3], 2 + seed % 2
    table = random_table(arities, n_classes, 60, seed, n_databases=5)
    script = make_script(math.inf, arities, n_classes, depth)
    oracle = CentralID3(table, arities, n_classes, min(depth, len(arities)))
    everything = np.stack(np.meshgrid(*map(np.arange, arities), indexing="ij"), axis=-1).reshape(
        -1, len(arities)
    )
    columns = {
        f"a{j}": everything[:, j].astype(float if arities[j] == 1 else int)
        for j in range(len(arities))
    }
    assert learn_tree(script, table).decide(columns).tolist() == [
        oracle.predict(row) for row in everything.tolist()
    ]


def test_rows_of_one_class_are_not_split_below_the_root() -> None:
    table = CellTable(random_table(ARITIES, 2, 50, 1).cells, np.ones(50, np.int64))
    tree = learn_tree(make_script(math.inf, depth=3), table)
    assert len(tree) == 3
    assert tree.decisions.tolist() == [1, 1, 1]


def test_tree_of_empty_tables_is_one_leaf_with_equal_chances() -> None:
    nobody = CellTable(np.zeros((0, 3), np.int64), np.zeros(0, np.int64))
    tree = learn_tree(make_script(math.inf, n_classes=4), nobody)
    assert len(tree) == 1
    assert tree.chances.tolist() == [[0.25] * 4]


# Rounds.


def test_each_round_counts_as_by_hand() -> None:
    """Compare with counting by hand, level by level, with leaves between splits."""
    script = make_script(depth=3, n_classes=3)
    table = random_table(ARITIES, 3, 300, seed=4)
    asked = script.make_round(SDQScriptState())
    assert asked is not None and (asked.question, asked.size) == ("sizes/0", 1)
    assert asked.parts[0].count(table).tolist() == [300]

    # The root splits on attribute 1; its second child is a leaf; its last splits on attribute 2.
    asked = script.make_round(SDQScriptState(step=3, choices=(1,), leaves=(False, True, False)))
    assert asked is not None and asked.question == "answers/1"
    leaf, tables = asked.parts
    assert (leaf.size, leaf.n_tables, tables.size, tables.n_tables) == (3, 1, 2 * 6 * 4, 4)
    at = [table.cells[:, 1] == cell for cell in range(3)]
    assert leaf.count(table).tolist() == np.bincount(table.labels[at[1]], minlength=3).tolist()
    expected = [
        [here.sum(), *np.bincount(table.labels[here], minlength=3)]
        for node in (0, 2)
        for attribute, arity in ((0, 2), (2, 4))
        for here in [at[node] & (table.cells[:, attribute] == cell) for cell in range(arity)]
    ]
    assert tables.count(table).reshape(-1, 4).tolist() == expected

    asked = script.make_round(SDQScriptState(step=4, choices=(1, 0, -1, 2)))
    assert asked is not None and asked.question == "sizes/2"
    below = [at[0] & (table.cells[:, 0] == cell) for cell in range(2)] + [
        at[2] & (table.cells[:, 2] == cell) for cell in range(4)
    ]
    assert asked.parts[0].count(table).tolist() == [here.sum() for here in below]

    asked = script.make_round(SDQScriptState(step=5, choices=(1, 0, -1, 2), leaves=(True,) * 6))
    assert asked is not None and [part.n_tables for part in asked.parts] == [1]
    assert asked.parts[0].count(table).reshape(6, 3).sum(axis=1).tolist() == [
        here.sum() for here in below
    ]
    assert script.make_round(SDQScriptState(step=6, choices=(1, 0, -1, 2, *[-1] * 6))) is None


def test_round_without_leaves_has_tables_only() -> None:
    asked = make_script().make_round(SDQScriptState(step=3, choices=(1,), leaves=(False,) * 3))
    assert asked is not None and [part.n_tables for part in asked.parts] == [4]


IMPOSSIBLE = {
    "a step that was not answered": SDQScriptState(step=1),
    "a step beyond": SDQScriptState(step=2),
    "a step before the first": SDQScriptState(step=-1),
    "leaves of another level": SDQScriptState(step=1, leaves=(True, True)),
    "leaves after sizes were asked": SDQScriptState(step=0, leaves=(True,)),
    "leaves of a tree that is done": SDQScriptState(step=3, choices=(-1,), leaves=(True,)),
    "choices of the future": SDQScriptState(step=0, choices=(1,)),
    "a split of the last level": SDQScriptState(
        step=5, choices=(1, 0, -1, -1), leaves=(True, False)
    ),
    "an attribute twice": SDQScriptState(step=4, choices=(1, 1, -1, -1)),
    "no such attribute": SDQScriptState(step=2, choices=(7,)),
}


@pytest.mark.parametrize("fault", IMPOSSIBLE)
def test_impossible_script_states_are_rejected(fault: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        make_script().make_round(IMPOSSIBLE[fault])
    assert caught.value.code == "SDQ-001"


def test_nodes_beyond_the_limit_are_leaves_and_splitting_them_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = make_script(math.inf, depth=3)
    table = random_table(ARITIES, 2, 300, seed=4)
    monkeypatch.setattr(module, "MAX_COUNTS", 50)
    sizes: list[tuple[str, int]] = []

    def answer(asked: SDQRound) -> Any:
        sizes.append((asked.question, asked.size))
        return summed(asked, [table])

    course, _ = run(script, answer)
    assert max(size for _, size in sizes) <= 50
    # 2 nodes of 7 rows have room, and of the 6 below them, with 4 rows each, the first three.
    assert [choice >= 0 for choice in course.choices[:9]] == [True] * 6 + [False] * 3
    leaves = (False,) * 3 + (True,) * 3
    assert (
        script.make_round(SDQScriptState(step=5, choices=course.choices[:3], leaves=leaves))
        is not None
    )
    with pytest.raises(RemoteProtocolError):
        script.make_round(
            SDQScriptState(step=5, choices=course.choices[:3], leaves=(False,) * 4 + (True,) * 2)
        )


# Prices.


def test_each_question_costs_its_part_of_the_budget() -> None:
    script = make_script(epsilon=1.0, depth=2, max_rows=2, unit="person")
    assert sorted(script.prices) == [
        "answers/0",
        "answers/1",
        "answers/2",
        "sizes/0",
        "sizes/1",
        "sizes/2",
    ]
    assert {event.epsilon for event in script.prices.values()} == {0.166666666666}
    assert [script.prices[f"answers/{depth}"].parameters["sensitivity"] for depth in range(3)] == [
        2 * 6,
        2 * 4,
        2,
    ]
    assert script.prices["sizes/1"].parameters["sensitivity"] == 2
    assert script.prices["sizes/0"].scope == script.params.scope
    assert script.prices["answers/0"].reads == ("a0", "a1", "a2", "kind")
    assert sum(grains_up(event.epsilon) for event in script.prices.values()) <= grains_up(1.0)
    assert sum(
        script.prices[question].epsilon * count for question, count in script.costliest_questions
    ) == pytest.approx(1.0)


def test_budget_is_divided_by_at_most_the_number_of_attributes() -> None:
    assert make_script(epsilon=1.0, depth=9).epsilon_release == 0.125


# Decisions of the miner.


@pytest.mark.parametrize(
    ("changes", "variance"),
    [
        ({}, 1.0),
        ({"minimum": 9, "max_colluders": 4}, 10 / 5),
        ({"trust": "local"}, 10.0),
        ({"noise": "two-selected", "max_colluders": 3}, 1.0),
    ],
)
def test_node_is_a_leaf_if_noise_exceeds_its_counts(
    changes: dict[str, Any], variance: float
) -> None:
    script = make_script(epsilon=0.6, depth=2, **changes)
    deviation = math.sqrt(variance * 0.5 / math.sinh(0.05) ** 2)
    enough = math.ceil(deviation * 4 * 2)
    assert script.advance(SDQScriptState(), (np.array([enough]),)).leaves == (False,)
    assert script.advance(SDQScriptState(), (np.array([enough - 1]),)).leaves == (True,)
    # On level 1, below attribute 2, the largest arity left is 3.
    enough = math.ceil(deviation * 3 * 2)
    sizes = np.array([enough, enough - 1, -5, enough])
    assert script.advance(
        SDQScriptState(step=2, choices=(2,)), (np.array([0]), np.array([0]), sizes)
    ).leaves == (False, True, True, False)


def choose_split(rows: list[list[int]]) -> int:
    """Return the split of the root from tables of attributes with 2, 3 and 4 cells."""
    return (
        make_script()
        .advance(
            SDQScriptState(step=1, leaves=(False,)), (np.array([1000]), np.array(rows).reshape(-1))
        )
        .choices[0]
    )


def make_mixed_rows(n_cells: int) -> list[list[int]]:
    """Return counts of 120 rows; each cell contains both classes equally."""
    return [[120 // n_cells, 60 // n_cells, 60 // n_cells]] * n_cells


def test_split_is_the_attribute_of_largest_gain() -> None:
    pure, other = [40, 40, 0], [40, 0, 40]
    assert choose_split([[60, 40, 20], [60, 20, 40], *make_mixed_rows(3), *make_mixed_rows(4)]) == 0
    assert (
        choose_split([[60, 40, 20], [60, 20, 40], pure, other, [40, 20, 20], *make_mixed_rows(4)])
        == 1
    )
    assert (
        choose_split(
            [
                [60, 40, 20],
                [60, 20, 40],
                *make_mixed_rows(3),
                [30, 30, 0],
                [30, 0, 30],
                [30, 15, 15],
                [30, 15, 15],
            ]
        )
        == 2
    )


def test_first_of_equal_attributes_is_chosen() -> None:
    assert choose_split([*make_mixed_rows(2), *make_mixed_rows(3), *make_mixed_rows(4)]) == 0
    assert (
        choose_split(
            [
                *make_mixed_rows(2),
                [40, 40, 0],
                [40, 0, 40],
                [40, 40, 0],
                [30, 30, 0],
                [30, 0, 30],
                [30, 30, 0],
                [30, 30, 0],
            ]
        )
        == 1
    )
    # Six of eleven rows of every cell are of one class: equal, though the sums of floats are not.
    elevenths = [31, 29, 16, 3, 41, 1, 4, 6, 49]
    assert choose_split([[11 * n, 6 * n, 5 * n] for n in elevenths]) == 0


def test_noisy_counts_are_clamped() -> None:
    """A cell of negative size is empty; a class has between 0 rows and the rows of its cell."""
    assert (
        choose_split([*make_mixed_rows(2), [-7, 4, 9], [-1, -3, 2], [0, 5, 5], *make_mixed_rows(4)])
        == 1
    )
    assert (
        choose_split(
            [
                *make_mixed_rows(2),
                *make_mixed_rows(3),
                [30, 55, -8],
                [30, 45, -8],
                [30, -3, 90],
                [0, 0, 0],
            ]
        )
        == 2
    )


def test_advance_splits_no_leaves() -> None:
    script = make_script()
    answers = (
        np.array([100]),
        np.zeros(27, np.int64),
        np.array([50] * 3),
        np.arange(2 * 2 + 6 * 3),
    )
    course = script.advance(
        SDQScriptState(step=3, choices=(1,), leaves=(True, False, True)), answers
    )
    assert (
        course.choices[0:2] == (1, -1) and course.choices[3] == -1 and course.choices[2] in (0, 2)
    )
    assert (course.step, course.leaves) == (4, ())


# The learned tree.


def test_tree_keeps_its_noisy_counts() -> None:
    """Counts of the root are the mean over its attributes; an empty leaf copies its parent."""
    script = make_script(depth=1)
    rows = np.array([[9, 1, 8]] * 2 + [[6, 2, 4]] * 3 + [[4, -1, 5]] * 4)
    answers = (np.array([18]), rows.reshape(-1), np.array([9, 9]), np.array([-3, 0, 6, -2]))
    tree = script.build_model(SDQScriptState(step=4, choices=(0, -1, -1)), answers)
    assert tree.counts.tolist() == [[4 / 3, 16.0], [-3, 0], [6, -2]]
    assert np.allclose(tree.chances, [[1 / 13, 12 / 13], [1 / 13, 12 / 13], [1, 0]])
    assert tree.splits.tolist() == [0, -1, -1]
    assert tree.firsts.tolist() == [1, -1, -1]


def test_empty_leaf_predicts_as_its_parent() -> None:
    script = make_script(arities=(2, 2), depth=2)
    root, below = [[9, 1, 8]] * 4, [[4, 3, 1]] * 2
    answers = (
        np.array([18]),
        np.array(root).reshape(-1),
        np.array([9, 9]),
        np.array([2, 7, *np.array(below).reshape(-1)]),
        np.array([0, 4]),
        np.array([-1, 0, 5, 5]),
    )
    tree = script.build_model(SDQScriptState(step=6, choices=(0, -1, 1, -1, -1)), answers)
    assert np.allclose(
        tree.chances, [[1 / 9, 8 / 9], [2 / 9, 7 / 9], [0.75, 0.25], [0.75, 0.25], [0.5, 0.5]]
    )


def test_tree_may_be_a_single_leaf() -> None:
    tree = make_script(n_classes=3).build_model(
        SDQScriptState(step=2, choices=(-1,)), (np.array([3]), np.array([1, 5, -2]))
    )
    assert tree.counts.tolist() == [[1, 5, -2]]
    assert np.allclose(tree.chances, [[1 / 6, 5 / 6, 0]])
