"""SDQ-ID3: without noise it is ID3; with noise each count costs what it says, and leaves are where counts would drown."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sdq_trees import WEATHER, CentralID3, parted, random_table, run, schema_of, summed, weather
from shoal.errors import RemoteProtocolError
from shoal.privacy.rounding import grains_up
from shoal.protocols.sdq import growth as module
from shoal.protocols.sdq.model import Tree
from shoal.protocols.sdq.paper import PaperScript
from shoal.protocols.sdq.params import Params, Table
from shoal.protocols.sdq.script import Course, Round

ARITIES = (2, 3, 4)


def a_script(epsilon: float = 3.0, arities: tuple[int, ...] = ARITIES, n_classes: int = 2, depth: int = 2, **changes: Any) -> PaperScript:
    return PaperScript(Params(schema_of(arities, n_classes), epsilon, 1000, variant="paper", depth=depth, **changes))


def learned(script: PaperScript, table: Table) -> Tree:
    databases = [table] if table.whose is None else list(parted(table))
    return script.model(*run(script, lambda asked: summed(asked, databases)))


# Without noise.


def test_the_papers_figure() -> None:
    script = PaperScript(Params(WEATHER, math.inf, 14, variant="paper"))
    tree = learned(script, weather(script.params))
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
def test_it_is_central_id3(seed: int, depth: int) -> None:
    arities, n_classes = [(2, 3, 4), (3, 3, 2, 2), (5, 1, 2)][seed % 3], 2 + seed % 2
    table = random_table(arities, n_classes, 60, seed, n_databases=5)
    script = a_script(math.inf, arities, n_classes, depth)
    oracle = CentralID3(table, arities, n_classes, min(depth, len(arities)))
    everything = np.stack(np.meshgrid(*map(np.arange, arities), indexing="ij"), axis=-1).reshape(-1, len(arities))
    columns = {f"a{j}": everything[:, j].astype(float if arities[j] == 1 else int) for j in range(len(arities))}
    assert learned(script, table).decide(columns).tolist() == [oracle.predict(row) for row in everything.tolist()]


def test_rows_of_one_class_need_no_split_below_the_root() -> None:
    table = Table(random_table(ARITIES, 2, 50, 1).cells, np.ones(50, np.int64))
    tree = learned(a_script(math.inf, depth=3), table)
    assert len(tree) == 3
    assert tree.decisions.tolist() == [1, 1, 1]


def test_nobody_teaches_nothing() -> None:
    nobody = Table(np.zeros((0, 3), np.int64), np.zeros(0, np.int64))
    tree = learned(a_script(math.inf, n_classes=4), nobody)
    assert len(tree) == 1
    assert tree.chances.tolist() == [[0.25] * 4]


# What is asked.


def test_every_round_counts_what_it_says() -> None:
    """Against counting by hand, level by level, with leaves between the splits."""
    script = a_script(depth=3, n_classes=3)
    table = random_table(ARITIES, 3, 300, seed=4)
    asked = script.round(Course())
    assert asked is not None and (asked.question, asked.size) == ("sizes/0", 1)
    assert asked.parts[0].count(table).tolist() == [300]

    # The root splits on attribute 1; of its children the second is a leaf; of the last, attribute 2 is taken.
    asked = script.round(Course(step=3, choices=(1,), leaves=(False, True, False)))
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

    asked = script.round(Course(step=4, choices=(1, 0, -1, 2)))
    assert asked is not None and asked.question == "sizes/2"
    below = [at[0] & (table.cells[:, 0] == cell) for cell in range(2)] + [at[2] & (table.cells[:, 2] == cell) for cell in range(4)]
    assert asked.parts[0].count(table).tolist() == [here.sum() for here in below]

    asked = script.round(Course(step=5, choices=(1, 0, -1, 2), leaves=(True,) * 6))
    assert asked is not None and [part.n_tables for part in asked.parts] == [1]
    assert asked.parts[0].count(table).reshape(6, 3).sum(axis=1).tolist() == [here.sum() for here in below]
    assert script.round(Course(step=6, choices=(1, 0, -1, 2, *[-1] * 6))) is None


def test_all_nodes_may_split() -> None:
    asked = a_script().round(Course(step=3, choices=(1,), leaves=(False,) * 3))
    assert asked is not None and [part.n_tables for part in asked.parts] == [4]


IMPOSSIBLE = {
    "a step that was not answered": Course(step=1),
    "a step beyond": Course(step=2),
    "a step before the first": Course(step=-1),
    "leaves of another level": Course(step=1, leaves=(True, True)),
    "leaves after sizes were asked": Course(step=0, leaves=(True,)),
    "leaves of a tree that is done": Course(step=3, choices=(-1,), leaves=(True,)),
    "choices of the future": Course(step=0, choices=(1,)),
    "a split of the last level": Course(step=5, choices=(1, 0, -1, -1), leaves=(True, False)),
    "an attribute twice": Course(step=4, choices=(1, 1, -1, -1)),
    "no such attribute": Course(step=2, choices=(7,)),
}


@pytest.mark.parametrize("fault", IMPOSSIBLE)
def test_a_course_that_no_answers_lead_to_is_refused(fault: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        a_script().round(IMPOSSIBLE[fault])
    assert caught.value.code == "SDQ-001"


def test_nodes_beyond_the_room_are_leaves_and_a_miner_who_splits_them_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    script = a_script(math.inf, depth=3)
    table = random_table(ARITIES, 2, 300, seed=4)
    monkeypatch.setattr(module, "MAX_COUNTS", 50)
    sizes: list[tuple[str, int]] = []

    def answer(asked: Round) -> Any:
        sizes.append((asked.question, asked.size))
        return summed(asked, [table])

    course, _ = run(script, answer)
    assert max(size for _, size in sizes) <= 50
    # 2 nodes of 7 rows have room, and of the 6 below them, with 4 rows each, the first three.
    assert [choice >= 0 for choice in course.choices[:9]] == [True] * 6 + [False] * 3
    leaves = (False,) * 3 + (True,) * 3
    assert script.round(Course(step=5, choices=course.choices[:3], leaves=leaves)) is not None
    with pytest.raises(RemoteProtocolError):
        script.round(Course(step=5, choices=course.choices[:3], leaves=(False,) * 4 + (True,) * 2))


# What it costs.


def test_each_question_costs_its_part_of_the_budget() -> None:
    script = a_script(epsilon=1.0, depth=2, max_rows=2, unit="person")
    assert sorted(script.prices) == ["answers/0", "answers/1", "answers/2", "sizes/0", "sizes/1", "sizes/2"]
    assert {event.epsilon for event in script.prices.values()} == {0.166666666666}
    assert [script.prices[f"answers/{depth}"].parameters["sensitivity"] for depth in range(3)] == [2 * 6, 2 * 4, 2]
    assert script.prices["sizes/1"].parameters["sensitivity"] == 2
    assert script.prices["sizes/0"].scope == script.params.scope
    assert script.prices["answers/0"].reads == ("a0", "a1", "a2", "kind")
    assert sum(grains_up(event.epsilon) for event in script.prices.values()) <= grains_up(1.0)
    assert sum(script.prices[question].epsilon * count for question, count in script.dearest) == pytest.approx(1.0)


def test_no_path_is_longer_than_there_are_attributes() -> None:
    assert a_script(epsilon=1.0, depth=9).epsilon_release == 0.125


# What the miner decides.


@pytest.mark.parametrize(
    ("changes", "variance"),
    [
        ({}, 1.0),
        ({"minimum": 9, "max_colluders": 4}, 10 / 5),
        ({"trust": "local"}, 10.0),
        ({"noise": "two-selected", "max_colluders": 3}, 1.0),
    ],
)
def test_a_node_is_a_leaf_where_noise_drowns_its_counts(changes: dict[str, Any], variance: float) -> None:
    script = a_script(epsilon=0.6, depth=2, **changes)
    deviation = math.sqrt(variance * 0.5 / math.sinh(0.05) ** 2)
    enough = math.ceil(deviation * 4 * 2)
    assert script.advance(Course(), (np.array([enough]),)).leaves == (False,)
    assert script.advance(Course(), (np.array([enough - 1]),)).leaves == (True,)
    # On level 1, below attribute 2, the largest arity left is 3.
    enough = math.ceil(deviation * 3 * 2)
    sizes = np.array([enough, enough - 1, -5, enough])
    assert script.advance(Course(step=2, choices=(2,)), (np.array([0]), np.array([0]), sizes)).leaves == (False, True, True, False)


def chosen(rows: list[list[int]]) -> int:
    """What a root is split on, by the tables of attributes of 2, 3 and 4 cells."""
    return a_script().advance(Course(step=1, leaves=(False,)), (np.array([1000]), np.array(rows).reshape(-1))).choices[0]


def mixed(n_cells: int) -> list[list[int]]:
    """120 rows, half of them of each class in every cell."""
    return [[120 // n_cells, 60 // n_cells, 60 // n_cells]] * n_cells


def test_the_attribute_of_largest_gain_is_taken() -> None:
    pure, other = [40, 40, 0], [40, 0, 40]
    assert chosen([[60, 40, 20], [60, 20, 40], *mixed(3), *mixed(4)]) == 0
    assert chosen([[60, 40, 20], [60, 20, 40], pure, other, [40, 20, 20], *mixed(4)]) == 1
    assert chosen([[60, 40, 20], [60, 20, 40], *mixed(3), [30, 30, 0], [30, 0, 30], [30, 15, 15], [30, 15, 15]]) == 2


def test_of_equal_ones_the_first_is() -> None:
    assert chosen([*mixed(2), *mixed(3), *mixed(4)]) == 0
    assert chosen([*mixed(2), [40, 40, 0], [40, 0, 40], [40, 40, 0], [30, 30, 0], [30, 0, 30], [30, 30, 0], [30, 30, 0]]) == 1
    # Six of eleven rows of every cell are of one class: equal, though the sums of floats are not.
    elevenths = [31, 29, 16, 3, 41, 1, 4, 6, 49]
    assert chosen([[11 * n, 6 * n, 5 * n] for n in elevenths]) == 0


def test_noisy_counts_are_clamped() -> None:
    """A cell of a negative size is empty, a class has no fewer rows than none and no more than its cell."""
    assert chosen([*mixed(2), [-7, 4, 9], [-1, -3, 2], [0, 5, 5], *mixed(4)]) == 1
    assert chosen([*mixed(2), *mixed(3), [30, 55, -8], [30, 45, -8], [30, -3, 90], [0, 0, 0]]) == 2


def test_leaves_are_not_split() -> None:
    script = a_script()
    answers = (np.array([100]), np.zeros(27, np.int64), np.array([50] * 3), np.arange(2 * 2 + 6 * 3))
    course = script.advance(Course(step=3, choices=(1,), leaves=(True, False, True)), answers)
    assert course.choices[0:2] == (1, -1) and course.choices[3] == -1 and course.choices[2] in (0, 2)
    assert (course.step, course.leaves) == (4, ())


# What is learned.


def test_a_tree_keeps_its_noisy_counts() -> None:
    """The root's are the mean of what its three attributes say; an empty leaf predicts as its parent does."""
    script = a_script(depth=1)
    rows = np.array([[9, 1, 8]] * 2 + [[6, 2, 4]] * 3 + [[4, -1, 5]] * 4)
    answers = (np.array([18]), rows.reshape(-1), np.array([9, 9]), np.array([-3, 0, 6, -2]))
    tree = script.model(Course(step=4, choices=(0, -1, -1)), answers)
    assert tree.counts.tolist() == [[4 / 3, 16.0], [-3, 0], [6, -2]]
    assert np.allclose(tree.chances, [[1 / 13, 12 / 13], [1 / 13, 12 / 13], [1, 0]])
    assert tree.splits.tolist() == [0, -1, -1]
    assert tree.firsts.tolist() == [1, -1, -1]


def test_an_empty_leaf_predicts_as_its_own_parent_does() -> None:
    script = a_script(arities=(2, 2), depth=2)
    root, below = [[9, 1, 8]] * 4, [[4, 3, 1]] * 2
    answers = (np.array([18]), np.array(root).reshape(-1), np.array([9, 9]), np.array([2, 7, *np.array(below).reshape(-1)]),
               np.array([0, 4]), np.array([-1, 0, 5, 5]))  # fmt: skip
    tree = script.model(Course(step=6, choices=(0, -1, 1, -1, -1)), answers)
    assert np.allclose(tree.chances, [[1 / 9, 8 / 9], [2 / 9, 7 / 9], [0.75, 0.25], [0.75, 0.25], [0.5, 0.5]])


def test_a_root_may_be_a_leaf() -> None:
    tree = a_script(n_classes=3).model(Course(step=2, choices=(-1,)), (np.array([3]), np.array([1, 5, -2])))
    assert tree.counts.tolist() == [[1, 5, -2]]
    assert np.allclose(tree.chances, [[1 / 6, 5 / 6, 0]])
