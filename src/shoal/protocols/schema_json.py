"""Schemas as plain JSON, for model files.

The writers of model files call `describe_schema`, their readers the classes at the end. Keys and
values are those of a study file; a model file contains no code.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from shoal.data.schema import Categorical, Feature, Numeric, Schema, Text
from shoal.errors import SpecError
from shoal.messages.base import Record

_Real = int | float


def describe_schema(schema: Schema) -> dict[str, Any]:
    """Return the features and the label of a model as plain data.

    Texts, if its protocol has them, are written apart.
    """
    assert schema.label is not None
    return {
        "features": [describe_feature(feature) for feature in schema.features],
        "label": describe_feature(schema.label),
    }


def describe_texts(schema: Schema) -> list[dict[str, Any]]:
    """Return the texts of a model as plain data."""
    return [
        {"name": text.name, "missing": text.missing, "buckets": text.buckets, "ngrams": text.ngrams}
        for text in schema.texts
    ]


def describe_feature(feature: Feature) -> dict[str, Any]:
    """Return a feature with the keys of a study file.

    Groups are a list, because their order is the order of the bins.
    """
    common: dict[str, Any] = {"name": feature.name, "missing": feature.missing}
    if isinstance(feature, Numeric):
        return {
            **common,
            "range": [feature.low, feature.high],
            "bins": None if feature.bins is None else list(feature.bins),
        }
    groups = (
        None
        if feature.groups is None
        else [{"name": name, "values": list(members)} for name, members in feature.groups.items()]
    )
    return {**common, "values": list(feature.values), "groups": groups}


def invalid_model_error(what: str) -> SpecError:
    """Return the error for a document that is not a model."""
    return SpecError(
        "MODEL-001", f"This is not a model: {what}.", fix="Use the file as it was written."
    )


class PlainNumber(Record):
    """A number as a model file states it."""

    name: str
    missing: bool
    range: Annotated[list[_Real], Field(min_length=2, max_length=2)]
    bins: list[_Real] | None

    def make_feature(self) -> Feature:
        return Numeric(self.name, self.range[0], self.range[1], self.bins, self.missing)


class PlainGroup(Record):
    """A group of values as a model file states it."""

    name: str
    values: list[str]


class PlainCategory(Record):
    """A category as a model file states it."""

    name: str
    missing: bool
    values: list[str]
    groups: list[PlainGroup] | None

    def make_feature(self) -> Feature:
        groups = (
            None if self.groups is None else {group.name: group.values for group in self.groups}
        )
        return Categorical(self.name, self.values, groups, self.missing)


class PlainText(Record):
    """A text as a model file states it."""

    name: str
    missing: bool
    buckets: int
    ngrams: int

    def make_text(self) -> Text:
        return Text(self.name, self.buckets, self.ngrams, self.missing)
