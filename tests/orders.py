"""Whether two orders have anything to do with each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def chance_of(places: Sequence[tuple[int, int]]) -> float:
    """How likely it is that two orders without any link agree, or disagree, as much as these do: exactly, by Kendall's rank correlation."""
    n = len(places)
    ranks = np.argsort(np.argsort(np.array(places), axis=0), axis=0)
    second = ranks[np.argsort(ranks[:, 0]), 1]
    n_inversions = sum(int((second[i + 1 :] < second[i]).sum()) for i in range(n))
    # The inversions of a random order are a sum of independent numbers, the i-th of them uniform below i.
    law = np.ones(1)
    for i in range(2, n + 1):
        law = np.convolve(law, np.full(i, 1 / i))
    return float(2 * min(law[: n_inversions + 1].sum(), law[n_inversions:].sum()))
