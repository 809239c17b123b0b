"""Generalised linear models: predictions.

A model is plain numbers under a public schema; it contains no code. `from_plain` must reject every
document that `GLM.to_plain` does not write.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.messages.base import Record, describe_validation_error
from shoal.protocols.ddml.design_matrix import Columns, Floats, InputDesign
from shoal.protocols.ddml.links import Link, predict_means
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.schema_json import (
    PlainCategory,
    PlainNumber,
    PlainText,
    describe_schema,
    describe_texts,
    invalid_model_error,
)


@dataclass(frozen=True, eq=False)
class LinearModel(ABC):
    """A generalised linear model, or several, for the label of encoded rows.

    Parameters
    ----------
    schema
        Features, texts and the label.
    crosses
        Pairs of names; their products are inputs too.
    centred
        Whether the inputs are centred.
    """

    schema: Schema
    link: Link
    crosses: tuple[tuple[str, str], ...]
    centred: bool = field(default=False, kw_only=True)

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's values, in the order of the columns of `probabilities`."""
        label = self.schema.label
        assert isinstance(label, Categorical)
        return tuple(label.values)

    @property
    def design(self) -> InputDesign:
        """The inputs, in the order of the weights."""
        return InputDesign(self.schema, self.crosses, self.centred)

    @abstractmethod
    def predict_means(self, columns: Columns) -> Floats:
        """Return the ``(n, C)`` predicted means.

        ``columns`` is the result of ``schema.encode(..., outside="clip")``.
        """

    def probabilities(self, columns: Columns) -> Floats:
        """Return the probability of each class, ``(n, L)``, if the label is a category."""
        chances = self.predict_means(columns)
        return (
            chances
            if self.link == "multinomial"
            else np.concatenate([1 - chances, chances], axis=1)
        )

    def decide(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Return the position of the predicted class, ``(n,)``."""
        best: npt.NDArray[np.int64] = np.argmax(self.probabilities(columns), axis=1)
        return best

    def predict(self, columns: Columns) -> Floats:
        """Return the predicted number, ``(n,)``, if the label is a number.

        It is in the label's own units and inside its public range.
        """
        label = self.schema.label
        assert isinstance(label, Numeric)
        share: Floats = np.clip(self.predict_means(columns)[:, 0], 0, 1)
        return label.low + (label.high - label.low) * share


@dataclass(frozen=True, eq=False)
class GLM(LinearModel):
    """A generalised linear model.

    Parameters
    ----------
    weights
        ``(C, d)`` float64: for each score the weights of the inputs, the constant first.

    Notes
    -----
    Ref: DDML §III-A, equation (1).

    Examples
    --------
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100, missing=False)], label=Categorical("ill", ["no", "yes"])
    ... )
    >>> model = GLM(schema, "logit", (), np.array([[-2.0, 4.0]]))
    >>> model.decide({"age": np.array([20.0, 80.0])})
    array([0, 1])
    """

    weights: Floats

    @classmethod
    def from_grid_weights(cls, params: DDMLParams, weights: npt.NDArray[Any]) -> GLM:
        """Return the model of a study, from its weights ``(p,)`` in units of the grid."""
        return cls(
            params.schema,
            params.link,
            params.crosses,
            _scale_weights(params, weights),
            centred=params.centred,
        )

    def predict_means(self, columns: Columns) -> Floats:
        return predict_means(self.link, self.design.make_inputs(columns).multiply(self.weights))

    def to_plain(self) -> dict[str, Any]:
        """Return the model as plain data for files; `from_plain` reads it."""
        form = {
            "link": self.link,
            "crosses": [list(pair) for pair in self.crosses],
            "centred": self.centred,
        }
        described = {**describe_schema(self.schema), "texts": describe_texts(self.schema)}
        return {"kind": "linear", **described, **form, "weights": self.weights.tolist()}


@dataclass(frozen=True, eq=False)
class InstanceEnsemble(LinearModel):
    """Several models of one form, with averaged predictions instead of averaged weights.

    Parameters
    ----------
    instances
        ``(k, C, d)`` float64: the weights of each.

    Notes
    -----
    Ref: DDML §III-C, prediction.
    """

    instances: Floats

    @classmethod
    def from_grid_weights(cls, params: DDMLParams, instances: npt.NDArray[Any]) -> InstanceEnsemble:
        """Return the models of a study, from its instances ``(k, p)`` in units of the grid."""
        return cls(
            params.schema,
            params.link,
            params.crosses,
            _scale_weights(params, instances),
            centred=params.centred,
        )

    def predict_means(self, columns: Columns) -> Floats:
        inputs = self.design.make_inputs(columns)
        average: Floats = np.mean(
            [predict_means(self.link, inputs.multiply(weights)) for weights in self.instances],
            axis=0,
        )
        return average


def _scale_weights(params: DDMLParams, weights: npt.NDArray[Any]) -> Floats:
    floats: Floats = weights.astype(np.float64) * 2.0**-params.fraction_bits
    return floats.reshape(*weights.shape[:-1], params.n_outputs, params.design.width)


_Weight = Annotated[float, Field(ge=-(2.0**31), le=2.0**31)]


class _Linear(Record):
    kind: Literal["linear"]
    features: list[PlainNumber | PlainCategory]
    texts: list[PlainText]
    label: PlainNumber | PlainCategory
    link: Link
    crosses: list[Annotated[list[str], Field(min_length=2, max_length=2)]]
    centred: bool
    weights: list[list[_Weight]]

    def make_model(self) -> GLM:
        label = self.label.make_feature()
        schema = Schema(
            [feature.make_feature() for feature in self.features],
            label,
            [feature.make_text() for feature in self.texts],
        )
        n_outputs = _count_outputs(self.link, label)
        pairs = tuple((first, second) for first, second in self.crosses)
        if any(
            first == second or not {first, second} <= set(schema.columns) for first, second in pairs
        ):
            raise invalid_model_error("a cross does not name two features of the model")
        width = InputDesign(schema, pairs).width
        if len(self.weights) != n_outputs or any(len(row) != width for row in self.weights):
            raise invalid_model_error(f"the weights are not {n_outputs} rows of {width}")
        return GLM(
            schema, self.link, pairs, np.array(self.weights, np.float64), centred=self.centred
        )


def _count_outputs(link: Link, label: Feature) -> int:
    """Return C; raise `SpecError` if link and label do not match."""
    n_classes = len(label.values) if isinstance(label, Categorical) else 0
    valid_links = (
        ("identity", "log")
        if n_classes == 0
        else ("logit", "multinomial")
        if n_classes == 2
        else ("multinomial",)
    )
    if link not in valid_links:
        raise invalid_model_error(f"the link {link} does not match its label")
    return n_classes if link == "multinomial" else 1


def from_plain(document: object) -> GLM:
    """Return the model that `GLM.to_plain` wrote; raise `SpecError` otherwise.

    Examples
    --------
    >>> schema = Schema([Numeric("age", 0, 100, missing=False)], label=Numeric("height", 0, 2))
    >>> model = GLM(schema, "identity", (), np.array([[0.25, 0.5]]))
    >>> from_plain(model.to_plain()).predict({"age": np.array([0.0, 100.0])})
    array([0.5, 1.5])
    """
    try:
        return _Linear.model_validate(document).make_model()
    except ValidationError as error:
        raise invalid_model_error(describe_validation_error(error)) from None
