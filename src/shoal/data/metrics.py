"""Accuracy, AUC and F1 of predictions.

AnonML weighs its classifiers by these scores, and simulations compare models by them. Rows are
given as counts, so that equal rows are scored once.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

Score = Literal["f1", "auc", "accuracy"]


def score_fold(probabilities: Floats, fold: Counts, score: Score) -> float:
    """Return the score of predicted probabilities on counted rows.

    Parameters
    ----------
    probabilities
        ``(n, L)``: the predicted probability of each class, one line for each kind of row.
    fold
        ``(n, L)``: how many rows of each kind have each class.
    score
        Of two classes, F1 and AUC are those of the second; of several, the mean over the classes.
    """
    n_labels = fold.shape[1]
    confusion = np.zeros((n_labels, n_labels), np.int64)
    np.add.at(confusion, probabilities.argmax(axis=1), fold)
    hits = np.diag(confusion)
    if score == "accuracy":
        return float(hits.sum() / confusion.sum())
    if score == "f1":
        by_class = 2 * hits / np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1), 1)
    else:
        by_class = np.array(
            [
                _compute_auc(chance, rows, fold.sum(axis=1) - rows)
                for chance, rows in zip(probabilities.T, fold.T, strict=True)
            ]
        )
    return float(by_class[1] if n_labels == 2 else by_class.mean())


def _compute_auc(chance: Floats, positive: Counts, negative: Counts) -> float:
    """Return how often a row of the class has the larger probability; a tie counts a half.

    Return 0.5 if there is no pair to compare.
    """
    order, level = np.unique(chance, return_inverse=True)
    above, below = np.zeros(order.size), np.zeros(order.size)
    np.add.at(above, level, positive)
    np.add.at(below, level, negative)
    pairs = above.sum() * below.sum()
    return float(above @ (np.cumsum(below) - below / 2) / pairs) if pairs else 0.5
