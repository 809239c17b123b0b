"""DiffGen on Adult: generalised rows that become finer step by step, with noisy counts.

A competitor of PFDS in its Figure 3. It needs a taxonomy of every category, which is written here
for Adult only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.paper.pfds.data import Ints
from shoal.data.schema import Categorical, Schema
from shoal.entropy import Entropy
from shoal.mechanisms.exponential import CountScore, ExponentialMechanism
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import CellCounts
from shoal.privacy.events import Relation, Scope, Unit

Tree = Mapping[str, "Tree"] | Sequence[str]

SCOPE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")
MAX_CUTS = 1_000
"""Largest number of candidate cuts of a range, evenly spread; all integers if fewer."""


@dataclass(frozen=True)
class Group:
    """Values of a category that are not distinguished yet, and their possible parts."""

    members: tuple[int, ...]
    parts: tuple[Group, ...] = ()

    def find_parts(self, codes: Ints) -> Ints:
        """Return the part of each value."""
        home = {code: i for i, part in enumerate(self.parts) for code in part.members}
        return np.array([home[code] for code in codes.tolist()], np.int64)

    def draw(self, n: int, entropy: Entropy) -> Ints:
        """Return values of the group, all equally likely."""
        return np.array(self.members)[entropy.below_many(len(self.members), n)]


@dataclass(frozen=True)
class Range:
    """Integers from ``low`` to ``high`` that are not distinguished yet, and the cut.

    The second half begins at ``cut``.
    """

    low: int
    high: int
    cut: int | None = None

    @property
    def parts(self) -> tuple[Range, ...]:
        """Its halves, which have no cut yet."""
        return (
            () if self.cut is None else (Range(self.low, self.cut - 1), Range(self.cut, self.high))
        )

    @property
    def cuts(self) -> Ints:
        """Candidate cuts."""
        n = min(self.high - self.low, MAX_CUTS)
        return self.low + np.arange(1, n + 1) * (self.high - self.low) // max(n, 1)

    def find_parts(self, numbers: npt.NDArray[Any]) -> Ints:
        """Return the half of each number."""
        return np.asarray(numbers >= self.cut, np.int64)

    def draw(self, n: int, entropy: Entropy) -> npt.NDArray[np.float64]:
        """Return numbers of the range, all equally likely."""
        return (self.low + entropy.below_many(self.high - self.low + 1, n)).astype(np.float64)


Value = Group | Range


@dataclass(frozen=True, eq=False)
class Released:
    """Synthetic rows, as the schema would encode them."""

    columns: Mapping[str, npt.NDArray[Any]]
    labels: Ints

    def __len__(self) -> int:
        return len(self.labels)


def query_share(epsilon: float, n_numeric: int, n_steps: int) -> float:
    """Return the price of each choice.

    Half of epsilon is for one cut of every number, and for each step a refined value and its cuts.
    """
    return epsilon / (2 * (n_numeric + 2 * n_steps))


def release(
    schema: Schema,
    columns: Mapping[str, npt.NDArray[Any]],
    labels: Ints,
    epsilon: float,
    n_steps: int,
    entropy: Entropy,
) -> Released:
    """Return synthetic rows in place of a holder's rows.

    Parameters
    ----------
    columns, labels
        As the schema encodes them; numbers are whole.
    n_steps
        h: number of times a value is refined into finer ones.

    Notes
    -----
    Ref: Mohammed et al. 2011, Algorithm 1; PFDS §4, Mechanisms. The score of a value is the Max
    operator: how many rows would be in the larger class of their part. As in the first of these
    papers half of epsilon is for the counts of all groups, empty ones too; the second one seems to
    spend no more on them than on one choice. Scores only rise with a row, so a choice needs no
    factor of 2.

    Privacy
    -------
    epsilon-DP for one row that is there or not. Numbers: one choice each. A step: one choice among
    all values, and one in each new range, which have no row in common. Counts: each row is in one
    group.
    """
    n_numeric = sum(not isinstance(feature, Categorical) for feature in schema.features)
    chooser = ExponentialMechanism(query_share(epsilon, n_numeric, n_steps), CountScore(), SCOPE)
    kinds = _Kinds(schema, columns, labels, chooser, entropy)
    for _ in range(n_steps):
        if not kinds.refine():
            break
    counts = DiscreteLaplace(epsilon / 2, CellCounts(), SCOPE).randomise_many(
        kinds.counts(), entropy
    )
    return kinds.draw_rows(np.maximum(counts, 0))


class _Kinds:
    """The values that distinguish rows so far, and the value of each row."""

    def __init__(
        self,
        schema: Schema,
        columns: Mapping[str, npt.NDArray[Any]],
        labels: Ints,
        chooser: ExponentialMechanism,
        entropy: Entropy,
    ) -> None:
        assert isinstance(schema.label, Categorical)
        self._n_classes = len(schema.label.values)
        self._columns, self._labels = columns, labels
        self._chooser, self._entropy = chooser, entropy
        self._which = {name: np.zeros(len(labels), np.int64) for name in schema.names}
        self._values: dict[str, list[Value]] = {}
        for feature in schema.features:
            if isinstance(feature, Categorical):
                top: Value = make_group(TAXONOMY[feature.name], feature.values)
            else:
                top = self._cut(
                    feature.name,
                    Range(int(feature.low), int(feature.high)),
                    np.ones(len(labels), bool),
                )
            self._values[feature.name] = [top]

    def refine(self) -> bool:
        """Divide one value into its parts wherever it occurs; return False if none has parts."""
        open_values = list(self._open())
        if not open_values:
            return False
        scores = [
            self._score(name, value, self._which[name] == i) for name, i, value in open_values
        ]
        name, i, value = open_values[self._chooser.choose(scores, self._entropy)]
        values, which = self._values[name], self._which[name]
        mine = which == i
        part = value.find_parts(self._columns[name][mine])
        # The first part replaces the value, and the others are appended.
        which[mine] = np.where(part == 0, i, len(values) + part - 1)
        first, *others = value.parts
        values[i] = first
        values.extend(others)
        for j in (i, *range(len(values) - len(others), len(values))):
            if isinstance(half := values[j], Range):
                values[j] = self._cut(name, half, which == j)
        return True

    def counts(self) -> Ints:
        """Return the number of rows of each class and combination of values."""
        at = np.ravel_multi_index((*self._which.values(), self._labels), self._shape)
        return np.bincount(at, minlength=math.prod(self._shape))

    def draw_rows(self, counts: Ints) -> Released:
        """Return rows of each class and combination of values, by the counts."""
        taken = np.flatnonzero(counts)
        *which, labels = (
            np.repeat(position, counts[taken]) for position in np.unravel_index(taken, self._shape)
        )
        columns = {}
        for (name, values), position in zip(self._values.items(), which, strict=True):
            columns[name] = np.zeros(
                len(labels), np.int64 if isinstance(values[0], Group) else np.float64
            )
            for i, value in enumerate(values):
                mine = position == i
                columns[name][mine] = value.draw(int(mine.sum()), self._entropy)
        return Released(columns, labels.astype(np.int64))

    @property
    def _shape(self) -> tuple[int, ...]:
        return (*map(len, self._values.values()), self._n_classes)

    def _open(self) -> Iterator[tuple[str, int, Value]]:
        for name, values in self._values.items():
            for i, value in enumerate(values):
                if value.parts:
                    yield name, i, value

    def _score(self, name: str, value: Value, mine: npt.NDArray[np.bool_]) -> int:
        at = value.find_parts(self._columns[name][mine]) * self._n_classes + self._labels[mine]
        return int(
            np.bincount(at, minlength=len(value.parts) * self._n_classes)
            .reshape(-1, self._n_classes)
            .max(axis=1)
            .sum()
        )

    def _cut(self, name: str, whole: Range, mine: npt.NDArray[np.bool_]) -> Range:
        """Return the range with a cut chosen by the same score; a single number has none."""
        cuts = whole.cuts
        if not cuts.size:
            return whole
        numbers, labels = self._columns[name][mine], self._labels[mine]
        below = np.stack(
            [np.searchsorted(np.sort(numbers[labels == c]), cuts) for c in range(self._n_classes)]
        )
        total = np.bincount(labels, minlength=self._n_classes)[:, np.newaxis]
        scores = below.max(axis=0) + (total - below).max(axis=0)
        return Range(whole.low, whole.high, int(cuts[self._chooser.choose(scores, self._entropy)]))


def make_group(tree: Tree, values: Sequence[str]) -> Group:
    """Return a taxonomy of a category's values as groups of their positions.

    A list of one element is a value.
    """
    if isinstance(tree, Mapping):
        parts = tuple(make_group(branch, values) for branch in tree.values())
    else:
        parts = tuple(Group((values.index(value),)) for value in tree)
    return (
        parts[0]
        if len(parts) == 1
        else Group(tuple(code for part in parts for code in part.members), parts)
    )


TAXONOMY: Mapping[str, Tree] = {
    "workclass": {
        "government": ["Federal-gov", "State-gov", "Local-gov"],
        "self-employed": ["Self-emp-inc", "Self-emp-not-inc"],
        "private": ["Private"],
        "no pay": ["Without-pay", "Never-worked", "?"],
    },
    "education": {
        "school": {
            "primary": ["Preschool", "1st-4th", "5th-6th"],
            "secondary": {
                "junior": ["7th-8th", "9th"],
                "senior": ["10th", "11th", "12th", "HS-grad"],
            },
        },
        "college": {
            "some": {"begun": ["Some-college"], "associate": ["Assoc-voc", "Assoc-acdm"]},
            "degree": {"first": ["Bachelors"], "higher": ["Masters", "Prof-school", "Doctorate"]},
        },
    },
    "marital_status": {
        "partner present": ["Married-civ-spouse", "Married-AF-spouse"],
        "no partner present": {
            "never married": ["Never-married"],
            "married once": ["Divorced", "Separated", "Widowed", "Married-spouse-absent"],
        },
    },
    "occupation": {
        "white collar": [
            "Exec-managerial",
            "Prof-specialty",
            "Tech-support",
            "Sales",
            "Adm-clerical",
        ],
        "blue collar": [
            "Craft-repair",
            "Machine-op-inspct",
            "Transport-moving",
            "Handlers-cleaners",
            "Farming-fishing",
        ],
        "service": ["Other-service", "Protective-serv", "Priv-house-serv", "Armed-Forces"],
        "unknown": ["?"],
    },
    "relationship": {
        "spouse": ["Husband", "Wife"],
        "other": ["Own-child", "Other-relative", "Unmarried", "Not-in-family"],
    },
    "race": {
        "White": ["White"],
        "other": ["Black", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other"],
    },
    "sex": ["Female", "Male"],
    "native_country": {
        "North America": ["United-States", "Canada", "Outlying-US(Guam-USVI-etc)"],
        "Central America": [
            *(
                "Mexico",
                "Puerto-Rico",
                "Cuba",
                "Jamaica",
                "Haiti",
                "Dominican-Republic",
                "Trinadad&Tobago",
            ),
            *("El-Salvador", "Guatemala", "Honduras", "Nicaragua"),
        ],
        "South America": ["Columbia", "Ecuador", "Peru"],
        "Europe": {
            "west": [
                "England",
                "Scotland",
                "Ireland",
                "France",
                "Germany",
                "Holand-Netherlands",
                "Italy",
                "Portugal",
                "Greece",
            ],
            "east": ["Poland", "Hungary", "Yugoslavia"],
        },
        "Asia": {
            "east": ["China", "Hong", "Taiwan", "Japan", "South"],
            "south-east": ["Philippines", "Vietnam", "Cambodia", "Laos", "Thailand"],
            "south and west": ["India", "Iran"],
        },
        "unknown": ["?"],
    },
}
"""Taxonomy of Adult's categories by public knowledge, similar to Mohammed et al. 2011.

"South" is read as South Korea.
"""
