"""Base classes, the simulated study, and `privacy_`.

The estimators of all protocols inherit from these classes. A fit succeeds completely or leaves the
estimator unchanged. Settings are validated and priced as a study file, so that an estimator has no
second set of rules. Predictions have the type of y.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from shoal.data.schema import Categorical, Columns, Feature, Numeric, Schema, Text
from shoal.data.tables import Table
from shoal.estimators.inputs import (
    EstimatorError,
    Labels,
    infer_number_schema,
    infer_schema,
    match_classes,
    read_rows,
    read_training_rows,
    translate_spec_errors,
)
from shoal.privacy.events import Unit
from shoal.privacy.rounding import format_epsilon
from shoal.study.explain import explain
from shoal.study.label import SIMULATED, Statement
from shoal.study.plan import make_plan
from shoal.study.registry import PROTOCOLS
from shoal.study.spec import Study
from shoal.study.validation import parse_study
from shoal.text import format_count

INFERRED = (
    "ranges and categories, which were inferred from the data: a model fitted this way must not "
    "be released"
)
UNFITTED = (
    "Not fitted: nothing was spent. Each fit spends its epsilon, including those of a search or "
    "a cross-validation."
)
TRUE_SIZE = "the total number of rows: the simulation uses it as the declared size"


@dataclass(frozen=True)
class NoGuarantee:
    """The statement of a fit without noise."""

    epsilon: float = math.inf
    simulated: bool = True

    def __str__(self) -> str:
        return (
            "NO PRIVACY: epsilon is infinite, no noise was added, and there is no guarantee. "
            f"{SIMULATED}"
        )

    def to_html(self) -> str:
        """Return the text as a paragraph."""
        return f"<p>{self}</p>"

    def _repr_html_(self) -> str:
        return self.to_html()


def format_guarantee(privacy: Statement | NoGuarantee) -> str:
    """Format a guarantee on one line: epsilon with unit, relation and adversary."""
    if isinstance(privacy, NoGuarantee):
        return str(privacy)
    guarantee = (
        f"epsilon {format_epsilon(privacy.epsilon)}, delta "
        f"{format_epsilon(privacy.delta)} (unit {privacy.scope})"
    )
    if privacy.scope.unit is Unit.WEIGHT:
        guarantee = (
            f"epsilon {format_epsilon(privacy.everything[0])} for everything sent; {guarantee}"
        )
    return f"fitted, simulated: {guarantee}"


def describe_dealt_rows(nouns: str) -> str:
    """Return the exclusion for a fit in which the owners of rows are not given."""
    return (
        f"the owners of rows: none were given, and the rows were assigned at random to fictitious "
        f"{nouns}"
    )


def make_study(schema: Schema, n_peers: int, settings: Mapping[str, Any]) -> Study:
    """Return the study of a schema and settings, in which all peers take part.

    Parameters
    ----------
    n_peers
        The declared size, and the minimum participation.
    settings
        All other tables and keys of the study; its participation table is merged.

    Raises
    ------
    EstimatorError
        The settings are inconsistent; code and sentence are those of a study file.
    """
    if schema.label is None:
        raise EstimatorError(
            "SCHEMA-001", "The schema declares no label.", fix="Give Schema(..., label=...)."
        )
    holders = PROTOCOLS[settings["protocol"]].holders
    noun = holders.singular if holders.are_organisations else "peer"
    # The texts are part of the manifest: a change of them changes the digest of the study.
    document = {
        "title": "A simulation",
        "purpose": f"To predict {schema.label.name} from "
        f"{format_count(len(schema.columns), 'feature')} of {format_count(n_peers, noun)}.",
        "contact": "whoever runs it",
        "label": _make_column(schema.label),
        "feature": [*map(_make_feature, schema.features), *map(_make_text, schema.texts)],
        **settings,
        "participation": {"minimum": n_peers, "size": n_peers, **settings.get("participation", {})},
    }
    try:
        return parse_study(_convert_numbers(document))
    except ValidationError as error:
        problem = explain(error)[0]
        raise EstimatorError(problem.code, problem.what, fix=problem.fix) from None


def _make_column(feature: Feature) -> dict[str, Any]:
    """Return a column with the keys of a study file."""
    if isinstance(feature, Numeric):
        return {"name": feature.name, "range": [feature.low, feature.high]}
    return {"name": feature.name, "values": list(feature.values)}


def _make_feature(feature: Feature) -> dict[str, Any]:
    return {**_make_column(feature), **_make_cut(feature), "missing": feature.missing}


def _make_text(text: Text) -> dict[str, Any]:
    return {
        "name": text.name,
        "buckets": text.buckets,
        "ngrams": text.ngrams,
        "missing": text.missing,
    }


def _make_cut(feature: Feature) -> dict[str, Any]:
    if isinstance(feature, Numeric):
        return {"bins": None if feature.bins is None else list(feature.bins)}
    return {
        "groups": None
        if feature.groups is None
        else {name: list(members) for name, members in feature.groups.items()}
    }


def make_simulated_statement(study: Study, digest: bytes | None, notes: Sequence[str]) -> Statement:
    """Return the label of a simulated study.

    `digest` replaces that of the manifest, if one is needed, and `notes` are further exclusions.
    """
    statement = make_plan(study, digest).make_statement()
    return replace(statement, simulated=True, not_covered=(*notes, *statement.not_covered))


def _convert_numbers(value: Any) -> Any:
    """Return the value with numbers of Python instead of NumPy's.

    Grids of settings and schemas may contain NumPy's, but a study is strict about types.
    """
    if isinstance(value, Mapping):
        return {key: _convert_numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_convert_numbers(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


class SimulatedEstimator(BaseEstimator):
    """A simulated population: `fit` runs the study that follows from the settings."""

    epsilon: float
    schema: Schema | None
    privacy_: Statement | NoGuarantee
    schema_: Schema
    model_: Any

    @abstractmethod
    def _learn(self, *data: Any) -> None:
        """Simulate the study on the data of `fit`, and store the result."""

    @abstractmethod
    def _infer(self, columns: Table, labels: Labels) -> Schema:
        """Return a schema inferred from the data."""

    @abstractmethod
    def _check_label(self, label: Feature | None) -> None:
        """Raise for a label of the wrong type; the study checks that there is one."""

    def _fit(self, *data: Any) -> Self:
        # scikit-learn's checks store the names of columns first. A fit that fails must leave the
        # estimator unchanged.
        fitted = copy(self)
        with translate_spec_errors():
            fitted._learn(*data)
        self.__dict__ = fitted.__dict__
        return self

    def _read_rows(self, X: Any, y: Any) -> tuple[Schema, Table, Labels]:
        """Return the given or inferred schema, and the rows, not yet validated by it."""
        if not isinstance(self.schema, Schema | None):
            raise EstimatorError(
                "SCHEMA-001",
                f"The schema has type {type(self.schema).__name__}.",
                fix="Give a Schema, or None.",
            )
        columns, labels = read_training_rows(
            self, X, y, None if self.schema is None else self.schema.columns
        )
        if self.schema is None:
            return self._infer(columns, labels), columns, labels
        self._check_label(self.schema.label)
        return self.schema, columns, labels

    def _encode_labels(self, schema: Schema, labels: Labels) -> npt.NDArray[Any]:
        assert schema.label is not None, "make_study requires a label"
        return schema.encode_label({schema.label.name: labels})

    def _encode(self, X: Any) -> dict[str, npt.NDArray[Any]]:
        check_is_fitted(self)
        with translate_spec_errors():
            columns = read_rows(self, X, getattr(self, "feature_names_in_", self.schema_.columns))
            return self.schema_.encode(columns, outside="clip")

    @property
    def _is_noiseless(self) -> bool:
        """True if no noise is added."""
        return isinstance(self.epsilon, float | np.floating) and self.epsilon == math.inf

    @property
    def _study_epsilon(self) -> float:
        """The epsilon of the study.

        A study cannot have an infinite epsilon; it is validated with 1 instead.
        """
        return 1.0 if self._is_noiseless else self.epsilon

    def _make_statement(
        self, study: Study, notes: Sequence[str] = (), digest: bytes | None = None
    ) -> Statement | NoGuarantee:
        inferred = [INFERRED] if self.schema is None else []
        return (
            NoGuarantee()
            if self._is_noiseless
            else make_simulated_statement(study, digest, [*inferred, *notes])
        )

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """Return the settings, and after a fit one line with its guarantee."""
        settings = super().__repr__(N_CHAR_MAX)
        return (
            f"{settings}\n# {format_guarantee(self.privacy_)}"
            if hasattr(self, "privacy_")
            else settings
        )

    def _html_repr(self) -> str:
        """Return scikit-learn's diagram, followed by the label of the fit."""
        label = self.privacy_.to_html() if hasattr(self, "privacy_") else f"<p>{UNFITTED}</p>"
        return f"{super()._html_repr()}{label}"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags


class SimulatedClassifier(ClassifierMixin, SimulatedEstimator):
    """An estimator that predicts one of the label's values."""

    classes_: npt.NDArray[Any]
    _classes_by_position: npt.NDArray[Any]

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most likely class of each row.

        Numbers outside their range are clipped, and undeclared categories count as unknown. A value
        may be missing only if the schema allows it.
        """
        return self._predict_classes(self._encode(X), self.model_)

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the probability of each class, ``(n, L)``, in the order of `classes_`."""
        return self._predict_probabilities(self._encode(X), self.model_)

    def _predict_classes(self, columns: Columns, model: Any) -> npt.NDArray[Any]:
        classes: npt.NDArray[Any] = self._classes_by_position[model.decide(columns)]
        return classes

    def _predict_probabilities(self, columns: Columns, model: Any) -> npt.NDArray[np.float64]:
        probabilities: npt.NDArray[np.float64] = model.probabilities(columns)[
            :, np.argsort(self._classes_by_position)
        ]
        return probabilities

    def _infer(self, columns: Table, labels: Labels) -> Schema:
        schema, self._classes_by_position = infer_schema(columns, labels)
        return schema

    def _check_label(self, label: Feature | None) -> None:
        if isinstance(label, Numeric):
            what = (
                f"{type(self).__name__} predicts categories, but the label {label.name} is a "
                "number."
            )
            raise EstimatorError(
                "SPEC-021", what, fix="Declare the label's values, or use a regressor."
            )

    def _encode_labels(self, schema: Schema, labels: Labels) -> npt.NDArray[Any]:
        positions = super()._encode_labels(schema, labels)
        if self.schema is not None:
            assert isinstance(schema.label, Categorical)
            self._classes_by_position = match_classes(labels, schema.label.values)
        self.classes_ = np.sort(self._classes_by_position)
        return positions

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # scikit-learn's checks have a few dozen rows, which are too few for the noise.
        tags.classifier_tags.poor_score = True
        return tags


class SimulatedRegressor(RegressorMixin, SimulatedEstimator):
    """An estimator that predicts a number in the label's range."""

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the number of each row, inside the label's range.

        Numbers outside their range are clipped, and undeclared categories count as unknown. A value
        may be missing only if the schema allows it.
        """
        columns = self._encode(X)
        numbers: npt.NDArray[np.float64] = self.model_.predict(columns)
        return numbers

    def _infer(self, columns: Table, labels: Labels) -> Schema:
        return infer_number_schema(columns, labels)

    def _check_label(self, label: Feature | None) -> None:
        if isinstance(label, Categorical):
            what = (
                f"{type(self).__name__} predicts a number, but the label {label.name} is a "
                "category."
            )
            raise EstimatorError(
                "SPEC-021", what, fix="Declare the label's range, or use a classifier."
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # See `SimulatedClassifier`.
        tags.regressor_tags.poor_score = True
        return tags
