"""The learned model.

A model is plain numbers under a public schema; it contains no code. `from_plain` must reject every
document that `ClassificationModel.to_plain` does not write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, TypeAdapter, ValidationError

from shoal.data.schema import Schema
from shoal.messages.base import Record, describe_validation_error
from shoal.protocols.additive_model import AdditiveModel, ClassificationModel
from shoal.protocols.anonml.ensemble import PartitionClassifier, WeightedVote
from shoal.protocols.anonml.params import count_cells
from shoal.protocols.schema_json import (
    PlainCategory,
    PlainNumber,
    describe_schema,
    invalid_model_error,
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class VoteModel(ClassificationModel):
    """The weighted vote of the partitions' classifiers.

    Notes
    -----
    Ref: AnonML §VI-B, equation 2.
    """

    vote: WeightedVote

    def _compute_bins(self, columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        # An undeclared category counts as the last one.
        bins = [
            np.minimum(feature.cut(columns[feature.name]), count_cells(feature) - 1)
            for feature in self.schema.features
        ]
        return np.stack(bins, axis=1)

    def probabilities(self, columns: Mapping[str, npt.NDArray[Any]]) -> Floats:
        return self.vote.probabilities(self._compute_bins(columns))

    def decide(self, columns: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        return self.vote.decide(self._compute_bins(columns))

    def to_plain(self) -> dict[str, Any]:
        names = self.schema.names
        classifiers = [
            {
                "features": [names[j] for j in classifier.features],
                "weight": classifier.weight,
                "probabilities": classifier.probabilities.tolist(),
            }
            for classifier in self.vote.classifiers
        ]
        return {"kind": "vote", **describe_schema(self.schema), "classifiers": classifiers}


_Score = Annotated[float, Field(ge=-1e6, le=1e6)]
_Share = Annotated[float, Field(ge=0, le=1)]
_ROUNDING = 1e-6


class _ModelRecord(Record):
    features: list[PlainNumber | PlainCategory]
    label: PlainCategory

    def read_schema(self) -> Schema:
        schema = Schema(
            [document.make_feature() for document in self.features], self.label.make_feature()
        )
        if any(feature.n_bins is None for feature in schema.features):
            raise invalid_model_error("a number has no bins")
        return schema


class _Additive(_ModelRecord):
    kind: Literal["additive"]
    label_shares: list[_Share]
    scores: list[list[list[_Score]]]

    def make_model(self) -> ClassificationModel:
        schema = self.read_schema()
        n_labels = len(self.label.values)
        if len(self.scores) != len(schema.features):
            raise invalid_model_error(
                f"{len(self.scores)} lists of scores do not belong to {len(schema.features)} "
                "features"
            )
        scores = tuple(
            _parse_table(score, (n_labels, count_cells(one)))
            for score, one in zip(self.scores, schema.features, strict=True)
        )
        shares = _parse_shares([self.label_shares], (1, n_labels))[0]
        if not shares.all():
            raise invalid_model_error("a class has no share")
        return AdditiveModel(schema, shares, scores)


class _ClassifierRecord(Record):
    features: list[str]
    weight: _Share
    probabilities: list[list[_Share]]


class _Vote(_ModelRecord):
    kind: Literal["vote"]
    classifiers: list[_ClassifierRecord]

    def make_model(self) -> ClassificationModel:
        schema = self.read_schema()
        position = {name: j for j, name in enumerate(schema.names)}
        classifiers = []
        for one in self.classifiers:
            if (
                not one.features
                or not position.keys() >= set(one.features)
                or len(set(one.features)) < len(one.features)
            ):
                raise invalid_model_error(
                    "a classifier does not name features of the model, each once"
                )
            features = tuple(position[name] for name in one.features)
            n_bins = tuple(count_cells(schema.features[j]) for j in features)
            table = _parse_shares(one.probabilities, (math.prod(n_bins), len(self.label.values)))
            classifiers.append(PartitionClassifier(features, n_bins, table, one.weight))
        return VoteModel(schema, WeightedVote(tuple(classifiers), len(self.label.values)))


_READER: TypeAdapter[_Additive | _Vote] = TypeAdapter(
    Annotated[_Additive | _Vote, Field(discriminator="kind")]
)


def from_plain(document: object) -> ClassificationModel:
    """Return the model that `ClassificationModel.to_plain` wrote; raise `SpecError` otherwise.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Numeric
    >>> schema = Schema(
    ...     [Numeric("age", 17, 90, bins=[40], missing=False)],
    ...     label=Categorical("ill", ["no", "yes"]),
    ... )
    >>> model = AdditiveModel(schema, np.array([0.5, 0.5]), (np.array([[0.2, -0.3], [-0.2, 0.3]]),))
    >>> from_plain(model.to_plain()).decide({"age": np.array([20.0, 60.0])})
    array([0, 1])
    """
    try:
        return _READER.validate_python(document).make_model()
    except ValidationError as error:
        raise invalid_model_error(describe_validation_error(error)) from None


def _parse_table(rows: list[list[float]], shape: tuple[int, int]) -> Floats:
    if len(rows) != shape[0] or any(len(row) != shape[1] for row in rows):
        raise invalid_model_error(f"a table does not have {shape[0]} rows of {shape[1]}")
    return np.array(rows, np.float64)


def _parse_shares(rows: list[list[float]], shape: tuple[int, int]) -> Floats:
    table = _parse_table(rows, shape)
    if np.abs(table.sum(axis=1) - 1).max() > _ROUNDING:
        raise invalid_model_error("shares do not add up to 1")
    return table
