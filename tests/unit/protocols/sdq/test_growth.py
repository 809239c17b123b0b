"""Trees that grow: where nodes and tables lie, which trees cannot be, and that none grows too large."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.errors import RemoteProtocolError
from shoal.protocols.sdq import growth as module
from shoal.protocols.sdq.growth import grow

ARITIES = (2, 3, 4)


def test_nothing_chosen_is_an_open_root() -> None:
    growth = grow((), ARITIES, 2, 3)
    assert (growth.depth, len(growth.open), growth.open.start, growth.open.n_left) == (0, 1, 0, 3)
    assert growth.splits.tolist() == growth.firsts.tolist() == [-1]
    assert growth.open.widest.tolist() == [4]


def test_nodes_are_numbered_in_order_of_breadth() -> None:
    growth = grow((1, 2, -1, 0), ARITIES, 2, 3)
    assert growth.splits.tolist() == [1, 2, -1, 0, -1, -1, -1, -1, -1, -1]
    assert growth.firsts.tolist() == [1, 4, -1, 8, -1, -1, -1, -1, -1, -1]
    assert growth.parents.tolist() == [0, 0, 0, 1, 1, 1, 1, 3, 3]
    assert growth.chosen(1).tolist() == [2, -1, 0]
    assert (growth.depth, growth.open.start, growth.open.n_left) == (2, 4, 1)
    assert growth.open.paths.tolist() == [[1, 2]] * 4 + [[1, 0]] * 2
    assert growth.open.widest.tolist() == [2] * 4 + [4] * 2


def test_a_tree_of_leaves_is_done() -> None:
    growth = grow((-1,), ARITIES, 2, 3)
    assert (growth.depth, len(growth.open)) == (1, 0)


def test_tables_lie_one_behind_the_other() -> None:
    level = grow((1, -1, -1, -1), (2, 3, 4), 2, 3).levels[1]
    tables = level.tables(np.array([True, False, True]))
    assert tables.first_rows.tolist() == [[0, -1, 2], [6, -1, 8]]
    assert tables.n_rows == 12
    assert tables.starts.tolist() == [0, 6]
    nothing = level.tables(np.array([False] * 3))
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
def test_what_cannot_be_is_refused(fault: str) -> None:
    with pytest.raises(RemoteProtocolError, match="cannot be") as caught:
        grow(IMPOSSIBLE[fault], ARITIES, 2, 2)
    assert caught.value.code == "SDQ-001"


def test_the_same_attribute_on_two_paths_is_possible() -> None:
    assert grow((1, 0, -1, 0, *[-1] * 4), ARITIES, 2, 2).depth == 3


def test_no_round_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root of attribute 1 has 3 nodes; a leaf takes 2 counts, a split 6 rows of 3."""
    level = grow((1,), ARITIES, 2, 3).open
    wanted = np.array([True, False, True])
    monkeypatch.setattr(module, "MAX_COUNTS", 18 + 2 + 18)
    assert level.room(wanted).tolist() == [True, False, True]
    monkeypatch.setattr(module, "MAX_COUNTS", 18 + 2 + 18 - 1)
    assert level.room(wanted).tolist() == [True, False, False]
    monkeypatch.setattr(module, "MAX_COUNTS", 21)
    assert level.room(wanted).tolist() == [False, False, False]
    with pytest.raises(RemoteProtocolError, match="must be a leaf"):
        grow((1, 0, -1, -1), ARITIES, 2, 3)


def test_the_leaves_of_the_next_level_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is chosen: children of all splits take at most so many counts as leaves."""
    monkeypatch.setattr(module, "MAX_COUNTS", 400)
    growth = grow((), (4, 4, 4, 4), 3, 4)
    choices: tuple[int, ...] = ()
    for depth in range(4):
        may = growth.open.room(np.ones(len(growth.open), np.bool_))
        assert len(growth.open) * 3 <= 400
        choices = (*choices, *np.where(may, depth, -1).tolist())
        growth = grow(choices, (4, 4, 4, 4), 3, 4)
    assert 16 < len(growth.splits) < 341


def test_no_tree_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    level = grow((1,), ARITIES, 2, 3).open
    monkeypatch.setattr(module, "MAX_NODES", 4 + 12 - 1)
    assert level.room(np.array([True, True, True])).tolist() == [True, True, False]
