"""The winner of several equal outcomes."""

from __future__ import annotations

import numpy as np

from shoal.protocols.pfds.paper.tree import choose_winners


def test_largest_count_wins_for_any_sign() -> None:
    assert choose_winners(np.array([[1, 5, 2], [-7, -9, -8], [0, 0, 4]], np.int32)).tolist() == [
        1,
        0,
        2,
    ]
    assert choose_winners(np.zeros((0, 3))).tolist() == []


def test_equal_outcomes_win_equally_often() -> None:
    n = 30_000
    tally = np.tile([2, 2, 1, 2], (n, 1))
    for rows in (slice(None), slice(0, None, 2), slice(1, None, 2)):
        won = np.bincount(choose_winners(tally)[rows], minlength=4) / len(range(n)[rows])
        assert won[2] == 0
        assert np.abs(won[[0, 1, 3]] - 1 / 3).max() < 0.02


def test_winners_do_not_depend_on_the_type_of_counts() -> None:
    tally = np.zeros((100, 2), np.int32)
    assert choose_winners(tally).tolist() == choose_winners(tally.astype(np.int64)).tolist()
