"""From one noisy histogram to one partition classifier: a table of class probabilities, with its cross-validated score as weight.

All that a partition's rows can differ in is their cell. So rows are counted by cell, a model is fitted to the counts, and it is
written down as its answer for each combination of bins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import UsageError
from shoal.mechanisms.reports import FrequencyMechanism

Kind = Literal["logistic", "tree"]
Score = Literal["f1", "auc", "accuracy"]
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

N_FOLDS = 3
_RESOLUTION = 1 << 31
_TINY_STEP = 1e-6
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class PartitionClassifier:
    """What was learned about one subset of the features from one partition of the peers.

    Parameters
    ----------
    features
        Positions of the subset's features.
    n_bins
        Bins of each of them.
    probabilities
        Class probabilities of each combination of bins, ``(prod(n_bins), L)``; the first feature is the most significant.
    weight
        s, the cross-validated score: what its vote counts for. Never negative.

    Notes
    -----
    Ref: AnonML §VI-B. Classes are balanced in training, so that probabilities are those of equally frequent classes.
    """

    features: tuple[int, ...]
    n_bins: tuple[int, ...]
    probabilities: Floats
    weight: float


def train(
    noisy_counts: npt.NDArray[np.int64],
    n: int,
    mechanism: FrequencyMechanism | None,
    features: tuple[int, ...],
    n_bins: tuple[int, ...],
    n_labels: int,
    kind: Kind,
    score: Score,
    entropy: Entropy,
) -> PartitionClassifier | None:
    """The classifier of one feature subset of one partition.

    Parameters
    ----------
    noisy_counts
        Tally of the reports, ``(prod(n_bins) * n_labels,)``; the cell of bins b_1, b_2, b_3 and a label is
        ``((b_1 * B_2 + b_2) * B_3 + b_3) * L + label``.
    n
        Number of reports.
    mechanism
        What perturbed them; None for exact counts, which are then the training rows.
    features, n_bins, n_labels
        The subset, bins of each of its features, L.
    kind
        What is fitted: logistic regression, or a decision tree (which needs scikit-learn).
    score
        What is cross-validated. Of two classes f1 is that of class 1; of several, f1 and AUC are means over the classes against the rest.
    entropy
        Draws training rows and their order. This reads noisy counts only, and costs no privacy.

    Returns
    -------
    PartitionClassifier or None
        None if fewer than two classes have a training row for each fold: noise has drowned the others, and nothing separates them.
        A class of several without as many rows is left out of the model and scored as never found.

    Notes
    -----
    Ref: AnonML §VII-D (histogram estimation and synthetic training data), §VI-B (models and their scores).

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> learned = train(np.array([90, 10, 20, 80]), 200, None, (4,), (2,), 2, "logistic", "f1", SeededEntropy(1))
    >>> learned.probabilities.round(2)
    array([[0.85, 0.15],
           [0.2 , 0.8 ]])
    """
    if mechanism is None:
        rows = _exact_rows(noisy_counts, entropy)
    else:
        rows = sample_rows(mechanism.debias(noisy_counts, n), n, entropy)
    folds = _folds(rows, math.prod(n_bins), n_labels)
    counts = folds.sum(axis=0)
    is_kept = counts.sum(axis=0) >= N_FOLDS
    if np.count_nonzero(is_kept) < 2:
        return None
    fit = _logistic if kind == "logistic" else _tree
    scores = [score_on(fit((counts - fold) * is_kept, n_bins), fold, score) for fold in folds]
    return PartitionClassifier(features, n_bins, fit(counts * is_kept, n_bins), float(np.mean(scores)))


def sample_rows(counts_hat: Floats, n: int, entropy: Entropy) -> Counts:
    """Training rows, drawn independently from the estimated type, ``(n,)`` cells; none where no cell is above zero.

    Notes
    -----
    Ref: AnonML appendix: the type is X / |X|. A negative count cannot be drawn from and is cut to zero. The nearest counts that could
    be true (`norm_sub`) have less error, but empty the cells of a rare class, and with them its classifiers.
    Shares are rounded to 31 bits, far below their error; from there on the draw is exact.
    """
    positive = np.maximum(counts_hat, 0.0)
    if not positive.any():
        return np.empty(0, np.int64)
    edges = np.cumsum(np.rint(positive / positive.sum() * _RESOLUTION).astype(np.int64))
    return np.searchsorted(edges, entropy.below_many(int(edges[-1]), n), side="right").astype(np.int64, copy=False)


def _exact_rows(counts: Counts, entropy: Entropy) -> Counts:
    """The rows that were counted, in random order, ``(n,)`` cells."""
    rows = np.repeat(np.arange(counts.size), counts)
    return rows[np.argsort(entropy.words(rows.size, np.uint64))]


def _folds(rows: Counts, n_combinations: int, n_labels: int) -> Counts:
    """The rows counted by fold, ``(N_FOLDS, n_combinations, L)``; each label's rows are dealt to the folds in turn."""
    fold = np.empty_like(rows)
    fold[np.argsort(rows % n_labels, kind="stable")] = np.arange(rows.size) % N_FOLDS
    n_cells = n_combinations * n_labels
    counts = np.bincount(fold * n_cells + rows, minlength=N_FOLDS * n_cells)
    return counts.astype(np.int64, copy=False).reshape(N_FOLDS, n_combinations, n_labels)


def _combinations(n_bins: tuple[int, ...]) -> Counts:
    """The bins of each combination, ``(prod(n_bins), k_s)``."""
    return np.stack(np.unravel_index(np.arange(math.prod(n_bins)), n_bins), axis=1)


def _logistic(counts: Counts, n_bins: tuple[int, ...]) -> Floats:
    """Probabilities of logistic regression for each combination: each class that has rows against the rest, then normalised."""
    bins = _combinations(n_bins).T
    # A feature of two bins is one column, a larger one has a column for each bin.
    columns = [column[:, None] == (np.arange(size) if size > 2 else [1]) for column, size in zip(bins, n_bins, strict=True)]
    design = np.concatenate([*columns, np.ones((len(counts), 1))], axis=1)
    chances = np.zeros(counts.shape)
    for label in np.flatnonzero(counts.sum(axis=0)):
        positive = counts[:, label]
        chances[:, label] = _expit(design @ _coefficients(design, positive, counts.sum(axis=1) - positive))
    chances /= chances.sum(axis=1, keepdims=True)
    return chances


def _coefficients(design: Floats, positive: Counts, negative: Counts) -> Floats:
    """Logistic regression on counted rows by Newton's method; classes balanced, and scikit-learn's default penalty (C = 1).

    The last column of the design is the constant, which is not penalised.
    """
    total = positive.sum() + negative.sum()
    one, zero = positive * (total / (2 * positive.sum())), negative * (total / (2 * negative.sum()))
    penalty = np.append(np.ones(design.shape[1] - 1), 0.0)

    def loss(beta: Floats) -> float:
        z = design @ beta
        return float(one @ np.logaddexp(0, -z) + zero @ np.logaddexp(0, z) + penalty @ beta**2 / 2)

    beta, step = np.zeros(design.shape[1]), np.ones(design.shape[1])
    while np.abs(step).max() > _TINY_STEP:
        chance = _expit(design @ beta)
        gradient = design.T @ ((one + zero) * chance - one) + penalty * beta
        hessian = (design.T * ((one + zero) * chance * (1 - chance))) @ design + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        # Rare cells that are all of one class make a full step overshoot; rounding alone must not look like that.
        while loss(beta - step) > loss(beta) * (1 + _ROUNDING):
            step = step / 2
        beta = beta - step
    return beta


def _expit(z: Floats) -> Floats:
    return np.exp(-np.logaddexp(0, -z))


def _tree(counts: Counts, n_bins: tuple[int, ...]) -> Floats:
    """Probabilities of a decision tree for each combination, classes balanced."""
    try:
        from sklearn.tree import DecisionTreeClassifier
    except ImportError:
        raise UsageError(
            "USAGE-002", "A decision tree needs scikit-learn, which is not installed.", fix="pip install 'shoal[learn]'"
        ) from None
    combinations = _combinations(n_bins)
    at, label = np.nonzero(counts)
    tree = DecisionTreeClassifier(random_state=0)
    tree.fit(combinations[at], label, sample_weight=counts[at, label] / counts.sum(axis=0)[label])
    probabilities = np.zeros(counts.shape)
    probabilities[:, tree.classes_] = tree.predict_proba(combinations)
    return probabilities


def score_on(probabilities: Floats, fold: Counts, score: Score) -> float:
    """The score of a table on rows that it was not fitted to."""
    n_labels = fold.shape[1]
    confusion = np.zeros((n_labels, n_labels), np.int64)
    np.add.at(confusion, probabilities.argmax(axis=1), fold)
    hits = np.diag(confusion)
    if score == "accuracy":
        return float(hits.sum() / confusion.sum())
    if score == "f1":
        by_class = 2 * hits / np.maximum(confusion.sum(axis=0) + confusion.sum(axis=1), 1)
    else:
        by_class = np.array([_auc(chance, rows, fold.sum(axis=1) - rows) for chance, rows in zip(probabilities.T, fold.T, strict=True)])
    return float(by_class[1] if n_labels == 2 else by_class.mean())


def _auc(chance: Floats, positive: Counts, negative: Counts) -> float:
    """How often a row of the class has the larger chance, ties halved; a half where there is no pair to compare."""
    order, level = np.unique(chance, return_inverse=True)
    above, below = np.zeros(order.size), np.zeros(order.size)
    np.add.at(above, level, positive)
    np.add.at(below, level, negative)
    pairs = above.sum() * below.sum()
    return float(above @ (np.cumsum(below) - below / 2) / pairs) if pairs else 0.5
