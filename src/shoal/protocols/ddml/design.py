"""From encoded rows to the inputs of a linear model: a constant, numbers in [0, 1], indicators, n-grams, and crosses of two of them.

A feature fills a few *slots* of a row, each a position among its weights and a value; a cross has a slot for each pair of slots.
Whatever is zero is left out, so that a row of 50,000 weights holds a handful of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Numeric, Schema, Text
from shoal.ngrams import MAX_GRAMS

Floats = npt.NDArray[np.float64]
Columns = Mapping[str, npt.NDArray[Any]]

_MIX = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: an odd multiplier that spreads pairs of n-grams over buckets."""


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
        scores = np.zeros((len(self), len(weights)))
        np.add.at(scores, self._row_of_entry, self.values[:, np.newaxis] * weights.T[self.positions])
        return scores

    def mean_outer(self, residuals: Floats) -> Floats:
        """``(C, width)``: the mean over the rows of residual times input."""
        total = np.zeros((self.width, residuals.shape[1]))
        np.add.at(total, self.positions, self.values[:, np.newaxis] * residuals[self._row_of_entry])
        return total.T / max(1, len(self))

    def dense(self) -> Floats:
        """``(n, width)``, zeros included."""
        full = np.zeros((len(self), self.width))
        full[self._row_of_entry, self.positions] = self.values
        return full

    @property
    def _row_of_entry(self) -> npt.NDArray[np.int64]:
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


@dataclass(frozen=True, eq=False)
class _Slots:
    """``(n, s)`` positions and values of a term; a value of zero fills a slot that a row does not need."""

    positions: npt.NDArray[np.int64]
    values: Floats


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
    larger of two.

    Examples
    --------
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
        widths = [_width(self._part(name)) for name in term]
        buckets = [part.buckets for part in map(self._part, term) if isinstance(part, Text)]
        return max(buckets) if len(term) > 1 and buckets else math.prod(widths)

    @property
    def norms(self) -> tuple[float, float]:
        """The largest L1 and L2 norm that a row can have, from the schema alone."""
        sizes = [[_largest(self._part(name), self.centred) for name in term] for term in self.terms]
        sums = (math.prod(l1 for l1, _ in parts) for parts in sizes)
        squares = (math.prod(squared for _, squared in parts) for parts in sizes)
        return 1 + math.fsum(sums), math.sqrt(1 + math.fsum(squares))

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
        slots = {name: _slots(self._part(name), columns[name], self.centred) for name in self.schema.columns}
        positions, values, start = [np.zeros((n, 1), np.int64)], [np.ones((n, 1))], 1
        for term in self.terms:
            part = slots[term[0]] if len(term) == 1 else self._cross(term, *(slots[name] for name in term))
            positions.append(part.positions + start)
            values.append(part.values)
            start += self.width_of(term)
        where, value = np.concatenate(positions, axis=1), np.concatenate(values, axis=1)
        is_there = value != 0
        starts = np.concatenate([[0], np.cumsum(is_there.sum(axis=1))])
        return Inputs(self.width, starts, where[is_there].astype(np.int32), value[is_there])

    def _cross(self, term: Sequence[str], first: _Slots, second: _Slots) -> _Slots:
        shape = (len(first.values), first.values.shape[1] * second.values.shape[1])
        values = (first.values[:, :, np.newaxis] * second.values[:, np.newaxis, :]).reshape(shape)
        pair = first.positions[:, :, np.newaxis] * _width(self._part(term[1])) + second.positions[:, np.newaxis, :]
        pair = pair.reshape(shape)
        if not any(isinstance(self._part(name), Text) for name in term):
            return _Slots(pair, values)
        spread = (pair.astype(np.uint64) * np.uint64(_MIX)) >> np.uint64(32)
        return _merge_equal(_Slots((spread % np.uint64(self.width_of(term))).astype(np.int64), values))

    @cached_property
    def _parts(self) -> dict[str, Numeric | Categorical | Text]:
        return {part.name: part for part in (*self.schema.features, *self.schema.texts)}

    def _part(self, name: str) -> Numeric | Categorical | Text:
        return self._parts[name]


def _width(part: Numeric | Categorical | Text) -> int:
    if isinstance(part, Text):
        return part.buckets
    return 1 + part.missing if part.n_bins is None else part.n_bins - 1


def _largest(part: Numeric | Categorical | Text, centred: bool) -> tuple[float, float]:
    """The largest sum of sizes and sum of squares of a term's inputs."""
    if isinstance(part, Text):
        return math.sqrt(min(part.buckets, MAX_GRAMS)), 1.0
    if not centred:
        return 1.0, 1.0
    if part.n_bins is None:
        return (1.0, 1.0) if part.missing else (0.5, 0.25)
    n = part.n_bins
    # A value that has a weight has the largest inputs; a single bin has none.
    return ((2 * n - 3) / n, ((n - 1) ** 2 + n - 2) / n**2) if n > 1 else (0.0, 0.0)


def _names(part: Numeric | Categorical | Text) -> list[str]:
    if isinstance(part, Text):
        return [f"{part.name} #{i}" for i in range(part.buckets)]
    missing = [f"{part.name} missing"] if part.missing else []
    if isinstance(part, Categorical):
        return [f"{part.name} = {value}" for value in list(part.groups or part.values)[1:]] + missing
    return (
        [part.name if part.bins is None else "", *missing] if part.bins is None else [f"{part.name} > {cut}" for cut in part.bins] + missing
    )


def _slots(part: Numeric | Categorical | Text, column: npt.NDArray[Any], centred: bool) -> _Slots:
    n = len(column)
    if isinstance(part, Text):
        most = max((len(grams) for grams in column), default=0)
        positions, values = np.zeros((n, most), np.int64), np.zeros((n, most))
        for i, grams in enumerate(column):
            positions[i, : len(grams)] = grams
            values[i, : len(grams)] = 1 / math.sqrt(max(1, len(grams)))
        return _Slots(positions, values)
    if part.n_bins is not None:
        bins = part.cut(column)
        # An unseen category, which only prediction meets, is as the reference.
        is_counted = (bins > 0) & (bins < part.n_bins)
        if centred:
            everywhere = np.tile(np.arange(part.n_bins - 1), (n, 1))
            return _Slots(everywhere, (is_counted[:, np.newaxis] & (everywhere == bins[:, np.newaxis] - 1)) - 1 / part.n_bins)
        return _Slots(np.where(is_counted, bins - 1, 0)[:, np.newaxis], is_counted.astype(float)[:, np.newaxis])
    assert isinstance(part, Numeric)
    gone = np.isnan(column)
    scaled = (np.where(gone, part.low, column) - part.low) / (part.high - part.low) - (0.5 if centred else 0.0)
    return _Slots(np.where(gone, 1, 0)[:, np.newaxis], np.where(gone, 1.0, scaled)[:, np.newaxis])


def _merge_equal(slots: _Slots) -> _Slots:
    """The same with every position once in a row: where hashing brings pairs together, one of them is kept."""
    # Slots that are not needed come last among those of their position: two that are equal then stand side by side.
    order = np.lexsort((slots.values == 0, slots.positions), axis=1)
    positions = np.take_along_axis(slots.positions, order, axis=1)
    values = np.take_along_axis(slots.values, order, axis=1)
    again = np.zeros_like(values, bool)
    again[:, 1:] = (positions[:, 1:] == positions[:, :-1]) & (values[:, :-1] != 0)
    return _Slots(positions, np.where(again, 0.0, values))
