"""The ensemble: partition classifiers that vote with their weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.protocols.anonml.classifiers import Floats, PartitionClassifier

_BLOCK_ROWS = 1 << 14
"""So few rows that a block's codes and sums stay in the cache."""


@dataclass(frozen=True, eq=False)
class Vote:
    """The discriminatory function of the whole study.

    Parameters
    ----------
    classifiers
        Those of all partitions and subsets that could be trained.
    n_labels
        L, the number of classes.

    Notes
    -----
    Ref: AnonML §VI-B, Eq. (2).

    Examples
    --------
    >>> says_bin = PartitionClassifier((1,), (2,), np.array([[0.8, 0.2], [0.3, 0.7]]), weight=0.6)
    >>> ensemble = Vote((says_bin,), n_labels=2)
    >>> ensemble.decide(np.array([[0, 0], [0, 1]])), ensemble.probabilities(np.array([[0, 1]]))
    (array([0, 1]), array([[0.3, 0.7]]))
    """

    classifiers: tuple[PartitionClassifier, ...]
    n_labels: int

    def decide(self, bins: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """The class of each row, ``(n,)``, by weighted hard votes.

        Parameters
        ----------
        bins
            Bin of every feature, ``(n, k_f)``.

        Notes
        -----
        Ref: AnonML Eq. (2): of two classes, class 1 wins a tie. Of several, the largest sum of weights wins, and the first of equals.
        """
        votes = self._sum([one.weight * np.eye(self.n_labels)[one.probabilities.argmax(axis=1)] for one in self.classifiers], bins)
        if self.n_labels == 2:
            return np.asarray(votes[:, 1] >= votes[:, 0], np.int64)
        return np.asarray(votes.argmax(axis=1), np.int64)

    def probabilities(self, bins: npt.NDArray[np.integer[Any]]) -> Floats:
        """Class probabilities of each row, ``(n, L)``: the weighted mean over the classifiers; all alike where no weight is.

        They rank rows. They are not calibrated: every classifier was trained as if classes were equally frequent.
        """
        total = sum(one.weight for one in self.classifiers)
        if not total:
            return np.full((len(bins), self.n_labels), 1 / self.n_labels)
        return self._sum([one.weight / total * one.probabilities for one in self.classifiers], bins)

    def _sum(self, tables: Sequence[Floats], bins: npt.NDArray[np.integer[Any]]) -> Floats:
        """Sum over the classifiers of their tables' lines for each row, ``(n, L)``."""
        sums = np.zeros((len(bins), self.n_labels))
        for start in range(0, len(bins), _BLOCK_ROWS):
            block = np.ascontiguousarray(bins[start : start + _BLOCK_ROWS].T, np.int64)
            for one, table in zip(self.classifiers, tables, strict=True):
                sums[start : start + _BLOCK_ROWS] += table[np.ravel_multi_index(tuple(block[list(one.features)]), one.n_bins)]
        return sums
