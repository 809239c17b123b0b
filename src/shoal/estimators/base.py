"""What all estimators share: a fit that is whole or has not happened, a statement, and predictions in the type of y."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from shoal.domain import Categorical, Columns, Feature, Numeric, Schema
from shoal.estimators.inputs import (
    EstimatorError,
    Labels,
    as_estimator_errors,
    classes_like,
    infer_number_schema,
    infer_schema,
    rows,
    training_rows,
)
from shoal.estimators.studies import INFERRED, UNFITTED, NoGuarantee, in_short, simulated_statement
from shoal.study.label import Statement
from shoal.study.spec import Study
from shoal.table_files import Table


class Estimator(BaseEstimator):
    """A whole population on one machine: `fit` asks everyone, as the study of its settings says."""

    epsilon: float
    schema: Schema | None
    privacy_: Statement | NoGuarantee
    schema_: Schema
    model_: Any

    @abstractmethod
    def _learn(self, *data: Any) -> None:
        """Simulate the study on what `fit` was given, and keep what was learned."""

    @abstractmethod
    def _infer(self, columns: Table, labels: Labels) -> Schema:
        """The schema that the data has, where none is given."""

    @abstractmethod
    def _check_label(self, label: Feature | None) -> None:
        """Refuse a label of the wrong kind; whether there is one is for the study to say."""

    def _fit(self, *data: Any) -> Self:
        # scikit-learn's checks write down names of columns at once; a fit that fails leaves the estimator as it was.
        fitted = copy(self)
        with as_estimator_errors():
            fitted._learn(*data)
        self.__dict__ = fitted.__dict__
        return self

    def _read(self, X: Any, y: Any) -> tuple[Schema, Table, Labels]:
        """The schema that is given or inferred, and the rows, which are not compared with it yet."""
        if not isinstance(self.schema, Schema | None):
            raise EstimatorError("SCHEMA-001", f"schema is of type {type(self.schema).__name__}.", fix="Give a Schema, or None.")
        columns, labels = training_rows(self, X, y, None if self.schema is None else self.schema.columns)
        if self.schema is None:
            return self._infer(columns, labels), columns, labels
        self._check_label(self.schema.label)
        return self.schema, columns, labels

    def _encode_labels(self, schema: Schema, labels: Labels) -> npt.NDArray[Any]:
        assert schema.label is not None, "a schema without a label makes no study"
        return schema.encode_label({schema.label.name: labels})

    def _encode(self, X: Any) -> dict[str, npt.NDArray[Any]]:
        check_is_fitted(self)
        with as_estimator_errors():
            columns = rows(self, X, getattr(self, "feature_names_in_", self.schema_.columns))
            return self.schema_.encode(columns, outside="clip")

    @property
    def _is_bare(self) -> bool:
        """Whether nothing is perturbed."""
        return isinstance(self.epsilon, float | np.floating) and self.epsilon == math.inf

    @property
    def _study_epsilon(self) -> float:
        """The epsilon that the study says. It cannot say that it is infinite; all else is checked as if it were 1."""
        return 1.0 if self._is_bare else self.epsilon

    def _privacy(self, study: Study, notes: Sequence[str] = (), digest: bytes | None = None) -> Statement | NoGuarantee:
        inferred = [INFERRED] if self.schema is None else []
        return NoGuarantee() if self._is_bare else simulated_statement(study, digest, [*inferred, *notes])

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """The settings, and of a fit in one line what it spent."""
        settings = super().__repr__(N_CHAR_MAX)
        return f"{settings}\n# {in_short(self.privacy_)}" if hasattr(self, "privacy_") else settings

    def _html_repr(self) -> str:
        """scikit-learn's diagram, and under it the label of the fit, or that there was none."""
        label = self.privacy_.to_html() if hasattr(self, "privacy_") else f"<p>{UNFITTED}</p>"
        return f"{super()._html_repr()}{label}"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags


class Classifier(ClassifierMixin, Estimator):
    """Predicts one of the label's values."""

    classes_: npt.NDArray[Any]
    _class_of_position: npt.NDArray[Any]

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """The most likely class of each row; numbers outside their range are clipped, and unknown categories count as unknown.

        A value may be missing only where the schema allows it.
        """
        return self._classes(self._encode(X), self.model_)

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """The chance of each class, ``(n, L)``, in the order of `classes_`."""
        return self._chances(self._encode(X), self.model_)

    def _classes(self, columns: Columns, model: Any) -> npt.NDArray[Any]:
        classes: npt.NDArray[Any] = self._class_of_position[model.decide(columns)]
        return classes

    def _chances(self, columns: Columns, model: Any) -> npt.NDArray[np.float64]:
        chances: npt.NDArray[np.float64] = model.probabilities(columns)[:, np.argsort(self._class_of_position)]
        return chances

    def _infer(self, columns: Table, labels: Labels) -> Schema:
        schema, self._class_of_position = infer_schema(columns, labels)
        return schema

    def _check_label(self, label: Feature | None) -> None:
        if isinstance(label, Numeric):
            what = f"{type(self).__name__} predicts categories, and the label {label.name} is a number."
            raise EstimatorError("SPEC-021", what, fix="Declare the label's values, or use a regressor.")

    def _encode_labels(self, schema: Schema, labels: Labels) -> npt.NDArray[Any]:
        positions = super()._encode_labels(schema, labels)
        if self.schema is not None:
            assert isinstance(schema.label, Categorical)
            self._class_of_position = classes_like(labels, schema.label.values)
        self.classes_ = np.sort(self._class_of_position)
        return positions

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Noise drowns the few dozen rows that scikit-learn's checks have.
        tags.classifier_tags.poor_score = True
        return tags


class Regressor(RegressorMixin, Estimator):
    """Predicts a number in the label's range."""

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """The number of each row, inside the label's range; numbers outside their range are clipped, and unknown categories are unknown.

        A value may be missing only where the schema allows it.
        """
        columns = self._encode(X)
        numbers: npt.NDArray[np.float64] = self.model_.predict(columns)
        return numbers

    def _infer(self, columns: Table, labels: Labels) -> Schema:
        return infer_number_schema(columns, labels)

    def _check_label(self, label: Feature | None) -> None:
        if isinstance(label, Categorical):
            what = f"{type(self).__name__} predicts a number, and the label {label.name} is a category."
            raise EstimatorError("SPEC-021", what, fix="Declare the label's range, or use a classifier.")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # As a classifier's.
        tags.regressor_tags.poor_score = True
        return tags
