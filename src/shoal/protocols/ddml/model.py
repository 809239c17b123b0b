"""What is learned, and how it predicts. A model is plain numbers under a public schema; nothing in it can run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from shoal.domain import Categorical, Feature, Numeric, Schema
from shoal.messages.base import Record
from shoal.messages.base import describe as fault_of
from shoal.protocols.ddml.design import Columns, Design, Floats
from shoal.protocols.ddml.links import Link, means
from shoal.protocols.ddml.params import Params
from shoal.protocols.model_files import PlainCategory, PlainNumber, PlainText, describe_schema, describe_texts, unfit


@dataclass(frozen=True, eq=False)
class LinearModel(ABC):
    """Predicts the label of encoded rows by a generalised linear model, or by several.

    Parameters
    ----------
    schema
        Features, texts and the label.
    link
        How scores become predictions.
    crosses
        Pairs of names whose products are inputs too.
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
    def design(self) -> Design:
        """The inputs, in the order of the weights."""
        return Design(self.schema, self.crosses, self.centred)

    @abstractmethod
    def means(self, columns: Columns) -> Floats:
        """``(n, C)`` predicted means, for what ``schema.encode(..., outside="clip")`` gives."""

    def probabilities(self, columns: Columns) -> Floats:
        """Chance of each class, ``(n, L)``, where the label is a category."""
        chances = self.means(columns)
        return chances if self.link == "multinomial" else np.concatenate([1 - chances, chances], axis=1)

    def decide(self, columns: Columns) -> npt.NDArray[np.int64]:
        """Position of the predicted class, ``(n,)``."""
        best: npt.NDArray[np.int64] = np.argmax(self.probabilities(columns), axis=1)
        return best

    def predict(self, columns: Columns) -> Floats:
        """The predicted number, ``(n,)``, in the label's own units and inside its public range, where the label is a number."""
        label = self.schema.label
        assert isinstance(label, Numeric)
        share: Floats = np.clip(self.means(columns)[:, 0], 0, 1)
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
    >>> schema = Schema([Numeric("age", 0, 100, missing=False)], label=Categorical("ill", ["no", "yes"]))
    >>> model = GLM(schema, "logit", (), np.array([[-2.0, 4.0]]))
    >>> model.decide({"age": np.array([20.0, 80.0])})
    array([0, 1])
    """

    weights: Floats

    @classmethod
    def of(cls, params: Params, weights: npt.NDArray[Any]) -> GLM:
        """The model of a study, from its weights ``(p,)`` in units of the grid."""
        return cls(params.schema, params.link, params.crosses, _scaled(params, weights), centred=params.centred)

    def means(self, columns: Columns) -> Floats:
        return means(self.link, self.design.inputs(columns).times(self.weights))

    def to_plain(self) -> dict[str, Any]:
        """The model as plain data, for files; `from_plain` reads it."""
        form = {"link": self.link, "crosses": [list(pair) for pair in self.crosses], "centred": self.centred}
        described = {**describe_schema(self.schema), "texts": describe_texts(self.schema)}
        return {"kind": "linear", **described, **form, "weights": self.weights.tolist()}


@dataclass(frozen=True, eq=False)
class Ensemble(LinearModel):
    """Several models of one form, whose predictions are averaged instead of their weights.

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
    def of(cls, params: Params, instances: npt.NDArray[Any]) -> Ensemble:
        """The models of a study, from the weights ``(k, p)`` of its instances in units of the grid."""
        return cls(params.schema, params.link, params.crosses, _scaled(params, instances), centred=params.centred)

    def means(self, columns: Columns) -> Floats:
        inputs = self.design.inputs(columns)
        average: Floats = np.mean([means(self.link, inputs.times(weights)) for weights in self.instances], axis=0)
        return average


def _scaled(params: Params, weights: npt.NDArray[Any]) -> Floats:
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

    def model(self) -> GLM:
        label = self.label.feature()
        schema = Schema([one.feature() for one in self.features], label, [one.text() for one in self.texts])
        n_outputs = _n_outputs(self.link, label)
        pairs = tuple((first, second) for first, second in self.crosses)
        if any(first == second or not {first, second} <= set(schema.columns) for first, second in pairs):
            raise unfit("a cross does not name two features of the model")
        width = Design(schema, pairs).width
        if len(self.weights) != n_outputs or any(len(row) != width for row in self.weights):
            raise unfit(f"the weights are not {n_outputs} rows of {width}")
        return GLM(schema, self.link, pairs, np.array(self.weights, np.float64), centred=self.centred)


def _n_outputs(link: Link, label: Feature) -> int:
    """C, where link and label go together."""
    n_classes = len(label.values) if isinstance(label, Categorical) else 0
    fitting = ("identity", "log") if n_classes == 0 else ("logit", "multinomial") if n_classes == 2 else ("multinomial",)
    if link not in fitting:
        raise unfit(f"the link {link} does not fit its label")
    return n_classes if link == "multinomial" else 1


def from_plain(document: object) -> GLM:
    """The model that `GLM.to_plain` wrote; `SpecError` for anything else.

    Examples
    --------
    >>> schema = Schema([Numeric("age", 0, 100, missing=False)], label=Numeric("height", 0, 2))
    >>> model = GLM(schema, "identity", (), np.array([[0.25, 0.5]]))
    >>> from_plain(model.to_plain()).predict({"age": np.array([0.0, 100.0])})
    array([0.5, 1.5])
    """
    try:
        return _Linear.model_validate(document).model()
    except ValidationError as error:
        raise unfit(fault_of(error)) from None
