"""Rows without holders are assigned evenly and at random."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.params import assign_rows


@pytest.mark.parametrize(("n_rows", "n_databases"), [(100, 10), (103, 10), (3, 3), (3, 7), (0, 4)])
def test_database_sizes_differ_by_at_most_one(n_rows: int, n_databases: int) -> None:
    sizes = np.bincount(assign_rows(n_rows, n_databases, SeededEntropy(1)), minlength=n_databases)
    assert sizes.sum() == n_rows and sizes.max() - sizes.min() <= 1 and len(sizes) == n_databases


def test_assignment_of_rows_follows_from_the_entropy() -> None:
    first, again, other = (assign_rows(200, 5, SeededEntropy(seed)) for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()
    # Neighbours would always differ if rows were assigned in turn.
    assert (first[:-1] == first[1:]).any()
