"""What a run shows besides its scores, read strictly; and the kinds of words and numbers that all documents have."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from shoal.study.typeset import clean

MAX_WORDS = 4_000


def _harmless(text: str) -> str:
    return clean(text[:MAX_WORDS])


Words = Annotated[str, AfterValidator(_harmless)]
Share = Annotated[float, Field(ge=0, le=1)]
Epsilon = Annotated[float, Field(ge=0)]
Number = Annotated[int, Field(ge=0)]
Measures = Annotated[dict[Words, float], Field(min_length=1)]


class Part(BaseModel):
    """A part of a document: frozen, strict, finite."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Mean(Part):
    """A mean over runs, with its standard error where there are several."""

    value: float
    error: Annotated[float, Field(ge=0)] | None


class Guarantee(Part):
    """What an epsilon speaks about, and the epsilon."""

    unit: Literal["person", "record", "update", "weight"]
    relation: Literal["replace", "add-remove"]
    adversary: Words
    epsilon: Epsilon
    delta: Share
    how: Words = ""


class Phase(Part):
    """How many answered in a phase."""

    name: Words
    n: Number


class Participation(Part):
    """Who was asked, and who answered."""

    asked: Number
    answered: Number
    dropped: Number
    phases: list[Phase] = []
    refused: dict[Words, Number] = {}


class Bin(Part):
    """Rows whose predicted chance was alike, and how many of them were so."""

    low: Share
    high: Share
    predicted: Share
    observed: Share
    n: Number


class Calibration(Part):
    """Whether chances are what they say."""

    of: Words
    bins: Annotated[list[Bin], Field(min_length=1)]


class Histogram(Part):
    """One feature's table with the label: estimated, with its error, and true."""

    feature: Words
    cells: Annotated[list[Words], Field(min_length=1)]
    classes: Annotated[list[Words], Field(min_length=1)]
    estimated: list[list[float]]
    error: list[list[float]] | None = None
    true: list[list[float]] | None = None

    @model_validator(mode="after")
    def _fits(self) -> Histogram:
        for table in (self.estimated, self.error, self.true):
            if table is not None and [len(row) for row in table] != [len(self.classes)] * len(self.cells):
                raise ValueError("has a table of another shape than its cells and classes")
        return self


class Weight(Part):
    """One number of a model."""

    name: Words
    class_: Words | None = Field(default=None, alias="class")
    value: float
    error: Annotated[float, Field(ge=0)] | None = None


class Spread(Part):
    """How far the instances of ddml lie apart."""

    k: Number
    sigma_squared: float
    expected: float
    measured: Annotated[list[Annotated[list[float], Field(min_length=2, max_length=2)]], Field(min_length=1)]


class Exposed(Part):
    """What so many colluders face; None where nothing bounds what they learn."""

    colluders: Number
    epsilon: Epsilon | None
    claimed: bool


class Marginal(Part):
    """One feature in the released rows and in the real ones."""

    feature: Words
    cells: Annotated[list[Words], Field(min_length=1)]
    released: list[float]
    true: list[float]

    @model_validator(mode="after")
    def _fits(self) -> Marginal:
        if not len(self.cells) == len(self.released) == len(self.true):
            raise ValueError("has other shares than its cells")
        return self


class TrainedOn(Part):
    """The same learner, trained on released and on real rows."""

    synthetic: Measures
    real: Measures


class Details(Part):
    """What a run shows besides its scores; each where its protocol has something to say."""

    participation: Participation | None = None
    calibration: Calibration | None = None
    histograms: list[Histogram] = []
    weights: list[Weight] = []
    spread: Spread | None = None
    exposure: list[Exposed] = []
    marginals: list[Marginal] = []
    train_on_released: TrainedOn | None = None
