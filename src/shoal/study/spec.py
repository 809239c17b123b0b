"""Strict models of the study file: what may be written, of which kind, and within which limits.

A model says what one key may hold; what keys mean together is in `shoal.study.rules`. Nothing is converted on the way in: text
is never taken for a number, nor a truth value for one, and a key that does not exist is an error. Defaults are filled in, so
that a study says the same whether or not its author wrote them down.

``python -m shoal.study.spec`` prints the JSON Schema of the file, for editors.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, Field, model_validator
from pydantic_core import PydanticCustomError

from shoal.domain import MAX_CATEGORIES, Categorical, Feature, Numeric, Schema, Text
from shoal.mechanisms.base import MAX_EPSILON, MIN_EPSILON
from shoal.ngrams import MAX_BUCKETS, MAX_NGRAM
from shoal.privacy.events import Unit
from shoal.study.rules import fill, problems
from shoal.study.settings import DDML, PFDS, SDQ, AnonML, Small
from shoal.study.values import Count, Items, Line, Number, Paragraph, PlusZero, Table

ProtocolName = Literal["anonml", "ddml", "sdq", "pfds"]
Epsilon = Annotated[float, Field(ge=MIN_EPSILON, le=MAX_EPSILON)]

MAX_FEATURES = 2_000
MAX_CUTS = 1_000

_TEXT_KEYS = ("buckets", "ngrams")

_Range = Annotated[tuple[Number, Number], Items]
_Values = Annotated[tuple[Line, ...], Items, Field(max_length=MAX_CATEGORIES)]


def _by_name(groups: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """A table has no order; bins are numbered by the names of the groups, so that everyone numbers them alike."""
    return dict(sorted(groups.items()))


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("out_of_time", "must be a time of the years 1 to 9999 in UTC") from None


class LabelSpec(Table):
    """``[label]``: what is predicted, either one of ``values`` or a number in ``range``."""

    name: Line = Field(description="Name of the column.")
    range: _Range | None = Field(default=None, description="Public range of a number: [lowest, highest].")
    values: _Values | None = Field(default=None, description="All values of a category, in quotes.")

    def feature(self) -> Feature:
        """The label as the schema holds it; a label is never missing."""
        if self.range is not None:
            return Numeric(self.name, *self.range, missing=False)
        return Categorical(self.name, self.values or (), missing=False)


class FeatureSpec(Table):
    """One ``[[feature]]``: a number with a public ``range``, a category with a public list of ``values``, or a text in ``buckets``."""

    name: Line = Field(description="Name of the column.")
    range: _Range | None = Field(default=None, description="Public range of a number: [lowest, highest].")
    bins: Annotated[tuple[Number, ...], Items, Field(max_length=MAX_CUTS)] | None = Field(
        default=None, description="Public cut points of a number; without them the protocol chooses."
    )
    values: _Values | None = Field(default=None, description="All values of a category, in quotes.")
    groups: Annotated[dict[Line, _Values], Field(max_length=MAX_CATEGORIES), AfterValidator(_by_name)] | None = Field(
        default=None, description="Public grouping of a category: name of the group = its values."
    )
    buckets: Annotated[int, Field(ge=2, le=MAX_BUCKETS)] | None = Field(
        default=None, description="Numbers over which the n-grams of a text are spread, a weight each; ddml only."
    )
    ngrams: Annotated[int, Field(ge=1, le=MAX_NGRAM)] | None = Field(
        default=None, description="Longest run of words of a text that counts; by default 3."
    )
    missing: bool = Field(True, description="Whether the value may be missing; if so, missing is a category of its own.")

    def feature(self) -> Feature | Text:
        """The feature as the schema holds it."""
        if self.buckets is not None:
            return Text(self.name, self.buckets, self.ngrams or MAX_NGRAM, missing=self.missing)
        if self.range is not None:
            return Numeric(self.name, *self.range, bins=self.bins, missing=self.missing)
        return Categorical(self.name, self.values or (), groups=self.groups, missing=self.missing)


class Privacy(Table):
    """``[privacy]``: the whole budget of one unit for the whole study, and what the unit is."""

    epsilon: Epsilon = Field(description="The whole budget of one unit for what is learned; [queries] come on top.")
    delta: Annotated[float, Field(ge=0, le=0.01), PlusZero] = Field(
        default=0.0, description="Chance that the guarantee fails: trust shuffled (required), trust secure-sum of pfds, and ddml."
    )
    unit: Literal["person", "record", "update", "weight"] = Field(
        default="record",
        description="What epsilon protects as a whole; by default person for anonml, update for ddml, record for sdq and pfds "
        "(person with a [data] table).",
        json_schema_extra={"default": None},
    )
    n_updates: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=1, description="ddml: updates that one device sends at most; they share epsilon."
    )


class Participation(Table):
    """``[participation]``: how many are needed, how many are expected, and how many of them are taken to be honest."""

    minimum: Count = Field(description="Fewest participants (people, devices, databases, organisations) to learn from.")
    size: Count = Field(description="Declared size, a public guess: people or devices; rows in all for sdq and pfds.")
    honest_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="Share of participants that are taken to answer honestly; trust shuffled only, and required there."
    )
    closes: Annotated[AwareDatetime, AfterValidator(_in_utc)] | None = Field(
        default=None, description="When the study ends, with its time zone: 2031-01-31T12:00:00Z"
    )


class Data(Table):
    """``[data]``: which column tells people apart, so that the unit becomes the person."""

    person: Line = Field(description="Column that names the person of a row; it never leaves the participant.")
    max_rows_per_person: Annotated[int, Field(ge=1, le=10_000)] = Field(
        description="Rows of one person that are used; the others are left out."
    )


class Queries(Table):
    """``[queries]``: counts that the analyst may ask for freely, each with a price of its own."""

    features: Annotated[tuple[Line, ...], Items, Field(min_length=1, max_length=MAX_FEATURES)] = Field(
        description="Features and label that may be counted, each once."
    )
    n_queries: Small = Field(description="Most counts that may be asked for.")
    epsilon_release: Epsilon = Field(description="Price of one count.")


class Study(Table):
    """A study: what is asked of whom, how it is protected, and for how much.

    Examples
    --------
    >>> study = Study(
    ...     title="Naps",
    ...     purpose="Who naps?",
    ...     contact="a@example.org",
    ...     protocol="anonml",
    ...     label={"name": "naps", "values": ["no", "yes"]},
    ...     feature=[{"name": "age", "range": [0, 120]}],
    ...     privacy={"epsilon": 1},
    ...     participation={"minimum": 100, "size": 1000},
    ... )
    >>> study.trust, study.privacy.unit, study.schema().names
    ('local', 'person', ('age',))
    """

    spec: Annotated[int, Field(ge=1, le=1)] = Field(default=1, description="Version of this format.")
    title: Line = Field(description="One line, at most 200 characters.")
    purpose: Paragraph = Field(description="What the model is for, in words that a participant reads before consenting.")
    contact: Line = Field(description="Whom to ask.")
    protocol: ProtocolName = Field(description="Who holds data, and what leaves.")
    variant: Literal["plus", "paper"] = Field(
        default="plus", description='"paper" does what the paper says; "plus" answers better at the same guarantee.'
    )
    trust: Literal["local", "shuffled", "secure-sum"] = Field(
        default="local", description="By default secure-sum for sdq, local for the others.", json_schema_extra={"default": None}
    )
    label: LabelSpec
    feature: Annotated[tuple[FeatureSpec, ...], Items, Field(min_length=1, max_length=MAX_FEATURES)] = Field(
        description="A block [[feature]] for each column that may be asked about."
    )
    privacy: Privacy
    participation: Participation
    data: Data | None = None
    queries: Queries | None = None
    anonml: AnonML | None = None
    ddml: DDML | None = None
    sdq: SDQ | None = None
    pfds: PFDS | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, document: object) -> object:
        return fill(document) if isinstance(document, dict) else document

    @model_validator(mode="after")
    def _check_rules(self) -> Study:
        found = problems(self)
        if found:
            raise PydanticCustomError("study_rules", "{first}", {"first": found[0].what, "problems": found})
        return self

    def schema(self) -> Schema:  # type: ignore[override]  # pydantic's deprecated method of that name is not ours
        """Features, label and texts as the protocols use them."""
        parts = [feature.feature() for feature in self.feature]
        texts = [part for part in parts if isinstance(part, Text)]
        return Schema([part for part in parts if not isinstance(part, Text)], self.label.feature(), texts)

    @property
    def unit(self) -> Unit:
        """What epsilon protects as a whole."""
        return Unit(self.privacy.unit)

    @property
    def max_rows(self) -> int:
        """Most rows of one unit that a release reads."""
        return self.data.max_rows_per_person if self.data else 1

    def content(self) -> dict[str, Any]:
        """The whole study as plain data, defaults included, and times as text; `from_content` gives the study back."""
        plain = self.model_dump()
        closes: datetime | None = plain["participation"]["closes"]
        plain["participation"]["closes"] = None if closes is None else closes.isoformat()
        # Keys of a text came later: where they say nothing they are left out, so that the digests of older studies stand.
        plain["feature"] = [
            {key: value for key, value in feature.items() if value is not None or key not in _TEXT_KEYS} for feature in plain["feature"]
        ]
        return plain

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Study:
        """The study that `content` describes; pydantic's `ValidationError` where it describes none."""
        participation = content.get("participation")
        if isinstance(participation, dict) and isinstance(participation.get("closes"), str):
            with suppress(ValueError):
                content = {**content, "participation": {**participation, "closes": datetime.fromisoformat(participation["closes"])}}
        return cls.model_validate(content)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the study file; rules that span several keys are not in it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Study.model_json_schema(),
        "title": "shoal study",
        "description": "A study file of shoal (TOML). `shoal check` also enforces what this schema cannot say.",
    }


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
