"""Whose rows are whose in a simulation: which database holds each of them."""

from __future__ import annotations

import numpy as np

from shoal.entropy import Entropy
from shoal.protocols.sdq.params import Ints


def deal(n_rows: int, n_databases: int, entropy: Entropy) -> Ints:
    """Deal rows to databases at random, to each as many as to any other, or one more.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> np.bincount(deal(11, 3, SeededEntropy(1))).tolist()
    [4, 4, 3]
    """
    whose = np.empty(n_rows, np.int64)
    whose[np.argsort(entropy.words(n_rows, np.uint64), kind="stable")] = np.arange(n_rows) % n_databases
    return whose
