"""The documents that a report is made of, read strictly: what commands and coordinators have written, and what anyone may have changed.

What is not known here is passed over, since a later version may say more; what is needed has to be there, of the right kind, and to fit
together. Words are made harmless as they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from shoal import __version__
from shoal.errors import SpecError
from shoal.names import shown
from shoal.report.details import Details, Epsilon, Guarantee, Mean, Measures, Number, Part, Share, Words

P = TypeVar("P", bound=Part)


class AtHome(Part):
    """What holders of pfds have at home."""

    home: dict[Words, Mean]
    own: dict[Words, Mean]
    gain: Mean
    n_holders: Number


class Point(Part):
    """One combination of a sweep, or the study as it is."""

    settings: dict[Words, float]
    people: Number
    minimum: Number
    total: Guarantee | None
    central: Guarantee | None = None
    paper_epsilon: Epsilon | None = None
    scores: Annotated[dict[Words, Mean], Field(min_length=1)]
    runs: list[Measures]
    at_home: AtHome | None = None
    tree: Annotated[str, Field(max_length=200_000)] | None = None
    details: Details = Details()


class Rows(Part):
    """How many rows were asked, and how many set aside."""

    asked: Number
    unseen: Number
    declared: Number | None = None


class Run(Part):
    """What ``shoal simulate --out`` has written; `learned` is the model of its first point, where the reader has it too."""

    simulated: Literal[True]
    remark: Words
    command: Words
    title: Words
    protocol: Literal["anonml", "ddml", "sdq", "pfds"]
    digest: Words
    short: Words
    study: dict[str, Any]
    seed: int
    repeats: Annotated[int, Field(ge=1)]
    dropout: Share = 0.0
    versions: dict[Words, Words]
    rows: Rows
    points: Annotated[list[Point], Field(min_length=1)]
    most_common: Measures | None = None
    mean_label: Measures | None = None
    id3: Measures | None = None
    naive_bayes: Measures | None = None
    without_privacy: Measures | None = None
    f1_of: Words | None = None
    learned: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Run:
        measures = set(self.points[0].scores)
        if any(set(point.scores) != measures for point in self.points):
            raise ValueError("has points with other measures than the first")
        return self


class Crowd(Part):
    """What shuffling makes of a guarantee."""

    epsilon: Epsilon
    delta: Share
    adversary: Words


class Entry(Part):
    """One protocol of a comparison."""

    name: Words
    protocol: Literal["anonml", "ddml", "sdq", "pfds"]
    variant: Words
    trust: Words
    settings: dict[str, Any] = Field(default_factory=dict)
    epsilon: Epsilon
    delta: Share
    unit: Words
    relation: Words
    adversary: Words
    central: Crowd | None = None
    trusted: Words
    scores: Annotated[dict[Words, Mean], Field(min_length=1)]
    runs: list[Measures] = Field(default_factory=list)
    bytes: float | None = None
    messages: float | None = None
    cpu_seconds: float | None = None
    n_participants: Number | None = None


class LeftOut(Part):
    """What does not fit, and why."""

    name: Words
    why: Words


class Compared(Part):
    """What ``shoal compare --out`` has written."""

    compared: Literal[True]
    remark: Words
    command: Words
    title: Words
    digest: Words
    short: Words
    seed: int
    repeats: Annotated[int, Field(ge=1)]
    rows: Rows
    versions: dict[Words, Words]
    measure: Words
    yardsticks: dict[Words, Measures]
    entries: Annotated[list[Entry], Field(min_length=1)]
    left_out: list[LeftOut] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits(self) -> Compared:
        if any(self.measure not in entry.scores for entry in self.entries):
            raise ValueError(f"has an entry without {self.measure}")
        return self


class Cell(Part):
    """One count of a table that was asked for."""

    cells: list[Words]
    count: float


class Counted(Part):
    """A table of counts that the analyst asked for, with the deviation of its noise."""

    features: list[Words]
    deviation: Annotated[float, Field(ge=0)]
    counts: list[Cell]

    @model_validator(mode="after")
    def _fits(self) -> Counted:
        if any(len(one.cells) != len(self.features) for one in self.counts):
            raise ValueError("has cells of other features than it names")
        return self


class Result(Part):
    """What a coordinator publishes when a study is done."""

    study: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    title: Words
    protocol: Literal["anonml", "ddml", "sdq", "pfds"]
    variant: Words
    model: dict[str, Any] | None
    counts: dict[Words, Any]
    queries: list[list[Counted]] = Field(default_factory=list)
    statement: dict[str, Any]


class Audit(Part):
    """What ``shoal audit study --json`` prints."""

    unit: Words
    relation: Words
    adversary: Words
    epsilon: Epsilon
    delta: Share
    bound: Epsilon
    confidence: Share
    samples: Number
    verdict: Literal["consistent", "broken"]
    title: Words = ""
    seen_in: Words = ""
    mechanism: Words = ""


Document = Run | Compared | Result


def read_document(document: Mapping[str, Any], name: str = "A document") -> Document:
    """What a document is: a run, a comparison or a coordinator's result.

    Parameters
    ----------
    document
        As it was parsed.
    name
        How an error names it.

    Raises
    ------
    SpecError
        ``REPORT-001`` for something else, ``REPORT-002`` for one of these that does not have what it needs.
    """
    if document.get("compared") is True:
        return _read(Compared, document, name)
    if document.get("simulated") is True and "points" in document:
        return _read(Run, document, name)
    if "statement" in document and "model" in document:
        return _read(Result, document, name)
    raise SpecError(
        "REPORT-001",
        f"{name} is neither a run, nor a comparison, nor a coordinator's result.",
        fix="Give what `shoal simulate --out` or `shoal compare --out` has written, or the JSON of a coordinator's model.",
    )


def read_audit(document: Mapping[str, Any], name: str = "A document") -> Audit:
    """What an audit has found; an error as of `read_document`."""
    if not {"bound", "confidence", "verdict"} <= document.keys():
        raise SpecError("REPORT-001", f"{name} is not an audit.", fix="Give what `shoal audit study STUDY --json` prints.")
    return _read(Audit, document, name)


def _read(kind: type[P], document: Mapping[str, Any], name: str) -> P:
    try:
        return kind.model_validate(dict(document))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise unreadable(document, name, f"{shown(where)[:90]}: {first['msg']}" if where else first["msg"]) from None


def unreadable(document: Mapping[str, Any], name: str, why: str) -> SpecError:
    """The refusal of a document that is not in its form; it names the version that wrote it, where that is another one."""
    versions = document.get("versions")
    written = versions.get("shoal") if isinstance(versions, dict) else None
    by = (
        f" It was written by shoal {shown(written)[:20]}; this is {__version__}."
        if isinstance(written, str) and written != __version__
        else ""
    )
    fix = "Upgrade shoal, or make it again with this version." if by else "Make it again."
    return SpecError("REPORT-002", f"{name} is not in the form that this version reads.", why=f"{why}.{by}", fix=fix)
