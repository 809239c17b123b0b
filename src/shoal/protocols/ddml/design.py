"""From encoded rows to the inputs of a linear model: a constant, numbers in [0, 1], indicators, n-grams, and crosses of two of them.

Whatever is zero is left out, so that a row of 50,000 weights holds a handful of numbers. How many, at most, follows from the schema.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Schema, Text
from shoal.ngrams import MAX_GRAMS
from shoal.protocols.ddml.slots import Part, Slots, crossed, hashed, joined, most_slots, paired, slots_of, width_of

Floats = npt.NDArray[np.float64]
Columns = Mapping[str, npt.NDArray[Any]]

_BLOCK = 1 << 20
"""Entries of rows that are worked out at a time, at most."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Rows of a design, without their zeros (compressed sparse rows).

    Parameters
    ----------
    width
        Inputs of a row, zeros included.
    starts
        ``(n + 1,)`` int64: row i has the entries from ``starts[i]`` to ``starts[i + 1]``.
    positions
        int32: which input an entry is.
    values
        float64 in [-1, 1]: its value.
    """

    width: int
    starts: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int32]
    values: Floats

    def __len__(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def of_dense(cls, matrix: npt.NDArray[Any]) -> Inputs:
        """The rows of a matrix ``(n, width)``."""
        rows, positions = np.nonzero(matrix)
        starts = np.searchsorted(rows, np.arange(len(matrix) + 1))
        return cls(matrix.shape[1], starts, positions.astype(np.int32), matrix[rows, positions].astype(np.float64))

    def take(self, rows: npt.NDArray[np.int64]) -> Inputs:
        """Some of the rows, in the order given."""
        sizes = self.starts[rows + 1] - self.starts[rows]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        entries = np.repeat(self.starts[rows] - starts[:-1], sizes) + np.arange(starts[-1])
        return Inputs(self.width, starts, self.positions[entries], self.values[entries])

    def times(self, weights: Floats) -> Floats:
        """``(n, C)`` scores: each row times each row of the ``(C, width)`` weights."""
        rows = self._row_of_entry
        return np.stack([np.bincount(rows, self.values * each[self.positions], len(self)) for each in weights], axis=1)

    def mean_outer(self, residuals: Floats) -> Floats:
        """``(C, width)``: the mean over the rows of residual times input."""
        rows = self._row_of_entry
        total = np.stack([np.bincount(self.positions, self.values * each[rows], self.width) for each in residuals.T])
        return total / max(1, len(self))

    def dense(self) -> Floats:
        """``(n, width)``, zeros included."""
        full = np.zeros((len(self), self.width))
        full[self._row_of_entry, self.positions] = self.values
        return full

    @property
    def _row_of_entry(self) -> npt.NDArray[np.int64]:
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


@dataclass(frozen=True)
class Design:
    """Which inputs a model has.

    Parameters
    ----------
    schema
        Features and texts with their public ranges, values and buckets.
    crosses
        Pairs of names whose products are inputs of their own.
    centred
        Whether numbers and indicators are moved by what they would be on average if all values were alike: by 1/2, and by one over the
        number of values. Texts stay where they are.

    Notes
    -----
    Ref: DDML §III-A, §V-C, where nothing is centred. Centred inputs point in all directions rather than in one, and noisy steps waste
    less on what all rows have in common.

    The first value of a category is its reference and has no weight: the constant stands for it. A number without bins is one input, scaled
    by its public range; if it may be missing, an indicator says so, and centred it is then in the middle. A number with bins is as a
    category. The n-grams of a text share one unit of length. A cross with a text is hashed into as many buckets as the text has, or the
    larger of two. Pairs of n-grams share one unit of length too, and are as few as n-grams are: of long texts the first are paired.

    Examples
    --------
    >>> from shoal.domain import Numeric
    >>> schema = Schema([Numeric("age", 0, 100, missing=False), Categorical("sex", ["f", "m"], missing=False)])
    >>> design = Design(schema, (("age", "sex"),))
    >>> design.names
    ('constant', 'age', 'sex = m', 'age x sex = m')
    >>> design.inputs(schema.encode({"age": np.array([50]), "sex": np.array(["m"])})).dense()
    array([[1. , 0.5, 1. , 0.5]])
    """

    schema: Schema
    crosses: tuple[tuple[str, str], ...] = ()
    centred: bool = False

    @property
    def terms(self) -> tuple[tuple[str, ...], ...]:
        """The features, the texts and the crosses, in the order of their weights; before them stands the constant."""
        return (*((name,) for name in self.schema.columns), *self.crosses)

    @cached_property
    def width(self) -> int:
        """d: inputs of a row, the constant included."""
        return 1 + sum(self.width_of(term) for term in self.terms)

    def width_of(self, term: Sequence[str]) -> int:
        """How many inputs a term has."""
        widths = [width_of(self._part(name)) for name in term]
        buckets = [part.buckets for part in map(self._part, term) if isinstance(part, Text)]
        return max(buckets) if len(term) > 1 and buckets else math.prod(widths)

    @property
    def norms(self) -> tuple[float, float]:
        """The largest L1 and L2 norm that a row can have, from the schema alone."""
        sizes = [self._largest(term) for term in self.terms]
        return 1 + math.fsum(l1 for l1, _ in sizes), math.sqrt(1 + math.fsum(squared for _, squared in sizes))

    @property
    def most_entries(self) -> int:
        """How many entries a row can have, from the schema alone."""
        return 1 + sum(self._most_slots(term) for term in self.terms)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for every input; texts have numbers."""
        names = ["constant"]
        for term in self.terms:
            parts = [_names(self._part(name)) for name in term]
            if len(term) == 1:
                names += parts[0]
            elif self.width_of(term) == len(parts[0]) * len(parts[1]):
                names += [f"{first} x {second}" for first in parts[0] for second in parts[1]]
            else:
                names += [f"{term[0]} x {term[1]} #{i}" for i in range(self.width_of(term))]
        return tuple(names)

    def inputs(self, columns: Columns) -> Inputs:
        """The rows of encoded columns."""
        n = len(next(iter(columns.values())))
        size = max(1, _BLOCK // self.most_entries)
        blocks = [self._block({name: columns[name][i : i + size] for name in self.schema.columns}) for i in range(0, max(1, n), size)]
        sizes, positions, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        return Inputs(self.width, np.concatenate([[0], np.cumsum(sizes)]), positions, values)

    def _block(self, columns: Columns) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], Floats]:
        """How many entries each row has, and all of them, row by row."""
        slots = {name: slots_of(self._part(name), column, centred=self.centred) for name, column in columns.items()}
        n = len(next(iter(columns.values())))
        filled = [slots[term[0]] if len(term) == 1 else self._cross(term, *(slots[name] for name in term)) for term in self.terms]
        constant = Slots(np.ones(n, np.int64), np.zeros(n, np.int64), np.ones(n))
        rows = joined([constant, *filled], [0, *itertools.accumulate(map(self.width_of, self.terms[:-1]), initial=1)])
        return rows.sizes, rows.positions.astype(np.int32), rows.values

    def _cross(self, term: Sequence[str], first: Slots, second: Slots) -> Slots:
        width = width_of(self._part(term[1]))
        if self._n_texts(term) == 0:
            return crossed(first, second, width)
        pairs = paired(first, second, width) if self._n_texts(term) == 2 else crossed(first, second, width)
        return hashed(pairs, self.width_of(term))

    def _most_slots(self, term: Sequence[str]) -> int:
        """How many inputs of a term a row has at most."""
        alone = math.prod(most_slots(self._part(name), centred=self.centred) for name in term)
        return min(self.width_of(term), MAX_GRAMS if self._n_texts(term) == 2 else alone)

    def _largest(self, term: Sequence[str]) -> tuple[float, float]:
        """The largest sum of sizes and sum of squares of a term's inputs."""
        if self._n_texts(term) == 2:
            return math.sqrt(self._most_slots(term)), 1.0
        sizes = [_largest_of(self._part(name), centred=self.centred) for name in term]
        return math.prod(l1 for l1, _ in sizes), math.prod(squared for _, squared in sizes)

    def _n_texts(self, term: Sequence[str]) -> int:
        return sum(isinstance(self._part(name), Text) for name in term)

    @cached_property
    def _parts(self) -> dict[str, Part]:
        return {part.name: part for part in (*self.schema.features, *self.schema.texts)}

    def _part(self, name: str) -> Part:
        return self._parts[name]


def _largest_of(part: Part, *, centred: bool) -> tuple[float, float]:
    if isinstance(part, Text):
        return math.sqrt(most_slots(part, centred=centred)), 1.0
    if not centred:
        return 1.0, 1.0
    if part.n_bins is None:
        return (1.0, 1.0) if part.missing else (0.5, 0.25)
    n = part.n_bins
    # A value that has a weight has the largest inputs; a single bin has none.
    return ((2 * n - 3) / n, ((n - 1) ** 2 + n - 2) / n**2) if n > 1 else (0.0, 0.0)


def _names(part: Part) -> list[str]:
    if isinstance(part, Text):
        return [f"{part.name} #{i}" for i in range(part.buckets)]
    missing = [f"{part.name} missing"] if part.missing else []
    if isinstance(part, Categorical):
        return [f"{part.name} = {value}" for value in list(part.groups or part.values)[1:]] + missing
    return (
        [part.name if part.bins is None else "", *missing] if part.bins is None else [f"{part.name} > {cut}" for cut in part.bins] + missing
    )
