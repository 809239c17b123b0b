"""Protocol tables of the study file (`[anonml]`, `[ddml]`, ...), and value types.

`shoal.study.spec` includes them. A table has the parameters of its protocol under public names.
Parameters of a paper that the ``plus`` variant chooses automatically have no default: a study of
the ``paper`` variant states them, any other omits them. Values are bounded: numbers are finite,
texts plain and short, lists limited.

Descriptions are printed in errors and in ``docs/reference/study.md``.
"""

from __future__ import annotations

import unicodedata
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

MAX_TEXT = 200
MAX_PARAGRAPH = 4_000
MAX_COUNT = 10**12

# Control characters can rewrite lines of a terminal. Overrides of the writing direction can change
# the visible text.
_CONTROLS = ("Cc", "Cs", "Co", "Zl", "Zp")
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class StudyTable(BaseModel):
    """A table of the study file: frozen, strict, and without room for unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def _is_plain(text: str) -> bool:
    return not any(
        unicodedata.category(character) in _CONTROLS or character in _DIRECTIONS
        for character in text
    )


def is_line(text: str) -> bool:
    """Return whether a text is a valid `Line`."""
    return len(text) <= MAX_TEXT and _is_plain(text) and bool(text.strip())


def _check_line(text: str) -> str:
    if not _is_plain(text) or not text.strip():
        raise PydanticCustomError("plain_text", "must be a line of text without control characters")
    return text


def _check_paragraph(text: str) -> str:
    if not _is_plain(text.replace("\n", " ").replace("\t", " ")) or not text.strip():
        raise PydanticCustomError("plain_text", "must be text without control characters")
    return text


def _convert_list(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Line = Annotated[str, Field(min_length=1, max_length=MAX_TEXT), AfterValidator(_check_line)]
Paragraph = Annotated[
    str, Field(min_length=1, max_length=MAX_PARAGRAPH), AfterValidator(_check_paragraph)
]
# Adding zero turns -0.0 into 0.0, which reads the same and must have the same digest.
NormalizeZero = AfterValidator(lambda number: number + 0.0)
Number = Annotated[float, NormalizeZero]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
ListAsTuple = BeforeValidator(_convert_list)
"""Marks a tuple that is a list in the file; strict models would refuse the list."""


Positive = Annotated[float, Field(gt=0, le=1e6)]
PositiveSize = Annotated[float, Field(ge=1e-9, le=1e6)]
SmallCount = Annotated[int, Field(ge=1, le=10_000)]

MAX_INSTANCES = 1_000
MAX_DATABASES = 1_000


class AnonML(StudyTable):
    """``[anonml]``: many people, one row each.

    Notes
    -----
    Ref: AnonML §VI-A for k_p, k_h and k_s; §VI-B for classifiers and scores; §VII-D, equation 6,
    for the paper's accounting.
    """

    n_partitions: SmallCount | None = Field(
        default=None,
        description="k_p: groups of people with questions about different features. Variant paper.",
    )
    n_subsets: SmallCount | None = Field(
        default=None,
        description="k_h: subsets of features in the questions to one person. Variant paper.",
    )
    subset_size: SmallCount | None = Field(
        default=None, description="k_s: features in a subset. Variant paper."
    )
    accounting: Literal["plain", "paper"] = Field(
        default="plain",
        description='"plain": epsilon is the sum of all releases. "paper": the total of equation '
        "6; the sum is shown too.",
    )
    classifier: Literal["logistic", "tree"] = Field(
        default="logistic",
        description="Classifier of each table: logistic regression, or a decision tree. Variant "
        "paper.",
    )
    score: Literal["f1", "auc", "accuracy"] = Field(
        default="f1",
        description="Cross-validated score of a classifier, its weight in the vote. Variant paper.",
    )


class DDML(StudyTable):
    """``[ddml]``: a stream of devices, a few rows each.

    Notes
    -----
    Ref: DDML §III for k, gamma and N_c, §III-E for a falling step; §V for the spam threshold.
    """

    n_instances: Annotated[int, Field(ge=1, le=MAX_INSTANCES)] = Field(
        default=20, description="k: instances of the model."
    )
    learning_rate: PositiveSize | None = Field(
        default=None,
        description="gamma: step of an update; by default from size, epsilon, k and the number of "
        "weights.",
    )
    batch_size: SmallCount = Field(
        default=10,
        description="N_c: most rows in one update; a device with fewer rows uses all of them.",
    )
    clip: PositiveSize | None = Field(
        default=None,
        description="L2 norm to which a gradient is clipped (unit weight: the size of each of its "
        "parts); by default from the inputs.",
    )
    fraction_bits: Annotated[int, Field(ge=4, le=24)] = Field(
        default=20, description="Weights travel as 32-bit multiples of 2^-fraction_bits."
    )
    merge: Literal["blend", "discard"] = Field(
        default="blend",
        description="How an update enters the instances; by default blend for plus, discard for "
        "paper.",
        json_schema_extra={"default": None},
    )
    link: Literal["identity", "logit", "log", "multinomial"] = Field(
        default="logit",
        description="How scores become predictions; the default depends on the label.",
        json_schema_extra={"default": None},
    )
    decay: Literal["none", "sqrt"] = Field(
        default="none",
        description='"sqrt": the step falls with the square root of time; "none": it is constant.',
    )
    averaging: bool = Field(
        default=True,
        description="If true, the model is an average over time that weights late instances more; "
        "by default true for plus, false for paper.",
        json_schema_extra={"default": None},
    )
    crosses: Annotated[
        tuple[Annotated[tuple[Line, Line], ListAsTuple], ...], ListAsTuple, Field(max_length=200)
    ] = Field(default=(), description="Pairs of features; each product gets its own weights.")
    centred: bool = Field(
        default=True,
        description="If true, inputs are centred around zero, by ranges and values alone; by "
        "default true for plus, false for paper.",
        json_schema_extra={"default": None},
    )
    admission: Literal["token", "signed", "open"] = Field(
        default="signed",
        description="Who may send an update: devices with a token or ticket, enrolled keys that "
        "sign it, or anyone. The coordinator's HTTP service checks it; simulations admit everyone.",
    )
    spam_threshold: Positive | None = Field(
        default=None,
        description="t: distance from the instances, in standard deviations, from which on an "
        "update is refused; by default calibrated.",
    )


class SDQ(StudyTable):
    """``[sdq]``: some databases, many rows each.

    Notes
    -----
    Ref: SDQ §IV for N and d, Algorithm 2 for the two selected databases.
    """

    n_databases: Annotated[int, Field(ge=2, le=MAX_DATABASES)] = Field(
        description="N: databases on the roster; at least 3 with trust secure-sum."
    )
    learner: Literal["tree", "naive-bayes"] = Field(
        default="tree",
        description="The model: a decision tree, or naive Bayes from one sum (variant plus).",
    )
    depth: Annotated[int, Field(ge=1, le=16)] | None = Field(
        default=None,
        description="d: most attributes on a path of the tree; by default 4 for paper and 8 for "
        "plus, which uses fewer if there would be too many cells.",
    )
    choice: Literal["mpc", "sums"] | None = Field(
        default=None,
        description="How a tree's attributes are chosen: by a joint computation of a committee, "
        "or from sums alone. By default mpc if colluders are always a minority of a committee "
        "(variant plus).",
    )
    noise: Literal["all-contribute", "two-selected"] = Field(
        default="all-contribute",
        description="Who adds noise: a share from every database, or two selected ones as in the "
        "paper (variant paper).",
    )
    max_colluders: Annotated[int, Field(ge=0, le=MAX_DATABASES - 1)] = Field(
        default=0,
        description="C: databases that may help the miner; secure-sum only, by default a third, "
        "rounded up.",
        json_schema_extra={"default": None},
    )


class PFDS(StudyTable):
    """``[pfds]``: some organisations, many rows each.

    Notes
    -----
    Ref: PFDS Algorithm 3 for h_max and t, Algorithm 5 for p, §3.1 for b, §4 for PFDS(s) and PFDS-.
    """

    n_holders: SmallCount = Field(
        description="m: organisations that share; 3 to 1,000 with trust secure-sum."
    )
    max_depth: Annotated[int, Field(ge=2, le=32)] | None = Field(
        default=None,
        description="h_max: levels of a tree, at most the number of features; by default 8, or "
        "that number if it is smaller. Variant paper.",
    )
    n_candidates: SmallCount | None = Field(
        default=None, description="t: split values tried at a node; by default 10. Variant paper."
    )
    n_levels: Annotated[int, Field(ge=2, le=32)] | None = Field(
        default=None,
        description="p: levels with consistent counts; by default 4, or max_depth if it is "
        "smaller. Variant paper.",
    )
    n_buckets: Annotated[int, Field(ge=2, le=1_000)] | None = Field(
        default=None,
        description="b: buckets of a numeric label; by default 10. Variant paper with a numeric "
        "label.",
    )
    labelling: Literal["shared", "own"] | None = Field(
        default=None,
        description="Trees that label a holder's made-up rows: those of all holders, by a vote "
        "(default), or its own, which is PFDS(s). Variant paper.",
    )
    projection: bool | None = Field(
        default=None,
        description="If true, the counts of a tree are made consistent (default); false is PFDS-. "
        "Variant paper.",
    )
    max_colluders: Annotated[int, Field(ge=0, le=9_999)] = Field(
        default=0,
        description="C: holders that may help the readers of the sums; secure-sum only, by default "
        "a third, rounded up.",
        json_schema_extra={"default": None},
    )
