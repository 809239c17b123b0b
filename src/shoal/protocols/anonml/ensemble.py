"""Partition classifiers and their weighted vote.

`AnonMLPaperScript.learn` trains one classifier on each noisy table: class probabilities for each
combination of bins, with the cross-validated score as the weight of its vote.

The rows of a partition differ in their cell only. So rows are counted by cell, a model is fitted to
the counts, and it is stored as its answer for each combination of bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.data.metrics import Score, score_fold
from shoal.entropy import Entropy
from shoal.errors import require_extra
from shoal.mechanisms.frequency_oracle import FrequencyOracle

Kind = Literal["logistic", "tree"]
Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

N_FOLDS = 3
_RESOLUTION = 1 << 31
_TINY_STEP = 1e-6
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class PartitionClassifier:
    """A classifier on one subset of the features, trained on one partition of the peers.

    Parameters
    ----------
    features
        Positions of the subset's features.
    n_bins
        Bins of each of them.
    probabilities
        Class probabilities of each combination of bins, ``(prod(n_bins), L)``; the first feature is
        the most significant.
    weight
        s, the cross-validated score, which is the weight of its vote. Never negative.

    Notes
    -----
    Ref: AnonML §VI-B. Classes are balanced in training, so that probabilities are those of equally
    frequent classes.
    """

    features: tuple[int, ...]
    n_bins: tuple[int, ...]
    probabilities: Floats
    weight: float


@dataclass(frozen=True, eq=False)
class SubsetTable:
    """The noisy table of one feature subset of one partition.

    Parameters
    ----------
    features, n_bins
        Positions of the subset's features, and the bins of each.
    n_labels
        L.
    noisy_counts
        Tally of the reports, ``(prod(n_bins) * n_labels,)``; the cell of bins b_1, b_2, b_3 and a
        label is ``((b_1 * B_2 + b_2) * B_3 + b_3) * L + label``.
    n
        Number of reports.
    mechanism
        Perturbed the reports; None for exact counts, which are then the training rows.
    """

    features: tuple[int, ...]
    n_bins: tuple[int, ...]
    n_labels: int
    noisy_counts: Counts
    n: int
    mechanism: FrequencyOracle | None


def train(
    table: SubsetTable, kind: Kind, score: Score, entropy: Entropy
) -> PartitionClassifier | None:
    """Return the classifier of one feature subset of one partition.

    Parameters
    ----------
    kind
        Logistic regression, or a decision tree (which needs scikit-learn).
    score
        The score that is cross-validated. With two classes f1 is that of class 1; with more, f1 and
        AUC are means over the classes against the rest.
    entropy
        Draws training rows and their order. This function reads noisy counts only, and costs no
        privacy.

    Returns
    -------
    PartitionClassifier or None
        None if fewer than two classes have a training row for each fold: the noise exceeds the
        counts of the others. If there are more than two classes, one with too few rows is left out
        of the model and scored as never found.

    Notes
    -----
    Ref: AnonML §VII-D (histogram estimation and synthetic training data), §VI-B (models and their
    scores).

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> table = SubsetTable((4,), (2,), 2, np.array([90, 10, 20, 80]), 200, None)
    >>> train(table, "logistic", "f1", SeededEntropy(1)).probabilities.round(2)
    array([[0.85, 0.15],
           [0.2 , 0.8 ]])
    """
    n_bins, mechanism = table.n_bins, table.mechanism
    if mechanism is None:
        rows = _expand_rows(table.noisy_counts, entropy)
    else:
        rows = sample_rows(mechanism.debias(table.noisy_counts, table.n), table.n, entropy)
    folds = _count_folds(rows, math.prod(n_bins), table.n_labels)
    counts = folds.sum(axis=0)
    is_kept = counts.sum(axis=0) >= N_FOLDS
    if np.count_nonzero(is_kept) < 2:
        return None
    fit = _fit_logistic if kind == "logistic" else _fit_tree
    scores = [score_fold(fit((counts - fold) * is_kept, n_bins), fold, score) for fold in folds]
    return PartitionClassifier(
        table.features, n_bins, fit(counts * is_kept, n_bins), float(np.mean(scores))
    )


def sample_rows(counts_hat: Floats, n: int, entropy: Entropy) -> Counts:
    """Return ``(n,)`` training rows as cells, drawn independently from the estimated type.

    There are none if no cell is above zero.

    Notes
    -----
    Ref: AnonML appendix: the type is X / |X|. A negative count cannot be drawn from and is cut to
    zero. The nearest counts that could be true (`norm_sub`) have less error, but empty the cells of
    a rare class, and with them its classifiers. Shares are rounded to 31 bits, far below their
    error; after that the draw is exact.
    """
    positive = np.maximum(counts_hat, 0.0)
    if not positive.any():
        return np.empty(0, np.int64)
    edges = np.cumsum(np.rint(positive / positive.sum() * _RESOLUTION).astype(np.int64))
    return np.searchsorted(edges, entropy.below_many(int(edges[-1]), n), side="right").astype(
        np.int64, copy=False
    )


def _expand_rows(counts: Counts, entropy: Entropy) -> Counts:
    """Return the rows that were counted, in random order, ``(n,)`` cells."""
    rows = np.repeat(np.arange(counts.size), counts)
    return rows[np.argsort(entropy.words(rows.size, np.uint64))]


def _count_folds(rows: Counts, n_combinations: int, n_labels: int) -> Counts:
    """Return the rows counted by fold, ``(N_FOLDS, n_combinations, L)``.

    Each label's rows are assigned to the folds in turn.
    """
    fold = np.empty_like(rows)
    fold[np.argsort(rows % n_labels, kind="stable")] = np.arange(rows.size) % N_FOLDS
    n_cells = n_combinations * n_labels
    counts = np.bincount(fold * n_cells + rows, minlength=N_FOLDS * n_cells)
    return counts.astype(np.int64, copy=False).reshape(N_FOLDS, n_combinations, n_labels)


def _list_combinations(n_bins: tuple[int, ...]) -> Counts:
    """Return the bins of each combination, ``(prod(n_bins), k_s)``."""
    return np.stack(np.unravel_index(np.arange(math.prod(n_bins)), n_bins), axis=1)


def _fit_logistic(counts: Counts, n_bins: tuple[int, ...]) -> Floats:
    """Return the probabilities of logistic regression for each combination.

    Each class that has rows is fitted against the rest; then probabilities are normalised.
    """
    bins = _list_combinations(n_bins).T
    # A feature of two bins is one column, a larger one has a column for each bin.
    columns = [
        column[:, None] == (np.arange(size) if size > 2 else [1])
        for column, size in zip(bins, n_bins, strict=True)
    ]
    design = np.concatenate([*columns, np.ones((len(counts), 1))], axis=1)
    chances = np.zeros(counts.shape)
    for label in np.flatnonzero(counts.sum(axis=0)):
        positive = counts[:, label]
        chances[:, label] = _expit(
            design @ _fit_coefficients(design, positive, counts.sum(axis=1) - positive)
        )
    chances /= chances.sum(axis=1, keepdims=True)
    return chances


def _fit_coefficients(design: Floats, positive: Counts, negative: Counts) -> Floats:
    """Fit logistic regression to counted rows by Newton's method.

    Classes are balanced, and the penalty is scikit-learn's default (C = 1). The last column of the
    design is the constant, which is not penalised.
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
        # Rare cells that are all of one class make a full step overshoot. A difference within
        # rounding is no overshoot.
        while loss(beta - step) > loss(beta) * (1 + _ROUNDING):
            step = step / 2
        beta = beta - step
    return beta


def _expit(z: Floats) -> Floats:
    return np.exp(-np.logaddexp(0, -z))


def _fit_tree(counts: Counts, n_bins: tuple[int, ...]) -> Floats:
    """Return the probabilities of a decision tree for each combination, classes balanced."""
    require_extra("learn", "sklearn", purpose="A decision tree")
    from sklearn.tree import DecisionTreeClassifier

    combinations = _list_combinations(n_bins)
    at, label = np.nonzero(counts)
    tree = DecisionTreeClassifier(random_state=0)
    tree.fit(combinations[at], label, sample_weight=counts[at, label] / counts.sum(axis=0)[label])
    probabilities = np.zeros(counts.shape)
    probabilities[:, tree.classes_] = tree.predict_proba(combinations)
    return probabilities


_BLOCK_ROWS = 1 << 14
"""Rows in a block: few enough that its codes and sums stay in the cache."""


@dataclass(frozen=True, eq=False)
class WeightedVote:
    """The classifier of the whole study: partition classifiers that vote with their weights.

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
    >>> ensemble = WeightedVote((says_bin,), n_labels=2)
    >>> ensemble.decide(np.array([[0, 0], [0, 1]])), ensemble.probabilities(np.array([[0, 1]]))
    (array([0, 1]), array([[0.3, 0.7]]))
    """

    classifiers: tuple[PartitionClassifier, ...]
    n_labels: int

    def decide(self, bins: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        """Return the class of each row, ``(n,)``, by weighted hard votes.

        Parameters
        ----------
        bins
            Bin of every feature, ``(n, k_f)``.

        Notes
        -----
        Ref: AnonML Eq. (2): of two classes, class 1 wins a tie. Of several, the largest sum of
        weights wins, and the first of equals.
        """
        votes = self._sum_tables(
            [
                classifier.weight * np.eye(self.n_labels)[classifier.probabilities.argmax(axis=1)]
                for classifier in self.classifiers
            ],
            bins,
        )
        if self.n_labels == 2:
            return np.asarray(votes[:, 1] >= votes[:, 0], np.int64)
        return np.asarray(votes.argmax(axis=1), np.int64)

    def probabilities(self, bins: npt.NDArray[np.integer[Any]]) -> Floats:
        """Return the class probabilities of each row, ``(n, L)``.

        They are the weighted mean over the classifiers, and equal if all weights are zero. They
        rank rows. They are not calibrated: every classifier was trained as if classes were equally
        frequent.
        """
        total = sum(classifier.weight for classifier in self.classifiers)
        if not total:
            return np.full((len(bins), self.n_labels), 1 / self.n_labels)
        return self._sum_tables(
            [
                classifier.weight / total * classifier.probabilities
                for classifier in self.classifiers
            ],
            bins,
        )

    def _sum_tables(self, tables: Sequence[Floats], bins: npt.NDArray[np.integer[Any]]) -> Floats:
        """Return the sum over the classifiers of their table lines for each row, ``(n, L)``."""
        sums = np.zeros((len(bins), self.n_labels))
        for start in range(0, len(bins), _BLOCK_ROWS):
            block = np.ascontiguousarray(bins[start : start + _BLOCK_ROWS].T, np.int64)
            for classifier, table in zip(self.classifiers, tables, strict=True):
                sums[start : start + _BLOCK_ROWS] += table[
                    np.ravel_multi_index(tuple(block[list(classifier.features)]), classifier.n_bins)
                ]
        return sums
