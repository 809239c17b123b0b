"""Scores of a model on test rows, and of the baselines that it is compared with.

The runs of each protocol call these functions, so that all scores are comparable.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.metrics import Score, score_fold
from shoal.data.schema import Categorical, Schema
from shoal.errors import require_extra

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
EncodedColumns = Mapping[str, npt.NDArray[Any]]
"""Columns as `Schema.encode` gives them."""

_MAX_STEPS = 1000


@dataclass(frozen=True)
class ClassificationScores:
    """Three measures; larger is better.

    Parameters
    ----------
    accuracy
        Share of the rows with the predicted class.
    auc
        Probability that a row of the second class ranks above one of the first. For several classes
        the mean over the classes in the test rows, each against the rest.
    f1
        F1 of the second class. For several classes the mean over the classes in the test rows.
    """

    accuracy: float
    auc: float
    f1: float


@dataclass(frozen=True)
class RegressionScores:
    """Errors of predicted numbers, in the units of the label.

    Parameters
    ----------
    rmse
        Root of the mean squared error.
    mean_absolute_error
        Mean size of the error.
    r_squared
        Share of the label's variance that is explained: 1 is perfect, 0 is that of a constant.
    """

    rmse: float
    mean_absolute_error: float
    r_squared: float


@dataclass(frozen=True)
class PersonalModelScores:
    """Mean scores of the personal models of some PFDS holders, on the same test rows.

    Parameters
    ----------
    home
        Models trained on the release and the holder's rows.
    own
        Models trained on the holder's rows alone.
    gain
        Share of holders with a better model by the release: more accurate, or with a smaller RMSE.
    n_holders
        Number of holders.
    """

    home: ClassificationScores | RegressionScores
    own: ClassificationScores | RegressionScores
    gain: float
    n_holders: int


BaselineScores = dict[str, ClassificationScores | RegressionScores]
"""Name of a baseline -> its scores."""


@dataclass(frozen=True)
class RunMean:
    """A mean over runs with its standard error, which is None for a single run."""

    value: float
    error: float | None


def compute_mean(values: Sequence[float]) -> RunMean:
    """Return the mean of values of several runs.

    Examples
    --------
    >>> compute_mean([0.8, 0.9])
    RunMean(value=0.85, error=0.05)
    >>> compute_mean([0.8])
    RunMean(value=0.8, error=None)
    """
    error = (
        round(statistics.stdev(values) / math.sqrt(len(values)), 12) if len(values) > 1 else None
    )
    return RunMean(round(math.fsum(values) / len(values), 12), error)


def compute_scores(chances: Floats, decisions: Ints, labels: Ints) -> ClassificationScores:
    """Return the scores of predictions.

    Parameters
    ----------
    chances
        ``(n, L)`` probabilities of the classes.
    decisions, labels
        ``(n,)`` positions of the predicted and of the true class.
    """
    # A class without rows cannot be ranked. For two classes the scores are those of the second.
    classes = np.unique(labels).tolist() if chances.shape[1] > 2 else [1]

    def against_rest(score: Score, values: Callable[[int], Floats]) -> float:
        found = [
            score_fold(
                _add_complement(values(c)), _add_complement(labels == c).astype(np.int64), score
            )
            for c in classes
        ]
        return math.fsum(found) / len(found)

    return ClassificationScores(
        float(np.mean(decisions == labels)),
        against_rest("auc", lambda c: chances[:, c]),
        against_rest("f1", lambda c: (decisions == c).astype(np.float64)),
    )


def _add_complement(positive: npt.NDArray[Any]) -> Floats:
    """Return probabilities, or membership, of the other classes and of one, ``(n, 2)``."""
    return np.stack([1.0 - positive, np.asarray(positive, np.float64)], axis=1)


def compute_errors(predicted: Floats, labels: Floats) -> RegressionScores:
    """Return the errors of predicted numbers.

    Examples
    --------
    >>> compute_errors(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 5.0])).mean_absolute_error
    0.6666666666666666
    """
    misses = predicted - labels
    squared = float(np.mean(misses**2))
    return RegressionScores(
        math.sqrt(squared), float(np.mean(np.abs(misses))), 1 - squared / float(np.var(labels))
    )


def is_better(
    one: ClassificationScores | RegressionScores, other: ClassificationScores | RegressionScores
) -> bool:
    """Return whether one model has a higher accuracy or smaller RMSE than another."""
    if isinstance(one, ClassificationScores) and isinstance(other, ClassificationScores):
        return one.accuracy > other.accuracy
    assert isinstance(one, RegressionScores) and isinstance(other, RegressionScores)
    return one.rmse < other.rmse


def average_scores(
    several: Sequence[ClassificationScores | RegressionScores],
) -> ClassificationScores | RegressionScores:
    """Return the mean of each measure over some models.

    Examples
    --------
    >>> average_scores([ClassificationScores(0.75, 0.5, 0.0), ClassificationScores(1.0, 1.0, 1.0)])
    ClassificationScores(accuracy=0.875, auc=0.75, f1=0.5)
    """
    kind = type(several[0])
    return kind(
        *(
            math.fsum(getattr(scores, part.name) for scores in several) / len(several)
            for part in fields(kind)
        )
    )


def score_mean_label(labels: Floats, test_labels: Floats) -> RegressionScores:
    """Return the scores of the predictor that always gives the mean label."""
    return compute_errors(np.full(len(test_labels), labels.mean()), test_labels)


def score_most_common(n_classes: int, labels: Ints, test_labels: Ints) -> ClassificationScores:
    """Return the scores of the predictor that always gives the most common class.

    Examples
    --------
    >>> score_most_common(2, np.array([0, 0, 1]), np.array([0, 1, 0, 0]))
    ClassificationScores(accuracy=0.75, auc=0.5, f1=0.0)
    """
    shares = np.bincount(labels, minlength=n_classes) / len(labels)
    chances = np.tile(shares, (len(test_labels), 1))
    return compute_scores(chances, chances.argmax(axis=1), test_labels)


def score_without_privacy(
    schema: Schema,
    train_columns: EncodedColumns,
    train_labels: Ints,
    test_columns: EncodedColumns,
    test_labels: Ints,
) -> ClassificationScores:
    """Return the scores of logistic regression on the rows, without privacy.

    Its inputs are indicators of categories, standardised numbers, and indicators of missing
    numbers.

    Raises
    ------
    UsageError
        ``USAGE-002``: scikit-learn is not installed.
    """
    _, sparse = import_learners()

    def matrix(columns: EncodedColumns) -> Any:
        return sparse.hstack(
            [
                sparse.csr_array(_encode_inputs(schema, name, train_columns[name], columns[name]))
                for name in schema.names
            ],
            format="csr",
        )

    assert isinstance(schema.label, Categorical)
    return score_logistic(
        len(schema.label.values),
        matrix(train_columns),
        train_labels,
        matrix(test_columns),
        test_labels,
    )


def import_learners() -> tuple[Any, Any]:
    """Return the modules ``sklearn.linear_model`` and ``scipy.sparse``.

    Raises
    ------
    UsageError
        ``USAGE-002``: scikit-learn is not installed.
    """
    require_extra("learn", "scipy", "sklearn", purpose="The comparison without privacy")
    from scipy import sparse
    from sklearn import linear_model

    return linear_model, sparse


def fit(model: Any, inputs: Any, labels: npt.NDArray[Any]) -> Any:
    """Return a scikit-learn model after training."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # A model that has almost converged is a good enough baseline.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(inputs, labels)


def score_logistic(
    n_classes: int, inputs: Any, labels: Ints, test_inputs: Any, test_labels: Ints
) -> ClassificationScores:
    """Return the scores of logistic regression on matrices of inputs."""
    linear, _ = import_learners()
    model = fit(linear.LogisticRegression(max_iter=_MAX_STEPS), inputs, labels)
    chances = np.zeros((len(test_labels), n_classes))
    chances[:, model.classes_] = model.predict_proba(test_inputs)
    return compute_scores(chances, chances.argmax(axis=1), test_labels)


def _encode_inputs(
    schema: Schema, name: str, train_column: npt.NDArray[Any], column: npt.NDArray[Any]
) -> Floats:
    """Return one feature as columns of numbers, on the scale of the training rows."""
    feature = schema[name]
    if isinstance(feature, Categorical):
        return np.asarray(column[:, np.newaxis] == np.arange(-1, len(feature.values)), np.float64)
    known = train_column[~np.isnan(train_column)]
    mean, scale = (known.mean(), known.std() or 1.0) if known.size else (0.0, 1.0)
    is_missing = np.isnan(column)
    return np.stack(
        [np.where(is_missing, 0.0, (column - mean) / scale), is_missing.astype(np.float64)], axis=1
    )
