"""A model of any protocol with its provenance and stated guarantee.

`shoal.models.reader` makes a `Model` from a file, and ``shoal model`` and the report use it. A
statement in a model file is not verified: only a study's manifest and a signature prove more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from shoal.data.cells import as_column, to_numbers, to_texts
from shoal.data.schema import Categorical, Feature, Numeric, Schema
from shoal.errors import UsageError
from shoal.privacy.rounding import format_epsilon
from shoal.protocols.additive_model import AdditiveModel
from shoal.protocols.anonml import model as anonml
from shoal.protocols.anonml.model import VoteModel
from shoal.protocols.ddml import model as ddml
from shoal.protocols.ddml.model import GLM
from shoal.protocols.pfds import model as pfds
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.sdq import model as sdq
from shoal.protocols.sdq.model import DecisionTree
from shoal.text import format_count

ProtocolModel = AdditiveModel | VoteModel | DecisionTree | GLM | PooledModel
ProtocolName = Literal["anonml", "ddml", "sdq", "pfds"]
"""Protocol names in model files; `shoal.study.spec` has the same for study files."""
Floats = npt.NDArray[np.float64]

FORMAT = "shoal model"
VERSION = 1


@dataclass(frozen=True)
class ModelKind:
    """A form of model.

    Parameters
    ----------
    protocols
        Protocols that learn it.
    read
        Parses its plain data; raises `SpecError` if invalid.
    """

    description: str
    protocols: tuple[str, ...]
    read: Callable[[object], Any]


MODEL_KINDS: Mapping[str, ModelKind] = {
    "additive": ModelKind(
        "scores of cells that add up to log-odds (as naive Bayes)",
        ("anonml", "sdq"),
        anonml.from_plain,
    ),
    "vote": ModelKind("a weighted vote of small classifiers", ("anonml",), anonml.from_plain),
    "tree": ModelKind("a decision tree", ("sdq",), sdq.from_plain),
    "linear": ModelKind("a generalised linear model", ("ddml",), ddml.from_plain),
    "pooled": ModelKind(
        "weights of cells that add up, from pooled tables", ("pfds",), pfds.from_plain
    ),
}
"""Kind in a model file -> form of the model."""


@dataclass(frozen=True, eq=False)
class Model:
    """A learned model with the provenance that its file states.

    Parameters
    ----------
    protocol, variant, title, digest
        Those of the study; None if the file does not state them. The digest is that of the
        manifest, in hexadecimal digits.
    is_simulated
        True if a simulation learned the model, which protects no one; None if the file does not
        say.
    statement
        The study's privacy statement as plain data, if the file has one. It is not verified: the
        file does not prove that the study ran.

    Examples
    --------
    >>> schema = {"features": [{"name": "age", "missing": False, "range": [17, 90], "bins": [40]}]}
    >>> label = {"name": "ill", "missing": False, "values": ["no", "yes"], "groups": None}
    >>> from shoal.models import read_model
    >>> plain = {
    ...     "kind": "additive",
    ...     **schema,
    ...     "label": label,
    ...     "label_shares": [0.5, 0.5],
    ...     "scores": [[[0.2, -0.3], [-0.2, 0.3]]],
    ... }
    >>> read_model(plain).predict({"age": [20, 60, 300]}).tolist()
    ['no', 'yes', 'yes']
    """

    protocol_model: ProtocolModel
    protocol: str | None = None
    variant: str | None = None
    title: str | None = None
    digest: str | None = None
    is_simulated: bool | None = None
    statement: Mapping[str, Any] | None = None

    @property
    def kind(self) -> str:
        """The kind, a key of `MODEL_KINDS`."""
        match self.protocol_model:
            case DecisionTree():
                return "tree"
            case VoteModel():
                return "vote"
            case GLM():
                return "linear"
            case PooledModel():
                return "pooled"
        return "additive"

    @property
    def schema(self) -> Schema:
        """Features and label."""
        return self.protocol_model.schema

    @property
    def label(self) -> Feature:
        """The label."""
        assert self.schema.label is not None, "every reader of models requires a label"
        return self.schema.label

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's values, in the order of the columns of `probabilities`; empty for numbers."""
        return tuple(self.label.values) if isinstance(self.label, Categorical) else ()

    def predict(self, columns: Mapping[str, Any]) -> npt.NDArray[Any]:
        """Return the predicted class of each row, as text, or the predicted number.

        Parameters
        ----------
        columns
            The cells of each feature by name: a mapping, or a data frame. Numbers outside their
            range are clipped, and undeclared categories count as unknown. A value may be missing
            only if the schema allows it.

        Raises
        ------
        SpecError
            A column is absent, or a cell cannot be parsed.
        """
        encoded = self.schema.encode(columns, outside="clip")
        if not isinstance(self.protocol_model, GLM | PooledModel) or self.classes:
            return np.array(self.classes, object)[self.protocol_model.decide(encoded)]
        return self.protocol_model.predict(encoded)

    def probabilities(self, columns: Mapping[str, Any]) -> Floats:
        """Return the probability of each class, ``(n, L)``, in the order of `classes`.

        Rows are as for `predict`.

        Raises
        ------
        UsageError
            The model predicts a number.
        """
        if not self.classes:
            raise UsageError(
                "USAGE-001",
                "This model predicts a number. It has no classes with probabilities.",
                fix="Use predict.",
            )
        return self.protocol_model.probabilities(self.schema.encode(columns, outside="clip"))

    def to_plain(self) -> dict[str, Any]:
        """Return the model alone as plain data, in the form of its protocol."""
        return self.protocol_model.to_plain()

    def to_document(self) -> dict[str, Any]:
        """Return the model with its provenance as plain data, for `read_model`.

        ``docs/reference/model.md`` describes the form.
        """
        return {
            "format": FORMAT,
            "version": VERSION,
            "simulated": self.is_simulated,
            "protocol": self.protocol,
            "variant": self.variant,
            "title": self.title,
            "study": self.digest,
            "statement": None if self.statement is None else dict(self.statement),
            "model": self.to_plain(),
        }


_Epsilon = Annotated[float, Field(ge=0, le=1e12)]
_Delta = Annotated[float, Field(ge=0, le=1)]
_LongText = Annotated[str, Field(max_length=4000)]


class _StatementPart(BaseModel):
    """A part of a statement, with fields of exact types.

    Unknown fields are kept unchanged.
    """

    model_config = ConfigDict(
        strict=True, frozen=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=True
    )


class Price(_StatementPart):
    """An epsilon and a delta."""

    epsilon: _Epsilon
    delta: _Delta


class ShuffledPrice(Price):
    """A price after shuffling among `n` honest messages."""

    n: Annotated[int, Field(ge=1)]


class Guarantee(Price):
    """The required part of a statement.

    An epsilon is always stated with unit, relation and adversary.
    """

    title: _LongText
    unit: Literal["person", "record", "update", "weight"]
    relation: Literal["replace", "add-remove"]
    adversary: _LongText
    how: _LongText
    everything: Price
    shuffled: ShuffledPrice | None = None
    provided: _LongText = ""
    simulated: bool = False

    def __str__(self) -> str:
        scope = f"unit {self.unit}, relation {self.relation}, against {self.adversary}"
        stated = f"{_format_price(self)} ({self.how}; {scope})"
        if self.unit == "weight":
            stated = (
                f"{_format_price(self.everything)} for everything that one participant sends; "
                f"{_format_price(self)} for each single weight ({scope})"
            )
        if self.shuffled is not None:
            messages = format_count(self.shuffled.n, "honest message")
            stated += (
                f"; {_format_price(self.shuffled)} against those who see only a shuffled "
                f"batch of {messages}"
            )
        return stated + (f"; provided that {self.provided}" if self.provided else "")


def _format_price(price: Price) -> str:
    return f"epsilon {format_epsilon(price.epsilon)}, delta {format_epsilon(price.delta)}"


def count_unknown_cells(schema: Schema, columns: Mapping[str, Any]) -> dict[str, int]:
    """Return how many cells of each feature prediction clips or treats as unknown.

    Features without such cells are omitted.

    Examples
    --------
    >>> from shoal.data.schema import Categorical
    >>> schema = Schema([Numeric("age", 17, 90), Categorical("sex", ["f", "m"])])
    >>> count_unknown_cells(schema, {"age": [20, 130, None], "sex": ["f", "?", ""]})
    {'age': 1, 'sex': 1}
    """
    counts = {
        feature.name: _count_unknown(feature, columns[feature.name]) for feature in schema.features
    }
    return {name: n for name, n in counts.items() if n}


def _count_unknown(feature: Feature, column: Any) -> int:
    cells = as_column(feature.name, column)
    if isinstance(feature, Numeric):
        numbers = to_numbers(feature.name, cells)
        return int(np.count_nonzero((numbers < feature.low) | (numbers > feature.high)))
    known = {None, *feature.values}
    return sum(text not in known for text in to_texts(feature.name, cells))
