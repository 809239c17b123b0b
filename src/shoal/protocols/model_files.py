"""Schemas as plain data, for the files of models: in the words of a study file, and nothing that can run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from shoal.domain import Categorical, Feature, Numeric, Schema, Text
from shoal.errors import SpecError
from shoal.messages.base import Record

_Real = int | float


def describe_schema(schema: Schema) -> dict[str, Any]:
    """The features and the label of a model as plain data; texts, if its protocol has them, are written apart."""
    assert schema.label is not None
    return {"features": [describe(feature) for feature in schema.features], "label": describe(schema.label)}


def describe_texts(schema: Schema) -> list[dict[str, Any]]:
    """The texts of a model as plain data."""
    return [{"name": text.name, "missing": text.missing, "buckets": text.buckets, "ngrams": text.ngrams} for text in schema.texts]


def describe(feature: Feature) -> dict[str, Any]:
    """A feature in the words of a study file; groups are a list, since their order says which bin is whose."""
    common: dict[str, Any] = {"name": feature.name, "missing": feature.missing}
    if isinstance(feature, Numeric):
        return {**common, "range": [feature.low, feature.high], "bins": None if feature.bins is None else list(feature.bins)}
    groups = None if feature.groups is None else [{"name": name, "values": list(members)} for name, members in feature.groups.items()]
    return {**common, "values": list(feature.values), "groups": groups}


def unfit(what: str) -> SpecError:
    """The refusal of a document that is not a model."""
    return SpecError("MODEL-001", f"This is not a model: {what}.", fix="Use the file as it was written.")


class PlainNumber(Record):
    """A number as it is written."""

    name: str
    missing: bool
    range: Annotated[list[_Real], Field(min_length=2, max_length=2)]
    bins: list[_Real] | None

    def feature(self) -> Feature:
        return Numeric(self.name, self.range[0], self.range[1], self.bins, self.missing)


class PlainGroup(Record):
    """A group of values as it is written."""

    name: str
    values: list[str]


class PlainCategory(Record):
    """A category as it is written."""

    name: str
    missing: bool
    values: list[str]
    groups: list[PlainGroup] | None

    def feature(self) -> Feature:
        groups = None if self.groups is None else {group.name: group.values for group in self.groups}
        return Categorical(self.name, self.values, groups, self.missing)


class PlainText(Record):
    """A text as it is written."""

    name: str
    missing: bool
    buckets: int
    ngrams: int

    def text(self) -> Text:
        return Text(self.name, self.buckets, self.ngrams, self.missing)
