"""Who wins where several outcomes are equal."""

from __future__ import annotations

import numpy as np

from shoal.protocols.pfds.ties import winners


def test_the_most_wins_whatever_its_sign() -> None:
    assert winners(np.array([[1, 5, 2], [-7, -9, -8], [0, 0, 4]], np.int32)).tolist() == [1, 0, 2]
    assert winners(np.zeros((0, 3))).tolist() == []


def test_equal_outcomes_win_equally_often_and_no_other_does() -> None:
    n = 30_000
    tally = np.tile([2, 2, 1, 2], (n, 1))
    for rows in (slice(None), slice(0, None, 2), slice(1, None, 2)):
        won = np.bincount(winners(tally)[rows], minlength=4) / len(range(n)[rows])
        assert won[2] == 0
        assert np.abs(won[[0, 1, 3]] - 1 / 3).max() < 0.02


def test_everyone_finds_the_same_winners() -> None:
    tally = np.zeros((100, 2), np.int32)
    assert winners(tally).tolist() == winners(tally.astype(np.int64)).tolist()
