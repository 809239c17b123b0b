"""What scikit-learn makes of released rows: any of its models, on the cells of the public coding."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC
from sklearn.utils import get_tags

from shoal.domain import Columns, Numeric
from shoal.estimators.inputs import EstimatorError
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.params import Floats, Ints, Params, cells_of

_MOST_STEPS = 1000
_MOST_BITS = 400
"""Sums of squares of numbers below two to this power are numbers, however many there are."""


def make_learner(learner: object, is_number: bool) -> Any:
    """The model that a setting names, not fitted yet: ``"logistic"`` or ``"svm"``, of a number ``"ridge"``, or a copy of one that is given.

    Examples
    --------
    >>> make_learner("ridge", is_number=True)
    Ridge()
    """
    if isinstance(learner, BaseEstimator):
        return clone(_of_its_kind(learner, is_number))
    if isinstance(learner, type) and issubclass(learner, BaseEstimator):
        name = learner.__name__
        raise EstimatorError(
            "USAGE-001", f"learner is a class: give {name}().", why="A class has no settings yet.", fix=f"learner={name}()"
        )
    makers = {"ridge": Ridge} if is_number else {"logistic": lambda: LogisticRegression(max_iter=_MOST_STEPS), "svm": LinearSVC}
    if not isinstance(learner, str) or learner not in makers:
        told = f"learner = {learner!r:.60}" if isinstance(learner, str) else f"learner is of type {type(learner).__name__}"
        named = " or ".join(f'"{name}"' for name in makers)
        raise EstimatorError("USAGE-001", f"{told}, which cannot be trained.", fix=f"Give {named}, a model of scikit-learn, or None.")
    return makers[learner]()


def _of_its_kind(learner: BaseEstimator, is_number: bool) -> BaseEstimator:
    """The same model, if it predicts what is asked for: a number, or a class. A pipeline does what its last step does."""
    if (is_regressor if is_number else is_classifier)(learner):
        return learner
    wanted, example = ("regressor", "Ridge()") if is_number else ("classifier", "LogisticRegression()")
    what = f"learner is of type {type(learner).__name__}, which is no {wanted}."
    why = f"The label is a {'number' if is_number else 'category'}."
    raise EstimatorError(
        "USAGE-001", what, why=why, fix=f"Give a {wanted} of scikit-learn, such as {example}, or a pipeline that ends in one."
    )


def one_hot(params: Params, columns: Columns) -> csr_array:
    """A column for each cell of each feature, ``(n, D)``: 1 where the row is in it."""
    # Some models of scikit-learn take no larger kind of indices.
    cells = cells_of(params, columns).astype(np.int32)
    n, k = cells.shape
    return csr_array((np.ones(n * k), cells.ravel(), np.arange(0, n * k + 1, k, dtype=np.int32)), shape=(n, params.n_cells))


@dataclass(frozen=True, eq=False)
class Learned:
    """A model of scikit-learn that has learned from rows, and predicts for those that a schema has encoded.

    Parameters
    ----------
    params
        The public figures of the study.
    model
        What was fitted.
    """

    params: Params
    model: Any

    @classmethod
    def of(cls, params: Params, learner: Any, datasets: Sequence[Dataset]) -> Learned:
        """From all rows of some datasets.

        Notes
        -----
        Rows of one label say no more than that label, and no rows at all that any is as likely as the others.
        """
        parts = [one for one in datasets if len(one)] or [_nothing(params)]
        labels = np.concatenate([one.labels for one in parts])
        labels = labels / _unit(params) if params.is_number else labels
        if len(np.unique(labels)) < 2 or not any(map(len, datasets)):
            learner = DummyRegressor() if params.is_number else DummyClassifier()
        columns = {name: np.concatenate([one.columns[name] for one in parts]) for name in params.schema.names}
        with warnings.catch_warnings():
            # What has not quite converged after so many steps is what can be had.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return cls(params, learner.fit(_inputs(params, learner, columns), labels))

    def probabilities(self, columns: Columns) -> Floats:
        """Chance of each class, ``(n, L)``."""
        if not hasattr(self.model, "predict_proba"):
            what = f"{type(self.model).__name__} decides, and does not say with which chance."
            raise EstimatorError("USAGE-001", what, fix='Use predict, or learner="logistic".')
        inputs = _inputs(self.params, self.model, columns)
        chances = np.zeros((inputs.shape[0], self.params.n_sides))
        chances[:, self.model.classes_] = self.model.predict_proba(inputs)
        return chances

    def decide(self, columns: Columns) -> Ints:
        """Position of the predicted class, ``(n,)``."""
        return np.asarray(self.model.predict(_inputs(self.params, self.model, columns)), np.int64)

    def predict(self, columns: Columns) -> Floats:
        """The predicted numbers, ``(n,)``, inside the label's range."""
        label = self.params.label
        assert isinstance(label, Numeric)
        found = np.asarray(self.model.predict(_inputs(self.params, self.model, columns)), np.float64)
        with np.errstate(over="ignore"):
            return np.clip(found.reshape(-1) * _unit(self.params), label.low, label.high)


def _inputs(params: Params, model: Any, columns: Columns) -> Any:
    inputs = one_hot(params, columns)
    return inputs if get_tags(model).input_tags.sparse else inputs.toarray()


def _unit(params: Params) -> float:
    """In what numbers are learned: in themselves, or where they are too large to be squared in a power of two, which loses nothing."""
    assert isinstance(params.label, Numeric)
    largest = max(abs(params.label.low), abs(params.label.high))
    return math.ldexp(1.0, max(0, math.frexp(largest)[1] - _MOST_BITS))


def _nothing(params: Params) -> Dataset:
    """A row of each class, or of either end of a number's range, which are alike in all else."""
    label = params.label
    labels: npt.NDArray[Any] = np.array([label.low, label.high]) if isinstance(label, Numeric) else np.arange(len(label.values))
    return Dataset({name: np.zeros(len(labels), np.int64) for name in params.schema.names}, labels)
