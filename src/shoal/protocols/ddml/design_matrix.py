"""Sparse design matrix: encodings, crosses, hashed n-grams.

Peers, models and simulations call `InputDesign.make_inputs`: it makes the inputs of a linear model
from encoded rows. The inputs are a constant, numbers in [0, 1], indicators, n-grams, and crosses of
two of them. Zeros are left out, so that a row of 50,000 weights has a handful of numbers; the
schema alone determines the largest number and the largest norm, which the price of an update relies
on.

`InputSlots` are the entries of some rows in each term of a design: their number, their positions
among the term's weights, and their values. A feature has one slot or a few, a text one for each of
its n-grams, a cross one for each pair of slots. Rows are not padded to the longest, so that a long
text uses no memory in the others.
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

from shoal.data.features import MAX_GRAMS
from shoal.data.schema import Categorical, Numeric, Schema, Text

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Part = Numeric | Categorical | Text

_MIX = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: an odd multiplier that spreads pairs of n-grams over buckets."""


@dataclass(frozen=True, eq=False)
class InputSlots:
    """The entries of some rows, row after row.

    Parameters
    ----------
    sizes
        ``(n,)``: number of slots of each row.
    positions, values
        Position and value of each slot; zeros are left out.
    """

    sizes: Ints
    positions: Ints
    values: Floats

    @classmethod
    def from_dense(cls, positions: Ints, values: Floats) -> InputSlots:
        """Return those of ``(n, s)`` positions and values that are not zero."""
        is_filled = values != 0
        return cls(is_filled.sum(axis=1), positions[is_filled], values[is_filled])

    @property
    def starts(self) -> Ints:
        """``(n,)``: the first slot of each row."""
        return np.cumsum(self.sizes) - self.sizes


def count_inputs(part: Part) -> int:
    """Return the number of inputs of a feature or a text."""
    if isinstance(part, Text):
        return part.buckets
    return 1 + part.missing if part.n_bins is None else part.n_bins - 1


def max_slots(part: Part, *, centred: bool) -> int:
    """Return the largest number of inputs of a feature or a text that a row has."""
    if isinstance(part, Text):
        return min(part.buckets, MAX_GRAMS)
    return part.n_bins - 1 if centred and part.n_bins is not None else 1


def make_slots(part: Part, column: npt.NDArray[Any], *, centred: bool) -> InputSlots:
    """Return the slots of the rows of an encoded column."""
    n = len(column)
    if isinstance(part, Text):
        sizes = np.fromiter(map(len, column), np.int64, n)
        positions = np.concatenate([np.zeros(0, np.int64), *column])
        return InputSlots(sizes, positions, np.repeat(1 / np.sqrt(np.maximum(1, sizes)), sizes))
    if part.n_bins is not None:
        bins = part.cut(column)
        # An unseen category, possible only in prediction, counts as the reference.
        is_counted = (bins > 0) & (bins < part.n_bins)
        if centred:
            everywhere = np.tile(np.arange(part.n_bins - 1), (n, 1))
            return InputSlots.from_dense(
                everywhere,
                (is_counted[:, np.newaxis] & (everywhere == bins[:, np.newaxis] - 1))
                - 1 / part.n_bins,
            )
        return InputSlots(
            is_counted.astype(np.int64), bins[is_counted] - 1, np.ones(np.count_nonzero(is_counted))
        )
    assert isinstance(part, Numeric)
    is_missing = np.isnan(column)
    scaled = (np.where(is_missing, part.low, column) - part.low) / (part.high - part.low) - (
        0.5 if centred else 0.0
    )
    return InputSlots.from_dense(
        np.where(is_missing, 1, 0)[:, np.newaxis], np.where(is_missing, 1.0, scaled)[:, np.newaxis]
    )


def cross_slots(first: InputSlots, second: InputSlots, width: int) -> InputSlots:
    """Return all pairs of slots, with values multiplied.

    ``width`` is the number of inputs of the second term.
    """
    i, j = _match_slots(first, second, first.sizes, second.sizes)
    return InputSlots(
        first.sizes * second.sizes,
        first.positions[i] * width + second.positions[j],
        first.values[i] * second.values[j],
    )


def pair_slots(first: InputSlots, second: InputSlots, width: int) -> InputSlots:
    """Return pairs of n-grams of two texts, at most MAX_GRAMS in a row, scaled to unit length.

    If there would be more, the first n-grams of each text are paired, 16 with 16, or more of one if
    the other is short. N-grams are ordered by their hashes, so the first are arbitrary in a text,
    but the same in every text that has them.
    """
    side = math.isqrt(MAX_GRAMS)
    others = np.minimum(second.sizes, MAX_GRAMS // np.clip(first.sizes, 1, side))
    ones = np.minimum(first.sizes, MAX_GRAMS // np.maximum(1, others))
    sizes = ones * others
    i, j = _match_slots(first, second, ones, others)
    return InputSlots(
        sizes,
        first.positions[i] * width + second.positions[j],
        np.repeat(1 / np.sqrt(np.maximum(1, sizes)), sizes),
    )


def hash_slots(slots: InputSlots, width: int) -> InputSlots:
    """Hash positions into ``width`` buckets, each used once in a row.

    Of pairs in the same bucket, the first is kept.
    """
    buckets = ((slots.positions.astype(np.uint64) * np.uint64(_MIX)) >> np.uint64(32)) % np.uint64(
        width
    )
    places = np.repeat(np.arange(len(slots.sizes)) * width, slots.sizes) + buckets.astype(np.int64)
    kept, first = np.unique(places, return_index=True)
    return InputSlots(
        np.bincount(kept // width, minlength=len(slots.sizes)), kept % width, slots.values[first]
    )


def join_slots(terms: Sequence[InputSlots], offsets: Sequence[int]) -> InputSlots:
    """Return the slots of several terms, row by row; a term's positions begin at its offset."""
    sizes: Ints = np.stack([term.sizes for term in terms]).sum(axis=0)
    whole = InputSlots(sizes, np.empty(sizes.sum(), np.int64), np.empty(sizes.sum()))
    at = whole.starts
    for term, offset in zip(terms, offsets, strict=True):
        entries = np.repeat(at - term.starts, term.sizes) + np.arange(term.values.size)
        whole.positions[entries] = term.positions + offset
        whole.values[entries] = term.values
        at = at + term.sizes
    return whole


def _match_slots(
    first: InputSlots, second: InputSlots, ones: Ints, others: Ints
) -> tuple[Ints, Ints]:
    """Return the indices of paired slots.

    In every row the first ``ones`` slots of one term are paired with the first ``others`` of the
    other.
    """
    sizes = ones * others
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    row = np.repeat(np.arange(sizes.size), sizes)
    one, other = np.divmod(within, others[row])
    return first.starts[row] + one, second.starts[row] + other


Columns = Mapping[str, npt.NDArray[Any]]

_BLOCK = 1 << 20
"""Most entries of rows that are computed together."""


@dataclass(frozen=True, eq=False)
class SparseInputs:
    """Rows of a design, without their zeros (compressed sparse rows).

    Parameters
    ----------
    width
        Inputs of a row, zeros included.
    starts
        ``(n + 1,)`` int64: row i has the entries from ``starts[i]`` to ``starts[i + 1]``.
    positions
        int32: the input of each entry.
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
    def from_dense(cls, matrix: npt.NDArray[Any]) -> SparseInputs:
        """Return the rows of a matrix ``(n, width)``."""
        rows, positions = np.nonzero(matrix)
        starts = np.searchsorted(rows, np.arange(len(matrix) + 1))
        return cls(
            matrix.shape[1],
            starts,
            positions.astype(np.int32),
            matrix[rows, positions].astype(np.float64),
        )

    def take(self, rows: npt.NDArray[np.int64]) -> SparseInputs:
        """Return some of the rows, in the order given."""
        sizes = self.starts[rows + 1] - self.starts[rows]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        entries = np.repeat(self.starts[rows] - starts[:-1], sizes) + np.arange(starts[-1])
        return SparseInputs(self.width, starts, self.positions[entries], self.values[entries])

    def multiply(self, weights: Floats) -> Floats:
        """Return ``(n, C)`` scores: each row times each row of the ``(C, width)`` weights."""
        rows = self._entry_rows
        return np.stack(
            [np.bincount(rows, self.values * each[self.positions], len(self)) for each in weights],
            axis=1,
        )

    def mean_outer(self, residuals: Floats) -> Floats:
        """Return the mean over the rows of residual times input, ``(C, width)``."""
        rows = self._entry_rows
        total = np.stack(
            [
                np.bincount(self.positions, self.values * each[rows], self.width)
                for each in residuals.T
            ]
        )
        return total / max(1, len(self))

    def to_dense(self) -> Floats:
        """Return the matrix ``(n, width)``, zeros included."""
        full = np.zeros((len(self), self.width))
        full[self._entry_rows, self.positions] = self.values
        return full

    @property
    def _entry_rows(self) -> npt.NDArray[np.int64]:
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


@dataclass(frozen=True)
class InputDesign:
    """The inputs of a model.

    Parameters
    ----------
    schema
        Features and texts with their public ranges, values and buckets.
    crosses
        Pairs of names; their products are separate inputs.
    centred
        Whether numbers and indicators are shifted by their mean for equally frequent values: by
        1/2, and by one over the number of values. Texts are not shifted.

    Notes
    -----
    Ref: DDML §III-A, §V-C, without centring. Centred inputs point in all directions rather
    than in one, and noisy steps spend less on the common part of all rows.

    The first value of a category is its reference and has no weight: the constant represents it. A
    number without bins is one input, scaled by its public range; if it may be missing, there is an
    indicator of that, and a missing number, if centred, is in the middle. A number with bins is
    treated as a category. The n-grams of a text have unit length together. A cross with a text is
    hashed into the buckets of the text, or of the larger of two. Pairs of n-grams have unit length
    together too, and are at most the number of n-grams allowed: of long texts the first are paired.

    Examples
    --------
    >>> from shoal.data.schema import Numeric
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100, missing=False), Categorical("sex", ["f", "m"], missing=False)]
    ... )
    >>> design = InputDesign(schema, (("age", "sex"),))
    >>> design.names
    ('constant', 'age', 'sex = m', 'age x sex = m')
    >>> design.make_inputs(
    ...     schema.encode({"age": np.array([50]), "sex": np.array(["m"])})
    ... ).to_dense()
    array([[1. , 0.5, 1. , 0.5]])
    """

    schema: Schema
    crosses: tuple[tuple[str, str], ...] = ()
    centred: bool = False

    @property
    def terms(self) -> tuple[tuple[str, ...], ...]:
        """The features, the texts and the crosses, in the order of their weights.

        The constant comes before them.
        """
        return (*((name,) for name in self.schema.columns), *self.crosses)

    @cached_property
    def width(self) -> int:
        """d: the number of inputs of a row, the constant included."""
        return 1 + sum(self.count_term_inputs(term) for term in self.terms)

    def count_term_inputs(self, term: Sequence[str]) -> int:
        """Return the number of inputs of a term."""
        widths = [count_inputs(self._find_part(name)) for name in term]
        buckets = [part.buckets for part in map(self._find_part, term) if isinstance(part, Text)]
        return max(buckets) if len(term) > 1 and buckets else math.prod(widths)

    @property
    def norms(self) -> tuple[float, float]:
        """The largest L1 and L2 norm that a row can have, from the schema alone."""
        sizes = [self._bound_norms(term) for term in self.terms]
        return 1 + math.fsum(l1 for l1, _ in sizes), math.sqrt(
            1 + math.fsum(squared for _, squared in sizes)
        )

    @property
    def max_entries(self) -> int:
        """The largest number of entries of a row, from the schema alone."""
        return 1 + sum(self._max_slots(term) for term in self.terms)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for every input; inputs of texts are numbered."""
        names = ["constant"]
        for term in self.terms:
            parts = [_list_input_names(self._find_part(name)) for name in term]
            if len(term) == 1:
                names += parts[0]
            elif self.count_term_inputs(term) == len(parts[0]) * len(parts[1]):
                names += [f"{first} x {second}" for first in parts[0] for second in parts[1]]
            else:
                names += [
                    f"{term[0]} x {term[1]} #{i}" for i in range(self.count_term_inputs(term))
                ]
        return tuple(names)

    def make_inputs(self, columns: Columns) -> SparseInputs:
        """Return the rows of encoded columns."""
        n = len(next(iter(columns.values())))
        size = max(1, _BLOCK // self.max_entries)
        blocks = [
            self._make_block({name: columns[name][i : i + size] for name in self.schema.columns})
            for i in range(0, max(1, n), size)
        ]
        sizes, positions, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        return SparseInputs(self.width, np.concatenate([[0], np.cumsum(sizes)]), positions, values)

    def _make_block(
        self, columns: Columns
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], Floats]:
        """Return the number of entries of each row, and all entries, row by row."""
        slots = {
            name: make_slots(self._find_part(name), column, centred=self.centred)
            for name, column in columns.items()
        }
        n = len(next(iter(columns.values())))
        filled = [
            slots[term[0]]
            if len(term) == 1
            else self._cross_term(term, *(slots[name] for name in term))
            for term in self.terms
        ]
        constant = InputSlots(np.ones(n, np.int64), np.zeros(n, np.int64), np.ones(n))
        rows = join_slots(
            [constant, *filled],
            [0, *itertools.accumulate(map(self.count_term_inputs, self.terms[:-1]), initial=1)],
        )
        return rows.sizes, rows.positions.astype(np.int32), rows.values

    def _cross_term(self, term: Sequence[str], first: InputSlots, second: InputSlots) -> InputSlots:
        width = count_inputs(self._find_part(term[1]))
        if self._count_texts(term) == 0:
            return cross_slots(first, second, width)
        pairs = (
            pair_slots(first, second, width)
            if self._count_texts(term) == 2
            else cross_slots(first, second, width)
        )
        return hash_slots(pairs, self.count_term_inputs(term))

    def _max_slots(self, term: Sequence[str]) -> int:
        """Return the largest number of inputs of a term that a row has."""
        alone = math.prod(max_slots(self._find_part(name), centred=self.centred) for name in term)
        return min(
            self.count_term_inputs(term), MAX_GRAMS if self._count_texts(term) == 2 else alone
        )

    def _bound_norms(self, term: Sequence[str]) -> tuple[float, float]:
        """Return the largest sum of sizes and sum of squares of a term's inputs."""
        if self._count_texts(term) == 2:
            return math.sqrt(self._max_slots(term)), 1.0
        sizes = [_bound_part_norms(self._find_part(name), centred=self.centred) for name in term]
        return math.prod(l1 for l1, _ in sizes), math.prod(squared for _, squared in sizes)

    def _count_texts(self, term: Sequence[str]) -> int:
        return sum(isinstance(self._find_part(name), Text) for name in term)

    @cached_property
    def _parts(self) -> dict[str, Part]:
        return {part.name: part for part in (*self.schema.features, *self.schema.texts)}

    def _find_part(self, name: str) -> Part:
        return self._parts[name]


def _bound_part_norms(part: Part, *, centred: bool) -> tuple[float, float]:
    if isinstance(part, Text):
        return math.sqrt(max_slots(part, centred=centred)), 1.0
    if not centred:
        return 1.0, 1.0
    if part.n_bins is None:
        return (1.0, 1.0) if part.missing else (0.5, 0.25)
    n = part.n_bins
    # A value with a weight has the largest inputs; a single bin has no inputs.
    return ((2 * n - 3) / n, ((n - 1) ** 2 + n - 2) / n**2) if n > 1 else (0.0, 0.0)


def _list_input_names(part: Part) -> list[str]:
    if isinstance(part, Text):
        return [f"{part.name} #{i}" for i in range(part.buckets)]
    missing = [f"{part.name} missing"] if part.missing else []
    if isinstance(part, Categorical):
        return [
            f"{part.name} = {value}" for value in list(part.groups or part.values)[1:]
        ] + missing
    return (
        [part.name if part.bins is None else "", *missing]
        if part.bins is None
        else [f"{part.name} > {cut}" for cut in part.bins] + missing
    )
