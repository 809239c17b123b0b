"""The slots that a row fills in each term of a design: how many, where among the term's weights, and with what value.

A feature fills one slot or a few, a text one for each of its n-grams, a cross one for each pair of slots. Rows are not padded to the
longest of them, so that a long text takes up no room in the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Categorical, Numeric, Text
from shoal.ngrams import MAX_GRAMS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Part = Numeric | Categorical | Text

_MIX = 0x9E3779B97F4A7C15
"""2^64 over the golden ratio: an odd multiplier that spreads pairs of n-grams over buckets."""


@dataclass(frozen=True, eq=False)
class Slots:
    """What some rows fill, row after row.

    Parameters
    ----------
    sizes
        ``(n,)``: how many slots each row fills.
    positions, values
        Where, and with what; zeros are left out.
    """

    sizes: Ints
    positions: Ints
    values: Floats

    @classmethod
    def of_dense(cls, positions: Ints, values: Floats) -> Slots:
        """Those of ``(n, s)`` positions and values that are not zero."""
        is_filled = values != 0
        return cls(is_filled.sum(axis=1), positions[is_filled], values[is_filled])

    @property
    def starts(self) -> Ints:
        """``(n,)``: where the slots of each row begin."""
        return np.cumsum(self.sizes) - self.sizes


def width_of(part: Part) -> int:
    """How many inputs a feature or a text has."""
    if isinstance(part, Text):
        return part.buckets
    return 1 + part.missing if part.n_bins is None else part.n_bins - 1


def most_slots(part: Part, *, centred: bool) -> int:
    """How many of them a row fills at most."""
    if isinstance(part, Text):
        return min(part.buckets, MAX_GRAMS)
    return part.n_bins - 1 if centred and part.n_bins is not None else 1


def slots_of(part: Part, column: npt.NDArray[Any], *, centred: bool) -> Slots:
    """What the rows of an encoded column fill."""
    n = len(column)
    if isinstance(part, Text):
        sizes = np.fromiter(map(len, column), np.int64, n)
        positions = np.concatenate([np.zeros(0, np.int64), *column])
        return Slots(sizes, positions, np.repeat(1 / np.sqrt(np.maximum(1, sizes)), sizes))
    if part.n_bins is not None:
        bins = part.cut(column)
        # An unseen category, which only prediction meets, is as the reference.
        is_counted = (bins > 0) & (bins < part.n_bins)
        if centred:
            everywhere = np.tile(np.arange(part.n_bins - 1), (n, 1))
            return Slots.of_dense(everywhere, (is_counted[:, np.newaxis] & (everywhere == bins[:, np.newaxis] - 1)) - 1 / part.n_bins)
        return Slots(is_counted.astype(np.int64), bins[is_counted] - 1, np.ones(np.count_nonzero(is_counted)))
    assert isinstance(part, Numeric)
    gone = np.isnan(column)
    scaled = (np.where(gone, part.low, column) - part.low) / (part.high - part.low) - (0.5 if centred else 0.0)
    return Slots.of_dense(np.where(gone, 1, 0)[:, np.newaxis], np.where(gone, 1.0, scaled)[:, np.newaxis])


def crossed(first: Slots, second: Slots, width: int) -> Slots:
    """All pairs of slots, the second of which is among ``width`` inputs; values are multiplied."""
    i, j = _pairs(first, second, first.sizes, second.sizes)
    return Slots(first.sizes * second.sizes, first.positions[i] * width + second.positions[j], first.values[i] * second.values[j])


def paired(first: Slots, second: Slots, width: int) -> Slots:
    """Pairs of n-grams of two texts, MAX_GRAMS in a row at most, which share one unit of length.

    Where there would be more, the first of each text are paired, 16 with 16, or more of one where the other is short. As hashing has put
    n-grams in order, these are any of a text, but the same in every text that has them.
    """
    side = math.isqrt(MAX_GRAMS)
    others = np.minimum(second.sizes, MAX_GRAMS // np.clip(first.sizes, 1, side))
    ones = np.minimum(first.sizes, MAX_GRAMS // np.maximum(1, others))
    sizes = ones * others
    i, j = _pairs(first, second, ones, others)
    return Slots(sizes, first.positions[i] * width + second.positions[j], np.repeat(1 / np.sqrt(np.maximum(1, sizes)), sizes))


def hashed(slots: Slots, width: int) -> Slots:
    """Positions spread over ``width`` buckets, each once in a row: where pairs meet in one, the first is kept."""
    buckets = ((slots.positions.astype(np.uint64) * np.uint64(_MIX)) >> np.uint64(32)) % np.uint64(width)
    places = np.repeat(np.arange(len(slots.sizes)) * width, slots.sizes) + buckets.astype(np.int64)
    kept, first = np.unique(places, return_index=True)
    return Slots(np.bincount(kept // width, minlength=len(slots.sizes)), kept % width, slots.values[first])


def joined(terms: Sequence[Slots], offsets: Sequence[int]) -> Slots:
    """The slots of several terms, row by row; a term's positions begin at its offset."""
    sizes: Ints = np.stack([term.sizes for term in terms]).sum(axis=0)
    whole = Slots(sizes, np.empty(sizes.sum(), np.int64), np.empty(sizes.sum()))
    at = whole.starts
    for term, offset in zip(terms, offsets, strict=True):
        entries = np.repeat(at - term.starts, term.sizes) + np.arange(term.values.size)
        whole.positions[entries] = term.positions + offset
        whole.values[entries] = term.values
        at = at + term.sizes
    return whole


def _pairs(first: Slots, second: Slots, ones: Ints, others: Ints) -> tuple[Ints, Ints]:
    """Which slots meet when in every row the first so many of the one term are paired with the first so many of the other."""
    sizes = ones * others
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    row = np.repeat(np.arange(sizes.size), sizes)
    one, other = np.divmod(within, others[row])
    return first.starts[row] + one, second.starts[row] + other
