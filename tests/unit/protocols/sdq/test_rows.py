"""Rows that nobody holds are dealt evenly and at random."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.rows import deal


@pytest.mark.parametrize(("n_rows", "n_databases"), [(100, 10), (103, 10), (3, 3), (3, 7), (0, 4)])
def test_each_database_gets_as_many_rows_as_any_other_or_one_more(n_rows: int, n_databases: int) -> None:
    sizes = np.bincount(deal(n_rows, n_databases, SeededEntropy(1)), minlength=n_databases)
    assert sizes.sum() == n_rows and sizes.max() - sizes.min() <= 1 and len(sizes) == n_databases


def test_the_source_decides_who_gets_which() -> None:
    first, again, other = (deal(200, 5, SeededEntropy(seed)) for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()
    # Neighbours would always differ if rows went round in turn.
    assert (first[:-1] == first[1:]).any()
