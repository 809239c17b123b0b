"""The questions that a person may be asked: each turns a row into one cell, and a mechanism randomises the cell.

A question is public. It reads all rows that it is given at once, so that one person and a population of millions are asked by the same
code. What a mechanism reports about the cells is counted, and only the counts are kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Feature, Numeric
from shoal.mechanisms.calibrate import NAMES, best
from shoal.mechanisms.reports import FrequencyMechanism, Reports
from shoal.mechanisms.response import RandomResponse
from shoal.privacy.events import Event
from shoal.protocols.anonml.assignment import Words, combination_of
from shoal.protocols.anonml.evidence import N_LEVELS
from shoal.protocols.anonml.params import cells_of

Ints = npt.NDArray[np.int64]


@lru_cache(maxsize=4096)
def table_mechanism(epsilon: float, cardinality: int, among: tuple[str, ...] = NAMES) -> FrequencyMechanism:
    """The mechanism of least expected error; how many answer makes no difference to the choice."""
    return best(epsilon, cardinality, 1, among)


@lru_cache(maxsize=4096)
def response(epsilon: float, cardinality: int = 2) -> RandomResponse:
    """Random response: for one bit, and where a report has to be a single cell."""
    return RandomResponse(epsilon, cardinality)


def charge(mechanism: FrequencyMechanism, epsilon: float, *columns: str) -> Event:
    """The price of an answer at this budget, whatever its cells: the budget itself, which the chances of no mechanism exceed."""
    return replace(mechanism.event(), epsilon=epsilon).reading(*columns)


@dataclass(frozen=True)
class Rows:
    """Encoded rows with the words that assign them to questions; one row is one person.

    Parameters
    ----------
    columns
        What `Schema.encode` gives.
    labels
        ``(n,)`` positions of the label's values.
    words
        ``(n, 2)``: see `shoal.protocols.anonml.assignment`.
    chosen
        Which rows are meant; None for all.
    """

    columns: Mapping[str, npt.NDArray[Any]] = field(repr=False)
    labels: Ints = field(repr=False)
    words: Words = field(repr=False)
    chosen: Ints | None = field(default=None, repr=False)

    def take(self, chosen: Ints) -> Rows:
        """Some of all rows."""
        return replace(self, chosen=chosen)

    def column(self, name: str) -> npt.NDArray[Any]:
        """One encoded column of the chosen rows."""
        return self.columns[name] if self.chosen is None else self.columns[name][self.chosen]

    @property
    def label(self) -> Ints:
        """The labels of the chosen rows."""
        return self.labels if self.chosen is None else self.labels[self.chosen]

    @property
    def word(self) -> Words:
        """The words of the chosen rows."""
        return self.words if self.chosen is None else self.words[self.chosen]


@dataclass(frozen=True)
class Tally:
    """What has been counted for one question: n answers, and counts of what they support."""

    n: int
    counts: Ints

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.n + other.n, self.counts + other.counts)


@dataclass(frozen=True)
class Question(ABC):
    """One question.

    Parameters
    ----------
    name
        What it is about, for people.
    mechanism
        What randomises the cell; None where nothing is perturbed, in simulations.
    """

    name: str
    mechanism: FrequencyMechanism | None

    @property
    @abstractmethod
    def n_cells(self) -> int:
        """How many cells there are."""

    @abstractmethod
    def cells(self, rows: Rows) -> Ints:
        """The true cell of each row: private."""

    @property
    def n_counts(self) -> int:
        """How many counts are kept."""
        return self.n_cells

    def count(self, reports: Reports, words: Words) -> Ints:
        """Counts of what the reports of people with these words support."""
        return np.bincount(reports, minlength=self.n_cells) if self.mechanism is None else self.mechanism.tally(reports)

    def empty(self) -> Tally:
        """Nothing counted yet."""
        return Tally(0, np.zeros(self.n_counts, np.int64))


def _as_cells(holds: npt.NDArray[np.bool_]) -> Ints:
    """Cell 1 where a claim holds, cell 0 where not."""
    return holds.astype(np.int64)


@dataclass(frozen=True)
class Above(Question):
    """Whether the number is greater than a published point. Missing counts as not.

    Notes
    -----
    Ref: AnonML §VII-B, ISGREATER.
    """

    feature: Numeric
    point: float

    @property
    def n_cells(self) -> int:
        return 2

    def cells(self, rows: Rows) -> Ints:
        return _as_cells(rows.column(self.feature.name) > self.point)


@dataclass(frozen=True)
class Cell(Question):
    """Which combination of bins and label. The first feature counts most, the label least.

    Notes
    -----
    Ref: AnonML §VII-A: a partial feature vector is mapped to a single categorical value.
    """

    features: tuple[Feature, ...]
    n_labels: int

    @property
    def n_cells(self) -> int:
        return n_joint_cells(self.features, self.n_labels)

    def cells(self, rows: Rows) -> Ints:
        cells = np.zeros(rows.label.shape, np.int64)
        for feature in self.features:
            cells = cells * cells_of(feature) + feature.cut(rows.column(feature.name))
        return cells * self.n_labels + rows.label


def n_joint_cells(features: Sequence[Feature], n_labels: int) -> int:
    """Cells of a table of features and label."""
    n = n_labels
    for feature in features:
        n *= cells_of(feature)
    return n


@dataclass(frozen=True)
class Side(Question):
    """Whether the value is on the upper side of its one cut, or the second of its two categories. Missing counts as not."""

    feature: Feature

    @property
    def n_cells(self) -> int:
        return 2

    def cells(self, rows: Rows) -> Ints:
        return _as_cells(self.feature.cut(rows.column(self.feature.name)) == 1)


@dataclass(frozen=True)
class Agree(Side):
    """Whether the side agrees with the label: upper and second class, or lower and first."""

    def cells(self, rows: Rows) -> Ints:
        return _as_cells(super().cells(rows) == (rows.label == 1))


@dataclass(frozen=True)
class LabelIs(Question):
    """Whether the label is the second of two classes."""

    @property
    def n_cells(self) -> int:
        return 2

    def cells(self, rows: Rows) -> Ints:
        return _as_cells(rows.label == 1)


@dataclass(frozen=True)
class Block(Question):
    """Which combination of levels of a few features and of the label. Which features follows from the person's second word.

    Parameters
    ----------
    features, levels
        All features, and the level of each bin of each.
    size
        How many of the features a person is asked about.

    Notes
    -----
    All people share one set of cells, whatever features they are asked about: with fewer levels than `N_LEVELS` some cells stay empty.
    Only tables of one feature with the label, and of two features, are kept of the reports, each a sum over people.
    """

    features: tuple[Feature, ...]
    levels: tuple[Ints, ...] = field(compare=False)
    size: int

    @property
    def n_cells(self) -> int:
        return int(2 * N_LEVELS**self.size)

    @property
    def n_singles(self) -> int:
        """Counts of features with the label, which come first."""
        return len(self.features) * N_LEVELS * 2

    @property
    def n_counts(self) -> int:
        j = len(self.features)
        return self.n_singles + j * (j - 1) // 2 * N_LEVELS**2

    def cells(self, rows: Rows) -> Ints:
        asked = combination_of(rows.word[:, 1], len(self.features), self.size)
        cells = np.zeros(rows.label.shape, np.int64)
        for place in range(self.size):
            level = np.zeros(rows.label.shape, np.int64)
            for j in np.unique(asked[:, place]).tolist():
                here = np.flatnonzero(asked[:, place] == j)
                part = rows.take(here if rows.chosen is None else rows.chosen[here])
                level[here] = self.levels[j][self.features[j].cut(part.column(self.features[j].name))]
            cells = cells * N_LEVELS + level
        return cells * 2 + rows.label

    def count(self, reports: Reports, words: Words) -> Ints:
        j = len(self.features)
        asked = combination_of(words[:, 1], j, self.size)
        told, label = np.asarray(reports, np.int64) // 2, np.asarray(reports, np.int64) % 2
        levels = [told // N_LEVELS ** (self.size - 1 - place) % N_LEVELS for place in range(self.size)]
        singles = [(asked[:, place] * N_LEVELS + levels[place]) * 2 + label for place in range(self.size)]
        pairs = []
        for a, b in combinations(range(self.size), 2):
            first, second = asked[:, a], asked[:, b]
            pair = first * j - first * (first + 1) // 2 + second - first - 1
            pairs.append((pair * N_LEVELS + levels[a]) * N_LEVELS + levels[b] + self.n_singles)
        return np.bincount(np.concatenate(singles + pairs), minlength=self.n_counts)
