"""Released datasets, and models trained on them.

The PFDS estimators use both. Released rows have the types of the fitted data. Any scikit-learn
model can be trained on them, with the cells of the public coding as inputs.
"""

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

from shoal.data.schema import Columns, Numeric
from shoal.estimators.inputs import EstimatorError
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.params import Floats, Ints, PFDSParams, encode_cells
from shoal.text import format_count


@dataclass(frozen=True, eq=False, repr=False)
class SharedDataset:
    """Released rows. They are synthetic and public.

    Parameters
    ----------
    X
        The features, as a frame or an array like the fitted one: categories as texts, numbers as
        floats.
    y
        The labels, with the type of the fitted ones.
    holder
        The holder with the real rows behind them; None for the pool of all sharing holders.
    """

    X: Any
    y: npt.NDArray[Any]
    holder: Any = None

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        n_rows, n_columns = self.X.shape
        return (
            f"SharedDataset({format_count(n_rows, 'row')}, "
            f"{format_count(n_columns, 'column')}, holder={self.holder!r})"
        )


def convert_to_frame(X: Any, columns: Columns) -> Any:
    """Return columns as a frame of the same library as X, or as an array if X is not one."""
    if not hasattr(type(X), "columns"):
        return np.column_stack(list(columns.values()))
    import narwhals as nw

    parts = {
        name: column.tolist() if column.dtype == object else column
        for name, column in columns.items()
    }
    return nw.from_dict(parts, backend=nw.get_native_namespace(X)).to_native()


_MAX_STEPS = 1000
_MAX_BITS = 400
"""Sums of squares of numbers below two to this power do not overflow."""


def make_learner(learner: object, is_number: bool) -> Any:
    """Return the unfitted model for a setting.

    The setting is ``"logistic"`` or ``"svm"``, for a number ``"ridge"``, or a model, which is
    cloned.

    Examples
    --------
    >>> make_learner("ridge", is_number=True)
    Ridge()
    """
    if isinstance(learner, BaseEstimator):
        return clone(_check_kind(learner, is_number))
    if isinstance(learner, type) and issubclass(learner, BaseEstimator):
        name = learner.__name__
        raise EstimatorError(
            "USAGE-001",
            f"The learner is the class {name}, not an instance.",
            why="A class has no settings.",
            fix=f"learner={name}()",
        )
    makers = (
        {"ridge": Ridge}
        if is_number
        else {"logistic": lambda: LogisticRegression(max_iter=_MAX_STEPS), "svm": LinearSVC}
    )
    if not isinstance(learner, str) or learner not in makers:
        value = (
            f"learner = {learner!r:.60}"
            if isinstance(learner, str)
            else f"A learner of type {type(learner).__name__}"
        )
        allowed = " or ".join(f'"{name}"' for name in makers)
        raise EstimatorError(
            "USAGE-001",
            f"{value} cannot be trained.",
            fix=f"Give {allowed}, a scikit-learn model, or None.",
        )
    return makers[learner]()


def _check_kind(learner: BaseEstimator, is_number: bool) -> BaseEstimator:
    """Return the model if it predicts the right type: a number, or a class.

    A pipeline predicts what its last step predicts.
    """
    if (is_regressor if is_number else is_classifier)(learner):
        return learner
    wanted, example = (
        ("regressor", "Ridge()") if is_number else ("classifier", "LogisticRegression()")
    )
    what = f"The learner has type {type(learner).__name__}, which is not a {wanted}."
    why = f"The label is a {'number' if is_number else 'category'}."
    raise EstimatorError(
        "USAGE-001",
        what,
        why=why,
        fix=f"Give a scikit-learn {wanted}, for example {example}, or a pipeline with one as its "
        "last step.",
    )


def encode_one_hot(params: PFDSParams, columns: Columns) -> csr_array:
    """Return a column for each cell of each feature, ``(n, D)``, with 1 for rows in it."""
    # Some scikit-learn models accept only 32-bit indices.
    cells = encode_cells(params, columns).astype(np.int32)
    n, k = cells.shape
    return csr_array(
        (np.ones(n * k), cells.ravel(), np.arange(0, n * k + 1, k, dtype=np.int32)),
        shape=(n, params.n_cells),
    )


@dataclass(frozen=True, eq=False)
class ReleasedDataModel:
    """A scikit-learn model fitted to released rows, with predictions for encoded rows.

    Parameters
    ----------
    params
        The public parameters of the study.
    model
        The fitted model.
    """

    params: PFDSParams
    model: Any

    @classmethod
    def train(
        cls, params: PFDSParams, learner: Any, datasets: Sequence[Dataset]
    ) -> ReleasedDataModel:
        """Return a model trained on all rows of some datasets.

        Notes
        -----
        If all rows have one label, the model predicts that label. Without rows, all labels are
        equally likely.
        """
        parts = [dataset for dataset in datasets if len(dataset)] or [
            _make_uninformative_rows(params)
        ]
        labels = np.concatenate([dataset.labels for dataset in parts])
        labels = labels / _compute_unit(params) if params.is_number else labels
        if len(np.unique(labels)) < 2 or not any(map(len, datasets)):
            learner = DummyRegressor() if params.is_number else DummyClassifier()
        columns = {
            name: np.concatenate([dataset.columns[name] for dataset in parts])
            for name in params.schema.names
        }
        with warnings.catch_warnings():
            # A learner that has almost converged is good enough.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return cls(params, learner.fit(_encode_inputs(params, learner, columns), labels))

    def probabilities(self, columns: Columns) -> Floats:
        """Return the probability of each class, ``(n, L)``."""
        if not hasattr(self.model, "predict_proba"):
            what = f"{type(self.model).__name__} does not predict probabilities."
            raise EstimatorError("USAGE-001", what, fix='Use predict, or learner="logistic".')
        inputs = _encode_inputs(self.params, self.model, columns)
        probabilities = np.zeros((inputs.shape[0], self.params.n_sides))
        probabilities[:, self.model.classes_] = self.model.predict_proba(inputs)
        return probabilities

    def decide(self, columns: Columns) -> Ints:
        """Return the position of the predicted class, ``(n,)``."""
        return np.asarray(
            self.model.predict(_encode_inputs(self.params, self.model, columns)), np.int64
        )

    def predict(self, columns: Columns) -> Floats:
        """Return the predicted numbers, ``(n,)``, inside the label's range."""
        label = self.params.label
        assert isinstance(label, Numeric)
        numbers = np.asarray(
            self.model.predict(_encode_inputs(self.params, self.model, columns)), np.float64
        )
        with np.errstate(over="ignore"):
            return np.clip(numbers.reshape(-1) * _compute_unit(self.params), label.low, label.high)


def _encode_inputs(params: PFDSParams, model: Any, columns: Columns) -> Any:
    inputs = encode_one_hot(params, columns)
    return inputs if get_tags(model).input_tags.sparse else inputs.toarray()


def _compute_unit(params: PFDSParams) -> float:
    """Return the unit of numbers for learning.

    It is 1, or a power of two if numbers are too large to be squared. Division by it loses no
    precision.
    """
    assert isinstance(params.label, Numeric)
    largest = max(abs(params.label.low), abs(params.label.high))
    return math.ldexp(1.0, max(0, math.frexp(largest)[1] - _MAX_BITS))


def _make_uninformative_rows(params: PFDSParams) -> Dataset:
    """Return a row for each class, or each end of a range, with equal features."""
    label = params.label
    labels: npt.NDArray[Any] = (
        np.array([label.low, label.high])
        if isinstance(label, Numeric)
        else np.arange(len(label.values))
    )
    return Dataset({name: np.zeros(len(labels), np.int64) for name in params.schema.names}, labels)
