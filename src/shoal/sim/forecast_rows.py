"""Populations that a forecast draws from: public rows, drawn again and again, each time tested on rows that were not among them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal.domain import Columns, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import SpecError
from shoal.names import counted
from shoal.sim.runs import Split, numbers_of_names
from shoal.sim.scores import Encoded, Ints
from shoal.study.spec import Study

N_FOLDS = 4
"""Each part of the public rows in turn is what the others are tested on."""
MOST_UNSEEN = 5_000
"""Rows of a part on which a model is tried: more would say little more."""
N_GROUPS = 6
"""Groups of test rows, one after the other left out to see how much scores hang on which rows they are."""


def groups_of(n: int) -> Ints:
    """The group of each of n test rows: rows that follow each other, so that those of a person are together."""
    return np.arange(n) * N_GROUPS // max(n, 1)


class Source(Protocol):
    """Where the rows of a forecast come from."""

    @property
    def n_folds(self) -> int:
        """Sets of rows to test on; run r uses set r modulo this number."""
        ...

    def draw(self, n_rows: int, repeat: int, part: float = 1.0) -> Split:
        """Rows of a population of this size, and rows to test on; ``part`` of what there is to draw from is used."""
        ...

    def n_apart(self, n_rows: int) -> float:
        """How many populations of this size there are to draw from, which limits how far a draw stands for a fresh one; may be infinite."""
        ...

    def is_repeated(self, n_rows: int) -> bool:
        """Whether a row can be drawn more than once."""
        ...


@dataclass(frozen=True, eq=False)
class PublicRows:
    """A public table: three quarters of it play the population, the rest tests what was learned, each quarter in turn.

    Parameters
    ----------
    columns, labels
        Encoded rows.
    units
        ``(n,)`` whose each row is: a person's rows stay together.
    seed
        Decides which rows form a part, and which are drawn.

    Notes
    -----
    A population of at most half of the rows that there are to draw from is drawn without replacement, and then it is as good as a fresh
    one. A larger one is drawn with replacement: its model knows the truth only as far as the table does, and is a little worse than a
    real one.
    """

    columns: Encoded = field(repr=False)
    labels: npt.NDArray[np.generic] = field(repr=False)
    units: Ints = field(repr=False)
    seed: int
    has_people: bool = False
    n_folds: int = N_FOLDS

    @classmethod
    def of(cls, study: Study, table: Columns, seed: int) -> PublicRows:
        """The rows of a public table that fits a study.

        Raises
        ------
        SpecError
            The table does not fit the schema, or is too small: ``SIM-003``.
        """
        schema: Schema = study.schema()
        encoded, labels = schema.encode(table), schema.encode_label(table)
        person = None if study.data is None else study.data.person
        units = np.arange(len(labels)) if person is None else numbers_of_names(table, person)
        rows = cls(encoded, labels, units, seed, person is not None)
        rows._check()
        return rows

    def _check(self) -> None:
        for fold in range(self.n_folds):
            labels = self.labels[self._unseen(fold)]
            group = groups_of(len(labels))
            if any(len(np.unique(labels[group != one])) < 2 for one in range(N_GROUPS)):
                raise SpecError(
                    "SIM-003",
                    f"{counted(len(self.labels), 'public row')}, in {self.n_folds} parts, are too few, or their labels too much alike.",
                    why="A forecast tries what is learned on each part in turn, and each needs rows of two labels.",
                    fix="Give more public rows, or another --seed.",
                )

    @property
    def n_units(self) -> int:
        """People, or rows where every row is by itself."""
        return int(self.units.max(initial=-1)) + 1

    @cached_property
    def _ranks(self) -> Ints:
        """The units in a random order: the rank of each."""
        ranks = np.empty(self.n_units, np.int64)
        words = SeededEntropy(self.seed).spawn("forecast", "folds").words(self.n_units, np.uint64)
        ranks[np.argsort(words, kind="stable")] = np.arange(self.n_units)
        return ranks

    def _unseen(self, fold: int) -> Ints:
        """The rows of a part to test on, in a random order that keeps a person's rows together."""
        rank_of_row = self._ranks[self.units]
        rows = np.flatnonzero(rank_of_row % self.n_folds == fold)
        return rows[np.argsort(rank_of_row[rows], kind="stable")][:MOST_UNSEEN]

    @property
    def n_pool(self) -> float:
        """Rows that there are to draw from, on average over the parts."""
        return len(self.labels) * (1 - 1 / self.n_folds)

    def n_apart(self, n_rows: int) -> float:
        """Populations of this size in the rows that there are to draw from."""
        return self.n_pool / n_rows

    def is_repeated(self, n_rows: int) -> bool:
        """Whether rows are drawn with replacement: where fewer than two such populations are there."""
        return self.n_apart(n_rows) < 2

    def draw(self, n_rows: int, repeat: int, part: float = 1.0) -> Split:
        """The same rows for the same size and repeat, whatever else a forecast varies."""
        fold = repeat % self.n_folds
        entropy = SeededEntropy(self.seed).spawn("forecast", "rows", n_rows, repeat)
        there = np.flatnonzero(self._ranks % self.n_folds != fold)
        there = there[np.argsort(entropy.words(len(there), np.uint64), kind="stable")]
        there = there[: max(1, round(part * len(there)))]
        wanted = max(1, round(n_rows * self.n_units / len(self.labels)))
        chosen = there[entropy.below_many(len(there), wanted)] if self.is_repeated(n_rows) else there[:wanted]
        rows, whose = self._rows_of(chosen)
        unseen = self._unseen(fold)
        asked, tried = ({name: column[which] for name, column in self.columns.items()} for which in (rows, unseen))
        return Split(asked, self.labels[rows], tried, self.labels[unseen], people=whose if self.has_people else None)

    def _rows_of(self, chosen: Ints) -> tuple[Ints, Ints]:
        """The rows of the chosen units, and by which draw they came: someone who is drawn twice is two people."""
        order = np.argsort(self.units, kind="stable")
        counts = np.bincount(self.units, minlength=self.n_units)
        starts, lengths = (np.cumsum(counts) - counts)[chosen], counts[chosen]
        whose = np.repeat(np.arange(len(chosen)), lengths)
        within = np.arange(len(whose)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return order[starts[whose] + within], whose
