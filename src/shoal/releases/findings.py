"""One figure of a report, with what to hold it against and what it was computed from; and the distances that reports are made of."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Feature
from shoal.messages.base import Record
from shoal.names import shown
from shoal.protocols.pfds.params import Floats

_CLOSE = 1e-6
_MEAN_SIZE = math.sqrt(2 / math.pi)
"""Of a normal variable, in standard deviations."""


class Finding(Record):
    """One figure.

    Parameters
    ----------
    what, value
        The figure.
    beside
        What to hold it against, by name.
    source
        What it was computed from, in words that can follow "from".

    Examples
    --------
    >>> print(Finding(what="rows", value=12.0, beside={"declared": 14.0}, source="the released rows"))
    rows: 12 (declared: 14); from the released rows
    """

    what: str
    value: float
    beside: dict[str, float]
    source: str

    def __str__(self) -> str:
        beside = ", ".join(f"{shown(name)}: {_figure(value)}" for name, value in self.beside.items())
        return f"{shown(self.what)}: {_figure(self.value)}{f' ({beside})' if beside else ''}; from {shown(self.source)}"

    def agrees(self, other: Finding) -> bool:
        """Whether another finding says the same, but for the last digits, which machines may compute differently."""
        same_words = (self.what, list(self.beside), self.source) == (other.what, list(other.beside), other.source)
        pairs = zip((self.value, *self.beside.values()), (other.value, *other.beside.values()), strict=False)
        return same_words and all(math.isclose(mine, theirs, rel_tol=_CLOSE, abs_tol=_CLOSE) for mine, theirs in pairs)


def total_variation(one: Floats, other: Floats) -> float:
    """Half of the sum of the differences of two rows of shares: 0 where they are the same, 1 where nothing is in common."""
    return float(np.abs(one - other).sum() / 2)


def by_chance(shares: Floats, *sizes: float) -> float:
    """The total variation to be expected of samples of such shares, one of each size, or of one sample and the shares themselves."""
    return float(_MEAN_SIZE * np.sqrt(shares * (1 - shares) * sum(1 / size for size in sizes)).sum() / 2)


def by_noise(n_cells: int, deviation: float) -> float:
    """The total variation to be expected of noise of so large a standard deviation on each of so many shares."""
    return _MEAN_SIZE * n_cells * deviation / 2


def shares_of(feature: Feature, column: npt.NDArray[Any]) -> Floats:
    """Share of the rows, of which there is at least one, in each cell of a feature that has cells."""
    assert feature.n_bins is not None
    # A category that nobody declared, where none may be missing, is taken for the last one.
    cells = np.minimum(feature.cut(column), feature.n_bins - 1)
    return np.bincount(cells, minlength=feature.n_bins) / len(column)


def earth_movers(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """The Wasserstein distance between two samples of numbers: how far, on average, one has to be moved to become the other.

    Examples
    --------
    >>> earth_movers(np.array([0.0, 1.0]), np.array([5.0, 6.0]))
    5.0
    """
    places = np.sort(np.concatenate([one, other]))
    below = [np.searchsorted(np.sort(sample), places[:-1], side="right") / len(sample) for sample in (one, other)]
    return float(np.sum(np.abs(below[0] - below[1]) * np.diff(places)))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"
