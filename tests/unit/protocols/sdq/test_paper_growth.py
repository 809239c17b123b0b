"""Tree growth: positions of nodes and tables, impossible choices, and size limits."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import RemoteProtocolError
from shoal.protocols.sdq import paper as module
from shoal.protocols.sdq.paper import grow_tree

ARITIES = (2, 3, 4)


def test_tree_without_choices_is_an_open_root() -> None:
    growth = grow_tree((), ARITIES, 2, 3)
    assert (
        growth.depth,
        len(growth.open_level),
        growth.open_level.start,
        growth.open_level.n_available,
    ) == (0, 1, 0, 3)
    assert growth.splits.tolist() == growth.first_children.tolist() == [-1]
    assert growth.open_level.largest_arities.tolist() == [4]


def test_nodes_are_numbered_breadth_first() -> None:
    growth = grow_tree((1, 2, -1, 0), ARITIES, 2, 3)
    assert growth.splits.tolist() == [1, 2, -1, 0, -1, -1, -1, -1, -1, -1]
    assert growth.first_children.tolist() == [1, 4, -1, 8, -1, -1, -1, -1, -1, -1]
    assert growth.parents.tolist() == [0, 0, 0, 1, 1, 1, 1, 3, 3]
    assert growth.read_choices(1).tolist() == [2, -1, 0]
    assert (growth.depth, growth.open_level.start, growth.open_level.n_available) == (2, 4, 1)
    assert growth.open_level.paths.tolist() == [[1, 2]] * 4 + [[1, 0]] * 2
    assert growth.open_level.largest_arities.tolist() == [2] * 4 + [4] * 2


def test_tree_of_leaves_has_no_open_level() -> None:
    growth = grow_tree((-1,), ARITIES, 2, 3)
    assert (growth.depth, len(growth.open_level)) == (1, 0)


def test_tables_of_a_level_are_contiguous() -> None:
    level = grow_tree((1, -1, -1, -1), (2, 3, 4), 2, 3).levels[1]
    tables = level.lay_out_tables(np.array([True, False, True]))
    assert tables.first_rows.tolist() == [[0, -1, 2], [6, -1, 8]]
    assert tables.n_rows == 12
    assert tables.starts.tolist() == [0, 6]
    nothing = level.lay_out_tables(np.array([False] * 3))
    assert (nothing.first_rows.shape, nothing.n_rows) == ((0, 3), 0)


IMPOSSIBLE: dict[str, tuple[int, ...]] = {
    "an attribute that is not there": (3,),
    "an attribute before the first": (-2,),
    "an attribute beyond any integer": (10**30,),
    "an attribute twice on a path": (1, -1, 1, -1),
    "a level that is not whole": (1, -1, -1),
    "more than its nodes": (1, -1, -1, -1, 0),
    "more than a leaf": (-1, -1),
    "a split below the depth": (1, 0, -1, -1, 2, -1),
}


@pytest.mark.parametrize("fault", IMPOSSIBLE)
def test_impossible_choices_are_rejected(fault: str) -> None:
    with pytest.raises(RemoteProtocolError, match="impossible") as caught:
        grow_tree(IMPOSSIBLE[fault], ARITIES, 2, 2)
    assert caught.value.code == "SDQ-001"


def test_attribute_may_occur_on_two_paths() -> None:
    assert grow_tree((1, 0, -1, 0, *[-1] * 4), ARITIES, 2, 2).depth == 3


def test_allow_splits_limits_counts_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root of attribute 1 has 3 nodes; a leaf takes 2 counts, a split 6 rows of 3."""
    level = grow_tree((1,), ARITIES, 2, 3).open_level
    wanted = np.array([True, False, True])
    monkeypatch.setattr(module, "MAX_COUNTS", 18 + 2 + 18)
    assert level.allow_splits(wanted).tolist() == [True, False, True]
    monkeypatch.setattr(module, "MAX_COUNTS", 18 + 2 + 18 - 1)
    assert level.allow_splits(wanted).tolist() == [True, False, False]
    monkeypatch.setattr(module, "MAX_COUNTS", 21)
    assert level.allow_splits(wanted).tolist() == [False, False, False]
    with pytest.raises(RemoteProtocolError, match="must be a leaf"):
        grow_tree((1, 0, -1, -1), ARITIES, 2, 3)


def test_allow_splits_leaves_room_for_leaves_of_the_next_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For any choice, the children of all splits fit as leaves."""
    monkeypatch.setattr(module, "MAX_COUNTS", 400)
    growth = grow_tree((), (4, 4, 4, 4), 3, 4)
    choices: tuple[int, ...] = ()
    for depth in range(4):
        may = growth.open_level.allow_splits(np.ones(len(growth.open_level), np.bool_))
        assert len(growth.open_level) * 3 <= 400
        choices = (*choices, *np.where(may, depth, -1).tolist())
        growth = grow_tree(choices, (4, 4, 4, 4), 3, 4)
    assert 16 < len(growth.splits) < 341


def test_allow_splits_limits_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    level = grow_tree((1,), ARITIES, 2, 3).open_level
    monkeypatch.setattr(module, "MAX_NODES", 4 + 12 - 1)
    assert level.allow_splits(np.array([True, True, True])).tolist() == [True, True, False]
