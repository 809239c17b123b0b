"""How well a model does on rows that it has not seen, and what any model should be held against."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Schema
from shoal.errors import UsageError
from shoal.protocols.anonml.classifiers import Score, score_on

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Encoded = Mapping[str, npt.NDArray[Any]]
"""Columns as `Schema.encode` gives them."""

_MOST_STEPS = 1000


@dataclass(frozen=True)
class Scores:
    """Three measures, each the larger the better.

    Parameters
    ----------
    accuracy
        Share of the rows whose class was predicted.
    auc
        Chance that a row of the second class ranks above one of the first; of several classes the mean over each
        that a row has, against the rest.
    f1
        Of the second class; of several classes the mean over each that a row has.
    """

    accuracy: float
    auc: float
    f1: float


@dataclass(frozen=True)
class Errors:
    """How far predicted numbers are from the true ones, in the label's own units.

    Parameters
    ----------
    rmse
        Root of the mean squared error.
    mean_absolute_error
        Mean size of the error.
    r_squared
        Share of the label's variance that is explained: 1 is perfect, and a constant explains nothing.
    """

    rmse: float
    mean_absolute_error: float
    r_squared: float


@dataclass(frozen=True)
class AtHome:
    """What some holders of PFDS have at home: means over them, each tried on the same rows.

    Parameters
    ----------
    home
        Of the models that they make of the release and of their own rows.
    own
        Of the models of their own rows alone.
    gain
        Share of them whose home model is better than that of their own rows: more accurate, or with a smaller RMSE.
    n_holders
        How many they are.
    """

    home: Scores | Errors
    own: Scores | Errors
    gain: float
    n_holders: int


Yardsticks = dict[str, Scores | Errors]
"""What a model is held against, by name."""


@dataclass(frozen=True)
class Mean:
    """A mean over runs with its standard error; None where there is one run only."""

    value: float
    error: float | None


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of some runs.

    Examples
    --------
    >>> mean_of([0.8, 0.9])
    Mean(value=0.85, error=0.05)
    >>> mean_of([0.8])
    Mean(value=0.8, error=None)
    """
    error = round(statistics.stdev(values) / math.sqrt(len(values)), 12) if len(values) > 1 else None
    return Mean(round(math.fsum(values) / len(values), 12), error)


def scores_of(chances: Floats, decisions: Ints, labels: Ints) -> Scores:
    """The scores of predictions.

    Parameters
    ----------
    chances
        ``(n, L)`` chances of the classes.
    decisions, labels
        ``(n,)`` positions of the predicted and of the true class.
    """
    # A class that no row has cannot be ranked; of two classes the second stands for both.
    classes = np.unique(labels).tolist() if chances.shape[1] > 2 else [1]

    def against_rest(score: Score, values: Callable[[int], Floats]) -> float:
        found = [score_on(_two_sided(values(c)), _two_sided(labels == c).astype(np.int64), score) for c in classes]
        return math.fsum(found) / len(found)

    return Scores(
        float(np.mean(decisions == labels)),
        against_rest("auc", lambda c: chances[:, c]),
        against_rest("f1", lambda c: (decisions == c).astype(np.float64)),
    )


def _two_sided(positive: npt.NDArray[Any]) -> Floats:
    """Chances, or membership, of the rest and of one class, ``(n, 2)``."""
    return np.stack([1.0 - positive, np.asarray(positive, np.float64)], axis=1)


def errors_of(predicted: Floats, labels: Floats) -> Errors:
    """The errors of predicted numbers.

    Examples
    --------
    >>> errors_of(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 5.0])).mean_absolute_error
    0.6666666666666666
    """
    misses = predicted - labels
    squared = float(np.mean(misses**2))
    return Errors(math.sqrt(squared), float(np.mean(np.abs(misses))), 1 - squared / float(np.var(labels)))


def is_better(one: Scores | Errors, other: Scores | Errors) -> bool:
    """Whether one model predicts better than another, by its accuracy or RMSE."""
    if isinstance(one, Scores) and isinstance(other, Scores):
        return one.accuracy > other.accuracy
    assert isinstance(one, Errors) and isinstance(other, Errors)
    return one.rmse < other.rmse


def mean_scores(several: Sequence[Scores | Errors]) -> Scores | Errors:
    """Each measure as a mean over some models.

    Examples
    --------
    >>> mean_scores([Scores(0.75, 0.5, 0.0), Scores(1.0, 1.0, 1.0)])
    Scores(accuracy=0.875, auc=0.75, f1=0.5)
    """
    kind = type(several[0])
    return kind(*(math.fsum(getattr(one, part.name) for one in several) / len(several) for part in fields(kind)))


def mean_label(labels: Floats, unseen: Floats) -> Errors:
    """The trivial predictor of a number: whatever the row, the mean."""
    return errors_of(np.full(len(unseen), labels.mean()), unseen)


def most_common(n_classes: int, labels: Ints, unseen: Ints) -> Scores:
    """The trivial predictor: whatever the row, the most common class.

    Examples
    --------
    >>> most_common(2, np.array([0, 0, 1]), np.array([0, 1, 0, 0]))
    Scores(accuracy=0.75, auc=0.5, f1=0.0)
    """
    shares = np.bincount(labels, minlength=n_classes) / len(labels)
    chances = np.tile(shares, (len(unseen), 1))
    return scores_of(chances, chances.argmax(axis=1), unseen)


def without_privacy(schema: Schema, asked: Encoded, labels: Ints, unseen: Encoded, unseen_labels: Ints) -> Scores:
    """Logistic regression on the rows themselves: categories one by one, numbers standardised, and whether a number is missing.

    Raises
    ------
    UsageError
        ``USAGE-002``: scikit-learn is not installed.
    """
    _, sparse = learners()

    def matrix(columns: Encoded) -> Any:
        return sparse.hstack([sparse.csr_array(_inputs(schema, name, asked[name], columns[name])) for name in schema.names], format="csr")

    assert isinstance(schema.label, Categorical)
    return logistic(len(schema.label.values), matrix(asked), labels, matrix(unseen), unseen_labels)


def learners() -> tuple[Any, Any]:
    """scikit-learn's linear models and SciPy's sparse matrices, with which the comparison without privacy is made."""
    try:
        from scipy import sparse
        from sklearn import linear_model
    except ImportError:
        what = "The comparison without privacy needs scikit-learn, which is not installed."
        raise UsageError("USAGE-002", what, fix="pip install 'shoal[learn]'") from None
    return linear_model, sparse


def fit(model: Any, inputs: Any, labels: npt.NDArray[Any]) -> Any:
    """A model of scikit-learn after it has learned."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # A model that has not quite converged after so many steps is as good a yardstick.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(inputs, labels)


def logistic(n_classes: int, inputs: Any, labels: Ints, unseen: Any, unseen_labels: Ints) -> Scores:
    """The scores of logistic regression on matrices of inputs."""
    linear, _ = learners()
    model = fit(linear.LogisticRegression(max_iter=_MOST_STEPS), inputs, labels)
    chances = np.zeros((len(unseen_labels), n_classes))
    chances[:, model.classes_] = model.predict_proba(unseen)
    return scores_of(chances, chances.argmax(axis=1), unseen_labels)


def _inputs(schema: Schema, name: str, asked: npt.NDArray[Any], column: npt.NDArray[Any]) -> Floats:
    """One feature as columns of numbers; scales are those of the rows to learn from."""
    feature = schema[name]
    if isinstance(feature, Categorical):
        return np.asarray(column[:, np.newaxis] == np.arange(-1, len(feature.values)), np.float64)
    known = asked[~np.isnan(asked)]
    mean, scale = (known.mean(), known.std() or 1.0) if known.size else (0.0, 1.0)
    gone = np.isnan(column)
    return np.stack([np.where(gone, 0.0, (column - mean) / scale), gone.astype(np.float64)], axis=1)
