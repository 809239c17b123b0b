"""Strict readers of run, comparison, result and audit documents.

`shoal.report.page` and ``shoal report`` read all their input here. Commands and coordinators write
these documents, but anyone may have changed them. A reader therefore ignores unknown fields, which
a later version may add, and checks that required fields exist, have the right type and fit
together. All text is cleaned when it is read, so that no other module has to escape it for display.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from shoal import __version__
from shoal.errors import SpecError
from shoal.study.spec import ProtocolName
from shoal.text import clean_text, escape_text

MAX_TEXT_LENGTH = 4_000


def _sanitise(text: str) -> str:
    return clean_text(text[:MAX_TEXT_LENGTH])


SafeText = Annotated[str, AfterValidator(_sanitise)]
Share = Annotated[float, Field(ge=0, le=1)]
Epsilon = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Measures = Annotated[dict[SafeText, float], Field(min_length=1)]


class DocumentPart(BaseModel):
    """A part of a document: frozen, strict, finite."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class ScoreMean(DocumentPart):
    """A mean over runs, with its standard error if there are several runs."""

    value: float
    error: Annotated[float, Field(ge=0)] | None


class StatedGuarantee(DocumentPart):
    """An epsilon with its delta, unit, neighbouring relation and adversary."""

    unit: Literal["person", "record", "update", "weight"]
    relation: Literal["replace", "add-remove"]
    adversary: SafeText
    epsilon: Epsilon
    delta: Share
    how: SafeText = ""


class PhaseCount(DocumentPart):
    """The number of participants that answered in a phase."""

    name: SafeText
    n: Count


class ParticipationCounts(DocumentPart):
    """The numbers of participants that were asked, answered and dropped out."""

    asked: Count
    answered: Count
    dropped: Count
    phases: list[PhaseCount] = []
    refused: dict[SafeText, Count] = {}


class CalibrationBin(DocumentPart):
    """Rows with similar predicted probabilities, and the share that had the class."""

    low: Share
    high: Share
    predicted: Share
    observed: Share
    n: Count


class Calibration(DocumentPart):
    """Predicted probabilities of one class compared with observed shares."""

    of: SafeText
    bins: Annotated[list[CalibrationBin], Field(min_length=1)]


class FeatureHistogram(DocumentPart):
    """The table of one feature and the label: estimates, their errors, true shares."""

    feature: SafeText
    cells: Annotated[list[SafeText], Field(min_length=1)]
    classes: Annotated[list[SafeText], Field(min_length=1)]
    estimated: list[list[float]]
    error: list[list[float]] | None = None
    true: list[list[float]] | None = None

    @model_validator(mode="after")
    def _check_shape(self) -> FeatureHistogram:
        for table in (self.estimated, self.error, self.true):
            if table is not None and [len(row) for row in table] != [len(self.classes)] * len(
                self.cells
            ):
                raise ValueError("has a table that does not match its cells and classes")
        return self


class ModelWeight(DocumentPart):
    """One weight of a model."""

    name: SafeText
    class_: SafeText | None = Field(default=None, alias="class")
    value: float
    error: Annotated[float, Field(ge=0)] | None = None


class InstanceSpread(DocumentPart):
    """The variance between the instances of DDML."""

    k: Count
    sigma_squared: float
    expected: float
    measured: Annotated[
        list[Annotated[list[float], Field(min_length=2, max_length=2)]], Field(min_length=1)
    ]


class ExposureRecord(DocumentPart):
    """The epsilon against a number of colluders; None if there is no bound."""

    colluders: Count
    epsilon: Epsilon | None
    claimed: bool


class FeatureMarginal(DocumentPart):
    """The shares of one feature's cells in the released rows and in the real rows."""

    feature: SafeText
    cells: Annotated[list[SafeText], Field(min_length=1)]
    released: list[float]
    true: list[float]

    @model_validator(mode="after")
    def _check_shape(self) -> FeatureMarginal:
        if not len(self.cells) == len(self.released) == len(self.true):
            raise ValueError("has more or fewer shares than cells")
        return self


class TrainingComparison(DocumentPart):
    """Measures of one learner, trained on released rows and on real rows."""

    synthetic: Measures
    real: Measures


class RunDetails(DocumentPart):
    """Details of a run in addition to its scores; which ones depends on the protocol."""

    participation: ParticipationCounts | None = None
    calibration: Calibration | None = None
    histograms: list[FeatureHistogram] = []
    weights: list[ModelWeight] = []
    spread: InstanceSpread | None = None
    exposure: list[ExposureRecord] = []
    marginals: list[FeatureMarginal] = []
    train_on_released: TrainingComparison | None = None


P = TypeVar("P", bound=DocumentPart)


class PersonalModelRecord(DocumentPart):
    """Measures of the personal models of PFDS holders."""

    home: dict[SafeText, ScoreMean]
    own: dict[SafeText, ScoreMean]
    gain: ScoreMean
    n_holders: Count


class RunPoint(DocumentPart):
    """One combination of settings in a sweep, or the study as written."""

    settings: dict[SafeText, float]
    people: Count
    minimum: Count
    total: StatedGuarantee | None
    central: StatedGuarantee | None = None
    paper_epsilon: Epsilon | None = None
    scores: Annotated[dict[SafeText, ScoreMean], Field(min_length=1)]
    runs: list[Measures]
    at_home: PersonalModelRecord | None = None
    tree: Annotated[str, Field(max_length=200_000)] | None = None
    details: RunDetails = RunDetails()


class RowCounts(DocumentPart):
    """The number of rows used for learning, and of rows held out."""

    asked: Count
    unseen: Count
    declared: Count | None = None


class RunDocument(DocumentPart):
    """A ``run.json`` of ``shoal simulate --out``.

    `learned` is the model of the first point, if the caller has read it.
    """

    simulated: Literal[True]
    remark: SafeText
    command: SafeText
    title: SafeText
    protocol: ProtocolName
    digest: SafeText
    short: SafeText
    study: dict[str, Any]
    seed: int
    repeats: Annotated[int, Field(ge=1)]
    dropout: Share = 0.0
    versions: dict[SafeText, SafeText]
    rows: RowCounts
    points: Annotated[list[RunPoint], Field(min_length=1)]
    most_common: Measures | None = None
    mean_label: Measures | None = None
    id3: Measures | None = None
    naive_bayes: Measures | None = None
    without_privacy: Measures | None = None
    f1_of: SafeText | None = None
    learned: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check_measures(self) -> RunDocument:
        measures = set(self.points[0].scores)
        if any(set(point.scores) != measures for point in self.points):
            raise ValueError("has points with different measures")
        return self


class ShuffledGuarantee(DocumentPart):
    """A guarantee after amplification by shuffling."""

    epsilon: Epsilon
    delta: Share
    adversary: SafeText


class ComparisonEntry(DocumentPart):
    """One protocol of a comparison."""

    name: SafeText
    protocol: ProtocolName
    variant: SafeText
    trust: SafeText
    settings: dict[str, Any] = Field(default_factory=dict)
    epsilon: Epsilon
    delta: Share
    unit: SafeText
    relation: SafeText
    adversary: SafeText
    central: ShuffledGuarantee | None = None
    trusted: SafeText
    scores: Annotated[dict[SafeText, ScoreMean], Field(min_length=1)]
    runs: list[Measures] = Field(default_factory=list)
    bytes: float | None = None
    messages: float | None = None
    cpu_seconds: float | None = None
    n_participants: Count | None = None


class ExcludedAlternative(DocumentPart):
    """An alternative that does not fit the study, and the reason."""

    name: SafeText
    why: SafeText


class ComparisonDocument(DocumentPart):
    """A ``compare.json`` of ``shoal compare --out``."""

    compared: Literal[True]
    remark: SafeText
    command: SafeText
    title: SafeText
    digest: SafeText
    short: SafeText
    seed: int
    repeats: Annotated[int, Field(ge=1)]
    rows: RowCounts
    versions: dict[SafeText, SafeText]
    measure: SafeText
    yardsticks: dict[SafeText, Measures]
    entries: Annotated[list[ComparisonEntry], Field(min_length=1)]
    left_out: list[ExcludedAlternative] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_measure(self) -> ComparisonDocument:
        if any(self.measure not in entry.scores for entry in self.entries):
            raise ValueError(f"has an entry without {self.measure}")
        return self


class QueryCell(DocumentPart):
    """One count of a queried table."""

    cells: list[SafeText]
    count: float


class QueryTable(DocumentPart):
    """A table of counts that the analyst queried, with the standard deviation of its noise."""

    features: list[SafeText]
    deviation: Annotated[float, Field(ge=0)]
    counts: list[QueryCell]

    @model_validator(mode="after")
    def _check_cells(self) -> QueryTable:
        if any(len(count.cells) != len(self.features) for count in self.counts):
            raise ValueError("has cells that do not match its features")
        return self


class ResultDocument(DocumentPart):
    """The result that a coordinator publishes at the end of a study."""

    study: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    title: SafeText
    protocol: ProtocolName
    variant: SafeText
    model: dict[str, Any] | None
    counts: dict[SafeText, Any]
    queries: list[list[QueryTable]] = Field(default_factory=list)
    statement: dict[str, Any]


class AuditDocument(DocumentPart):
    """The output of ``shoal audit study --json``."""

    unit: SafeText
    relation: SafeText
    adversary: SafeText
    epsilon: Epsilon
    delta: Share
    bound: Epsilon
    confidence: Share
    samples: Count
    verdict: Literal["consistent", "broken"]
    title: SafeText = ""
    seen_in: SafeText = ""
    tests: Count | None = None
    replays: Count | None = None
    leak: SafeText | None = None
    mechanism: SafeText = ""


ReportDocument = RunDocument | ComparisonDocument | ResultDocument


def read_document(document: Mapping[str, Any], name: str = "A document") -> ReportDocument:
    """Return a document as a run, a comparison or a coordinator's result.

    Parameters
    ----------
    document
        The parsed JSON object.
    name
        Name of the document in errors.

    Raises
    ------
    SpecError
        ``REPORT-001``: the document is none of these. ``REPORT-002``: a field is absent or invalid.
    """
    if document.get("compared") is True:
        return _validate(ComparisonDocument, document, name)
    if document.get("simulated") is True and "points" in document:
        return _validate(RunDocument, document, name)
    if "statement" in document and "model" in document:
        return _validate(ResultDocument, document, name)
    raise SpecError(
        "REPORT-001",
        f"{name} is not a run, a comparison or a coordinator's result.",
        fix="Give a file that `shoal simulate --out`, `shoal compare --out` or `shoal join --out` "
        "wrote.",
    )


def read_audit(document: Mapping[str, Any], name: str = "A document") -> AuditDocument:
    """Return the result of an audit; errors as for `read_document`."""
    if not {"bound", "confidence", "verdict"} <= document.keys():
        raise SpecError(
            "REPORT-001",
            f"{name} is not an audit.",
            fix="Give the output of `shoal audit study STUDY --json`.",
        )
    return _validate(AuditDocument, document, name)


def _validate(kind: type[P], document: Mapping[str, Any], name: str) -> P:
    try:
        return kind.model_validate(dict(document))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise make_unreadable_error(
            document, name, f"{escape_text(where)[:90]}: {first['msg']}" if where else first["msg"]
        ) from None


def make_unreadable_error(document: Mapping[str, Any], name: str, why: str) -> SpecError:
    """Return the error for a document with an invalid field.

    The error names the version that wrote the document if it is a different one.
    """
    versions = document.get("versions")
    written = versions.get("shoal") if isinstance(versions, dict) else None
    by = (
        f" It was written by shoal {escape_text(written)[:20]}; this is {__version__}."
        if isinstance(written, str) and written != __version__
        else ""
    )
    fix = "Upgrade shoal, or write the file again with this version." if by else "Write it again."
    return SpecError(
        "REPORT-002",
        f"{name} does not have the format that this version reads.",
        why=f"{why}.{by}",
        fix=fix,
    )
