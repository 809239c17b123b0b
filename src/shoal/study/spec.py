"""Pydantic models of the study file.

A model limits the value of one key; rules that span several keys are in `shoal.study.validation`,
and `shoal.study.validation.parse_study` makes every study. Nothing is converted: text is never read
as a number, nor a boolean as one, and an unknown key is an error. Defaults are filled in, so that a
study is the same with or without them in its file.

``python -m shoal.study.spec`` prints the JSON Schema of the file, for editors.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, Field
from pydantic_core import PydanticCustomError

from shoal.data.features import MAX_BUCKETS, MAX_NGRAM
from shoal.data.schema import MAX_CATEGORIES, Categorical, Feature, Numeric, Schema, Text
from shoal.mechanisms.base import MAX_EPSILON, MIN_EPSILON
from shoal.privacy.events import Unit
from shoal.study.settings import (
    DDML,
    PFDS,
    SDQ,
    AnonML,
    Count,
    Line,
    ListAsTuple,
    NormalizeZero,
    Number,
    Paragraph,
    SmallCount,
    StudyTable,
)

ProtocolName = Literal["anonml", "ddml", "sdq", "pfds"]
Epsilon = Annotated[float, Field(ge=MIN_EPSILON, le=MAX_EPSILON)]

MAX_FEATURES = 2_000
MAX_CUTS = 1_000

_TEXT_KEYS = ("buckets", "ngrams")

_Range = Annotated[tuple[Number, Number], ListAsTuple]
_Values = Annotated[tuple[Line, ...], ListAsTuple, Field(max_length=MAX_CATEGORIES)]


def _sort_groups(groups: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Sort groups by name, so that all parties number the bins alike: a table has no order."""
    return dict(sorted(groups.items()))


def _convert_to_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError(
            "out_of_time", "must be a time in the years 1 to 9999 in UTC"
        ) from None


class LabelSpec(StudyTable):
    """``[label]``: the column to predict, one of ``values`` or a number in ``range``."""

    name: Line = Field(description="Name of the column.")
    range: _Range | None = Field(
        default=None, description="Public range of a number: [lowest, highest]."
    )
    values: _Values | None = Field(default=None, description="All values of a category, in quotes.")

    def make_feature(self) -> Feature:
        """Return the label for the schema; a label is never missing."""
        if self.range is not None:
            return Numeric(self.name, *self.range, missing=False)
        return Categorical(self.name, self.values or (), missing=False)


class FeatureSpec(StudyTable):
    """One ``[[feature]]``: a number with ``range``, a category with ``values``, or a text.

    Ranges and values are public. A text is hashed into ``buckets``.
    """

    name: Line = Field(description="Name of the column.")
    range: _Range | None = Field(
        default=None, description="Public range of a number: [lowest, highest]."
    )
    bins: Annotated[tuple[Number, ...], ListAsTuple, Field(max_length=MAX_CUTS)] | None = Field(
        default=None,
        description="Public cut points of a number; without them the protocol chooses.",
    )
    values: _Values | None = Field(default=None, description="All values of a category, in quotes.")
    groups: (
        Annotated[
            dict[Line, _Values], Field(max_length=MAX_CATEGORIES), AfterValidator(_sort_groups)
        ]
        | None
    ) = Field(
        default=None, description="Public grouping of a category: name of the group = its values."
    )
    buckets: Annotated[int, Field(ge=2, le=MAX_BUCKETS)] | None = Field(
        default=None,
        description="Buckets for the n-grams of a text, with a weight for each; ddml only.",
    )
    ngrams: Annotated[int, Field(ge=1, le=MAX_NGRAM)] | None = Field(
        default=None, description="Most words in an n-gram of a text; by default 3."
    )
    missing: bool = Field(
        True,
        description="If true, the value may be missing, and missing is a separate category.",
    )

    def make_feature(self) -> Feature | Text:
        """Return the feature for the schema."""
        if self.buckets is not None:
            return Text(self.name, self.buckets, self.ngrams or MAX_NGRAM, missing=self.missing)
        if self.range is not None:
            return Numeric(self.name, *self.range, bins=self.bins, missing=self.missing)
        return Categorical(self.name, self.values or (), groups=self.groups, missing=self.missing)


class Privacy(StudyTable):
    """``[privacy]``: the budget of one unit for the whole study, and the unit."""

    epsilon: Epsilon = Field(
        description="The budget of one unit for the model; [queries] are added to it."
    )
    delta: Annotated[float, Field(ge=0, le=0.01), NormalizeZero] = Field(
        default=0.0,
        description="Limits how often the loss may exceed epsilon; for trust shuffled (required), "
        "trust secure-sum of pfds, and ddml.",
    )
    unit: Literal["person", "record", "update", "weight"] = Field(
        default="record",
        description="The unit that epsilon protects; by default person for anonml, update for "
        "ddml, record for sdq and pfds (person with a [data] table).",
        json_schema_extra={"default": None},
    )
    n_updates: SmallCount = Field(
        default=1, description="ddml: most updates of one device; they share epsilon."
    )


class Participation(StudyTable):
    """``[participation]``: minimum, declared size, and the share that is assumed honest."""

    minimum: Count = Field(
        description="Fewest participants (people, devices, databases, organisations) to learn from."
    )
    size: Count = Field(
        description="Declared size, a public guess: people or devices; rows in all for sdq and "
        "pfds."
    )
    honest_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="Share of participants that are assumed to answer honestly; trust shuffled "
        "only, and required there.",
    )
    closes: Annotated[AwareDatetime, AfterValidator(_convert_to_utc)] | None = Field(
        default=None, description="When the study ends, with its time zone: 2031-01-31T12:00:00Z"
    )


class Data(StudyTable):
    """``[data]``: the column that identifies people, which makes the person the unit."""

    person: Line = Field(
        description="Column that names the person of a row; it never leaves the participant."
    )
    max_rows_per_person: Annotated[int, Field(ge=1, le=10_000)] = Field(
        description="Rows of one person that are used; the others are left out."
    )


class Queries(StudyTable):
    """``[queries]``: free counts of the analyst, each with its own price."""

    features: Annotated[
        tuple[Line, ...], ListAsTuple, Field(min_length=1, max_length=MAX_FEATURES)
    ] = Field(description="Features and label that may be counted, each once.")
    n_queries: SmallCount = Field(description="Most counts that may be asked for.")
    epsilon_release: Epsilon = Field(description="Price of one count.")


class Study(StudyTable):
    """A study: its questions, participants, protection and price.

    Examples
    --------
    >>> from shoal.study.loader import parse_study_text
    >>> from shoal.study.starters import read_starter
    >>> study = parse_study_text(read_starter("anonml"))
    >>> study.trust, study.privacy.unit
    ('local', 'person')
    """

    spec: Annotated[int, Field(ge=1, le=1)] = Field(
        default=1, description="Version of this format."
    )
    title: Line = Field(description="One line, at most 200 characters.")
    purpose: Paragraph = Field(
        description="The purpose of the model, in words that a participant reads before consenting."
    )
    contact: Line = Field(description="Whom to ask.")
    protocol: ProtocolName = Field(description="The protocol, by who holds the data.")
    variant: Literal["plus", "paper"] = Field(
        default="plus",
        description='"paper" follows the paper; "plus" is more accurate at the same guarantee.',
    )
    trust: Literal["local", "shuffled", "secure-sum"] = Field(
        default="local",
        description="By default secure-sum for sdq, local for the others.",
        json_schema_extra={"default": None},
    )
    strict: bool = Field(
        default=False,
        description="If true, a single value outside the declared ranges and values keeps its "
        "holder out of the study, which others may notice. If false, such a number is moved to "
        "the end of its range, such a value counts as missing, and a row for which neither is "
        "possible is left out.",
    )
    label: LabelSpec
    feature: Annotated[
        tuple[FeatureSpec, ...], ListAsTuple, Field(min_length=1, max_length=MAX_FEATURES)
    ] = Field(description="A block [[feature]] for each column of the questions.")
    privacy: Privacy
    participation: Participation
    data: Data | None = None
    queries: Queries | None = None
    anonml: AnonML | None = None
    ddml: DDML | None = None
    sdq: SDQ | None = None
    pfds: PFDS | None = None

    def schema(self) -> Schema:  # type: ignore[override]  # pydantic's deprecated method of that name is not ours
        """Return features, label and texts for the protocols."""
        parts = [feature.make_feature() for feature in self.feature]
        texts = [part for part in parts if isinstance(part, Text)]
        return Schema(
            [part for part in parts if not isinstance(part, Text)], self.label.make_feature(), texts
        )

    @property
    def unit(self) -> Unit:
        """The unit that epsilon protects."""
        return Unit(self.privacy.unit)

    @property
    def max_rows(self) -> int:
        """Most rows of one unit that a release reads."""
        return self.data.max_rows_per_person if self.data else 1

    def to_content(self) -> dict[str, Any]:
        """Return the study as plain data, with defaults, and times as text.

        `shoal.study.validation.parse_content` is the inverse.
        """
        plain = self.model_dump()
        closes: datetime | None = plain["participation"]["closes"]
        plain["participation"]["closes"] = None if closes is None else closes.isoformat()
        # Keys of texts, and strict, were added later. They are omitted if they have their default,
        # so that the digests of older studies do not change.
        if not plain["strict"]:
            del plain["strict"]
        plain["feature"] = [
            {
                key: value
                for key, value in feature.items()
                if value is not None or key not in _TEXT_KEYS
            }
            for feature in plain["feature"]
        ]
        return plain


def make_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of the study file, without rules that span several keys."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Study.model_json_schema(),
        "title": "shoal study",
        "description": "A study file of shoal (TOML). `shoal check` also enforces rules that this "
        "schema cannot express.",
    }


if __name__ == "__main__":
    print(json.dumps(make_json_schema(), indent=2, ensure_ascii=False))
