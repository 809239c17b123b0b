"""Questions and tallies.

A question maps a row to one cell, and a mechanism randomises the cell. A question is public, and
processes all given rows in one call, so that the same code asks one person and a population of
millions. The reports of the mechanism are counted; nothing else is kept of them.
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

from shoal.data.schema import Feature, Numeric
from shoal.mechanisms.calibrate import MECHANISM_NAMES, choose_mechanism
from shoal.mechanisms.frequency_oracle import FrequencyOracle, Reports
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.privacy.events import Event
from shoal.protocols.anonml.assignment import Words, unrank_combinations
from shoal.protocols.anonml.evidence import N_LEVELS
from shoal.protocols.anonml.params import count_cells

Ints = npt.NDArray[np.int64]


@lru_cache(maxsize=4096)
def choose_table_mechanism(
    epsilon: float, cardinality: int, among: tuple[str, ...] = MECHANISM_NAMES
) -> FrequencyOracle:
    """Return the mechanism of least expected error, which does not depend on how many answer."""
    return choose_mechanism(epsilon, cardinality, 1, among)


@lru_cache(maxsize=4096)
def make_response(epsilon: float, cardinality: int = 2) -> RandomizedResponse:
    """Return randomised response over some cells.

    It is used for single bits, and wherever a report must name one cell.
    """
    return RandomizedResponse(epsilon, cardinality)


def price_answer(mechanism: FrequencyOracle, epsilon: float, *columns: str) -> Event:
    """Return the price of an answer at this budget, independently of its cells.

    It is the budget itself, which the probabilities of no mechanism exceed.
    """
    return replace(mechanism.event(), epsilon=epsilon).with_reads(*columns)


@dataclass(frozen=True)
class AssignedRows:
    """Encoded rows with the words that assign them to questions; one row is one person.

    Parameters
    ----------
    columns
        The result of `Schema.encode`.
    labels
        ``(n,)`` positions of the label's values.
    words
        ``(n, 2)``: see `shoal.protocols.anonml.assignment`.
    chosen
        Positions of the chosen rows; None for all.
    """

    columns: Mapping[str, npt.NDArray[Any]] = field(repr=False)
    labels: Ints = field(repr=False)
    words: Words = field(repr=False)
    chosen: Ints | None = field(default=None, repr=False)

    def take(self, chosen: Ints) -> AssignedRows:
        """Return the rows at some positions, counted among all rows."""
        return replace(self, chosen=chosen)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return one encoded column of the chosen rows."""
        return self.columns[name] if self.chosen is None else self.columns[name][self.chosen]

    @property
    def chosen_labels(self) -> Ints:
        """The labels of the chosen rows."""
        return self.labels if self.chosen is None else self.labels[self.chosen]

    @property
    def chosen_words(self) -> Words:
        """The words of the chosen rows."""
        return self.words if self.chosen is None else self.words[self.chosen]


@dataclass(frozen=True)
class Tally:
    """The counts of one question: n answers, and for each count the answers that support it."""

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
        Its subject, for people.
    mechanism
        Randomises the cell; None if nothing is perturbed, in simulations.
    """

    name: str
    mechanism: FrequencyOracle | None

    @property
    @abstractmethod
    def n_cells(self) -> int:
        """Number of cells."""

    @abstractmethod
    def find_cells(self, rows: AssignedRows) -> Ints:
        """Return the true cell of each row, which is private."""

    @property
    def n_counts(self) -> int:
        """Number of counts."""
        return self.n_cells

    def count(self, reports: Reports, words: Words) -> Ints:
        """Return the counts that the reports of people with these words support."""
        return (
            np.bincount(reports, minlength=self.n_cells)
            if self.mechanism is None
            else self.mechanism.tally(reports)
        )

    def make_empty_tally(self) -> Tally:
        """Return a tally without answers."""
        return Tally(0, np.zeros(self.n_counts, np.int64))


def _to_cells(holds: npt.NDArray[np.bool_]) -> Ints:
    """Return cell 1 if a claim is true, otherwise cell 0."""
    return holds.astype(np.int64)


@dataclass(frozen=True)
class AboveQuestion(Question):
    """Asks whether a number is greater than a published point. Missing counts as no.

    Notes
    -----
    Ref: AnonML §VII-B, ISGREATER.
    """

    feature: Numeric
    point: float

    @property
    def n_cells(self) -> int:
        return 2

    def find_cells(self, rows: AssignedRows) -> Ints:
        return _to_cells(rows.column(self.feature.name) > self.point)


@dataclass(frozen=True)
class CellQuestion(Question):
    """The question for the combination of bins and label.

    The first feature is the most significant digit of the cell, the label the least.

    Notes
    -----
    Ref: AnonML §VII-A: a partial feature vector is mapped to a single categorical value.
    """

    features: tuple[Feature, ...]
    n_labels: int

    @property
    def n_cells(self) -> int:
        return count_joint_cells(self.features, self.n_labels)

    def find_cells(self, rows: AssignedRows) -> Ints:
        cells = np.zeros(rows.chosen_labels.shape, np.int64)
        for feature in self.features:
            cells = cells * count_cells(feature) + feature.cut(rows.column(feature.name))
        return cells * self.n_labels + rows.chosen_labels


def count_joint_cells(features: Sequence[Feature], n_labels: int) -> int:
    """Return the number of cells of a table of features and label."""
    n = n_labels
    for feature in features:
        n *= count_cells(feature)
    return n


@dataclass(frozen=True)
class SideQuestion(Question):
    """Asks whether a value is above its only cut, or is the second of two categories.

    Missing counts as no.
    """

    feature: Feature

    @property
    def n_cells(self) -> int:
        return 2

    def find_cells(self, rows: AssignedRows) -> Ints:
        return _to_cells(self.feature.cut(rows.column(self.feature.name)) == 1)


@dataclass(frozen=True)
class AgreementQuestion(SideQuestion):
    """Asks whether the side agrees with the label.

    They agree if they are upper and second class, or lower and first class.
    """

    def find_cells(self, rows: AssignedRows) -> Ints:
        return _to_cells(super().find_cells(rows) == (rows.chosen_labels == 1))


@dataclass(frozen=True)
class LabelQuestion(Question):
    """Asks whether the label is the second of two classes."""

    @property
    def n_cells(self) -> int:
        return 2

    def find_cells(self, rows: AssignedRows) -> Ints:
        return _to_cells(rows.chosen_labels == 1)


@dataclass(frozen=True)
class BlockQuestion(Question):
    """The question for the combination of levels of a few features and of the label.

    The person's second word determines the features.

    Parameters
    ----------
    features, levels
        All features, and the level of each bin of each.
    size
        Number of features that a person is asked about.

    Notes
    -----
    All people share one set of cells, independent of the features they are asked about: with fewer
    levels than `N_LEVELS` some cells stay empty. Of the reports, only tables of one feature with
    the label and tables of two features are kept, each a sum over people.
    """

    features: tuple[Feature, ...]
    levels: tuple[Ints, ...] = field(compare=False)
    size: int

    @property
    def n_cells(self) -> int:
        return int(2 * N_LEVELS**self.size)

    @property
    def n_singles(self) -> int:
        """Number of counts of one feature with the label, which come first."""
        return len(self.features) * N_LEVELS * 2

    @property
    def n_counts(self) -> int:
        j = len(self.features)
        return self.n_singles + j * (j - 1) // 2 * N_LEVELS**2

    def find_cells(self, rows: AssignedRows) -> Ints:
        subsets = unrank_combinations(rows.chosen_words[:, 1], len(self.features), self.size)
        cells = np.zeros(rows.chosen_labels.shape, np.int64)
        for place in range(self.size):
            level = np.zeros(rows.chosen_labels.shape, np.int64)
            for j in np.unique(subsets[:, place]).tolist():
                here = np.flatnonzero(subsets[:, place] == j)
                part = rows.take(here if rows.chosen is None else rows.chosen[here])
                level[here] = self.levels[j][
                    self.features[j].cut(part.column(self.features[j].name))
                ]
            cells = cells * N_LEVELS + level
        return cells * 2 + rows.chosen_labels

    def count(self, reports: Reports, words: Words) -> Ints:
        j = len(self.features)
        subsets = unrank_combinations(words[:, 1], j, self.size)
        digits, label = np.asarray(reports, np.int64) // 2, np.asarray(reports, np.int64) % 2
        levels = [
            digits // N_LEVELS ** (self.size - 1 - place) % N_LEVELS for place in range(self.size)
        ]
        singles = [
            (subsets[:, place] * N_LEVELS + levels[place]) * 2 + label for place in range(self.size)
        ]
        pairs = []
        for a, b in combinations(range(self.size), 2):
            first, second = subsets[:, a], subsets[:, b]
            pair = first * j - first * (first + 1) // 2 + second - first - 1
            pairs.append((pair * N_LEVELS + levels[a]) * N_LEVELS + levels[b] + self.n_singles)
        return np.bincount(np.concatenate(singles + pairs), minlength=self.n_counts)
