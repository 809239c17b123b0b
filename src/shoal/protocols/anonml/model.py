"""What is learned, and how it predicts. A model is plain numbers under a public schema; nothing in it can run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter, ValidationError

from shoal.domain import Categorical, Schema
from shoal.messages.base import Record
from shoal.messages.base import describe as fault_of
from shoal.protocols.anonml.classifiers import PartitionClassifier
from shoal.protocols.anonml.params import cells_of
from shoal.protocols.anonml.vote import Vote
from shoal.protocols.model_files import PlainCategory, PlainNumber, describe_schema, unfit

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Model(ABC):
    """Predicts the label of encoded rows.

    Parameters
    ----------
    schema
        Features with the bins that were used, and the label.
    """

    schema: Schema

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's values, in the order of the columns of `probabilities`."""
        label = self.schema.label
        assert isinstance(label, Categorical)
        return tuple(label.values)

    @abstractmethod
    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        """Chance of each class, ``(n, L)``, for what ``schema.encode(..., outside="clip")`` gives."""

    @abstractmethod
    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """Position of the predicted class, ``(n,)``."""

    @abstractmethod
    def to_plain(self) -> dict[str, Any]:
        """The model as plain data, for files; `from_plain` reads it."""


@dataclass(frozen=True, eq=False)
class AdditiveModel(Model):
    """A score for each class and each bin of each feature; the scores add up to log-odds.

    Parameters
    ----------
    label_shares
        ``(L,)`` shares of the classes.
    scores
        For each feature ``(L, bins)``: log(P(bin | class) / P(bin)).
    """

    label_shares: Floats
    scores: tuple[Floats, ...]

    def log_odds(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        """Unnormalised log-probabilities, ``(n, L)``."""
        total = np.log(self.label_shares)[np.newaxis, :]
        for feature, score in zip(self.schema.features, self.scores, strict=True):
            # A category that nobody declared says nothing: it scores zero, in a column behind the others.
            known = np.concatenate([score, np.zeros((len(score), 1))], axis=1)
            total = total + known.T[feature.cut(columns[feature.name])]
        return total

    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        logs = self.log_odds(columns)
        odds = np.exp(logs - logs.max(axis=1, keepdims=True))
        shares: Floats = odds / odds.sum(axis=1, keepdims=True)
        return shares

    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        best: npt.NDArray[np.int64] = np.argmax(self.log_odds(columns), axis=1)
        return best

    def to_plain(self) -> dict[str, Any]:
        scores = [score.tolist() for score in self.scores]
        return {"kind": "additive", **describe_schema(self.schema), "label_shares": self.label_shares.tolist(), "scores": scores}


@dataclass(frozen=True, eq=False)
class VoteModel(Model):
    """The weighted vote of the partitions' classifiers.

    Notes
    -----
    Ref: AnonML §VI-B, equation 2.
    """

    vote: Vote

    def _bins(self, columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        # A category that nobody declared is taken for the last one.
        bins = [np.minimum(feature.cut(columns[feature.name]), cells_of(feature) - 1) for feature in self.schema.features]
        return np.stack(bins, axis=1)

    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        return self.vote.probabilities(self._bins(columns))

    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        return self.vote.decide(self._bins(columns))

    def to_plain(self) -> dict[str, Any]:
        names = self.schema.names
        classifiers = [
            {"features": [names[j] for j in one.features], "weight": one.weight, "probabilities": one.probabilities.tolist()}
            for one in self.vote.classifiers
        ]
        return {"kind": "vote", **describe_schema(self.schema), "classifiers": classifiers}


_Score = Annotated[float, Field(ge=-1e6, le=1e6)]
_Share = Annotated[float, Field(ge=0, le=1)]
_ROUNDING = 1e-6


class _Written(Record):
    features: list[PlainNumber | PlainCategory]
    label: PlainCategory

    def read_schema(self) -> Schema:
        schema = Schema([one.feature() for one in self.features], self.label.feature())
        if any(feature.n_bins is None for feature in schema.features):
            raise unfit("a number has no bins")
        return schema


class _Additive(_Written):
    kind: Literal["additive"]
    label_shares: list[_Share]
    scores: list[list[list[_Score]]]

    def model(self) -> Model:
        schema = self.read_schema()
        n_labels = len(self.label.values)
        if len(self.scores) != len(schema.features):
            raise unfit(f"{len(self.scores)} lists of scores do not belong to {len(schema.features)} features")
        scores = tuple(_table(score, (n_labels, cells_of(one))) for score, one in zip(self.scores, schema.features, strict=True))
        shares = _shares([self.label_shares], (1, n_labels))[0]
        if not shares.all():
            raise unfit("a class has no share")
        return AdditiveModel(schema, shares, scores)


class _Classifier(Record):
    features: list[str]
    weight: _Share
    probabilities: list[list[_Share]]


class _Vote(_Written):
    kind: Literal["vote"]
    classifiers: list[_Classifier]

    def model(self) -> Model:
        schema = self.read_schema()
        position = {name: j for j, name in enumerate(schema.names)}
        classifiers = []
        for one in self.classifiers:
            if not one.features or not position.keys() >= set(one.features) or len(set(one.features)) < len(one.features):
                raise unfit("a classifier does not name features of the model, each once")
            features = tuple(position[name] for name in one.features)
            n_bins = tuple(cells_of(schema.features[j]) for j in features)
            table = _shares(one.probabilities, (math.prod(n_bins), len(self.label.values)))
            classifiers.append(PartitionClassifier(features, n_bins, table, one.weight))
        return VoteModel(schema, Vote(tuple(classifiers), len(self.label.values)))


_READER: TypeAdapter[_Additive | _Vote] = TypeAdapter(Annotated[_Additive | _Vote, Field(discriminator="kind")])


def from_plain(document: object) -> Model:
    """The model that `Model.to_plain` wrote; `SpecError` for anything else.

    Examples
    --------
    >>> from shoal.domain import Numeric
    >>> schema = Schema([Numeric("age", 17, 90, bins=[40], missing=False)], label=Categorical("ill", ["no", "yes"]))
    >>> model = AdditiveModel(schema, np.array([0.5, 0.5]), (np.array([[0.2, -0.3], [-0.2, 0.3]]),))
    >>> from_plain(model.to_plain()).decide({"age": np.array([20.0, 60.0])})
    array([0, 1])
    """
    try:
        return _READER.validate_python(document).model()
    except ValidationError as error:
        raise unfit(fault_of(error)) from None


def _table(rows: list[list[float]], shape: tuple[int, int]) -> Floats:
    if len(rows) != shape[0] or any(len(row) != shape[1] for row in rows):
        raise unfit(f"a table does not have {shape[0]} rows of {shape[1]}")
    return np.array(rows, np.float64)


def _shares(rows: list[list[float]], shape: tuple[int, int]) -> Floats:
    table = _table(rows, shape)
    if np.abs(table.sum(axis=1) - 1).max() > _ROUNDING:
        raise unfit("shares do not add up to 1")
    return table
