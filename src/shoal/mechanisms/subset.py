"""Subset selection: a report is a set of w cells, which holds the true cell with chance p; the others are picked at random.

A uniform set of k of the other m - 1 cells is drawn in two steps. First every cell is taken by a coin of its own, all of the same
chance: given how many were taken, every set of that many is equally likely. Then, until there are k, a cell picked uniformly among
those not taken is added (or among those taken, removed), which keeps all sets of the new size equally likely.
The result is exact whatever the coin's chance is; the chance decides only how many repairs there are. The true cell is settled by
its own coin before the repair, which never touches it: k is w - 1 if the set holds it, and w if not.
"""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import NormalDist
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.base import check_epsilon
from shoal.mechanisms.coins import Coin
from shoal.mechanisms.exact import exp_bounds, floor_of
from shoal.mechanisms.packed import Packed, PackedMechanism, pack_draws, random_bytes, set_cells
from shoal.mechanisms.reports import WORD, check_cardinality
from shoal.privacy.events import LOCAL_PERSON, Scope

_FEW = 5


def keep_numerator(epsilon: Fraction, m: int, w: int) -> int:
    """The largest p over 2^64 with p (m - w) / ((1 - p) w) <= exp(epsilon)."""

    def chance(bits: int) -> tuple[Fraction, Fraction]:
        low, high = exp_bounds(epsilon, bits)
        return w * low / (w * low + m - w), w * high / (w * high + m - w)

    return floor_of(chance, WORD)


def squared_error(p: Fraction, m: int, w: int) -> Fraction:
    """The square of equation 4 for one report: a set of w cells holds each other cell with chance q = (w - p) / (m - 1)."""
    q = (w - p) / (m - 1)
    return ((m - 1) * q * (1 - q) + p * (1 - p)) / (p - q) ** 2


def best_size(epsilon: Fraction, m: int) -> int:
    """The w of least error, next to m / (exp(epsilon) + 1), below it or above."""

    def ideal(bits: int) -> tuple[Fraction, Fraction]:
        low, high = exp_bounds(epsilon, bits)
        return m / (high + 1), m / (low + 1)

    below = floor_of(ideal, 1)
    sizes = [w for w in (below, below + 1) if w >= 1]
    return min(sizes, key=lambda w: squared_error(Fraction(keep_numerator(epsilon, m, w), WORD), m, w))


def start_threshold(m: int, w: int) -> int:
    """The chance over 256 with which a cell is taken at first: for speed alone, as the result is exact with any.

    A repair by rejection costs 1 / (share not taken) draws for a cell too few and 1 / (share taken) for one too many, so
    the count should be too high as seldom as the share taken. A few cells are picked one by one sooner than a coin is tossed for each.
    """
    if w <= _FEW:
        return 0
    share = (w - 0.5) / (m - 1)
    taken = w - NormalDist().inv_cdf(1 - share) * math.sqrt(w * (1 - share))
    return max(0, int(256 * taken / (m - 1)))


class SubsetSelection(PackedMechanism):
    """Subset selection among m cells; a report is a set of w cells, as packed bits.

    Parameters
    ----------
    epsilon
        Budget of one report.
    cardinality
        m, the number of cells.
    scope
        Unit, neighbouring relation and adversary of the claim.

    Notes
    -----
    Ref: Ye and Barg 2018, Wang et al. 2016. The size w is the one of least error; p = w exp(epsilon) / (w exp(epsilon) + m - w).

    Privacy
    -------
    epsilon-DP for one report: a set is reported with chance p / C(m - 1, w - 1) if it holds the value and (1 - p) / C(m - 1, w) if not,
    a ratio of p (m - w) / ((1 - p) w).

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> subsets = SubsetSelection(1.0, 16)
    >>> report = subsets.report(3, SeededEntropy(1))
    >>> subsets.ones, int(subsets.tally(subsets.stack([report])).sum())
    (4, 4)
    """

    name: ClassVar[str] = "subset-selection"

    def __init__(self, epsilon: float, cardinality: int, scope: Scope = LOCAL_PERSON) -> None:
        exact, m = check_epsilon(epsilon), check_cardinality(cardinality)
        w = best_size(exact, m)
        keep = keep_numerator(exact, m, w)
        p = Fraction(keep, WORD)
        super().__init__(
            epsilon,
            m,
            scope,
            p=p,
            q=(w - p) / (m - 1),
            worst_ratio=p * (m - w) / ((1 - p) * w),
            parameters={"keep_numerator": keep, "subset_size": w},
        )
        self.ones: int = w
        self._keep = keep
        self._keep_coin = Coin.dyadic(keep)
        self._mask = (1 << (m - 1).bit_length()) - 1
        self._threshold = start_threshold(m, w)
        self._taken = b"1" * self._threshold + b"0" * (256 - self._threshold)

    def report(self, value: int, entropy: Entropy) -> bytes:
        m, mask = self.cardinality, self._mask
        if type(value) is not int or not 0 <= value < m:
            raise self._outside()
        true_bit = 1 << value
        bits = int(random_bytes(m, entropy).translate(self._taken), 2) & ~true_bit if self._threshold else 0
        if entropy.word() < self._keep:
            bits |= true_bit
        missing = self.ones - bits.bit_count()
        # Four cells to a word, under a mark that shows when the word is used up; what is not one of the other cells is passed over.
        word = 1
        while missing:
            if word == 1:
                word = WORD | entropy.word()
            cell = word & mask
            word >>= 16
            if cell < m and cell != value and (bits >> cell & 1) == (missing < 0):
                bits ^= 1 << cell
                missing += 1 if missing < 0 else -1
        return bits.to_bytes(self.width, "little")

    def _report_block(self, values: npt.NDArray[np.int64], entropy: Entropy) -> Packed:
        threshold = np.uint8(self._threshold)
        if threshold:
            rows = pack_draws(values.size, self.cardinality, lambda n: entropy.words(n, np.uint8) < threshold)
        else:
            rows = np.zeros((values.size, self.width), np.uint8)
        set_cells(rows, values, self._keep_coin.flip_many(values.size, entropy))
        missing = self.ones - np.bitwise_count(rows).sum(axis=1, dtype=np.int64)
        self._repair(rows, values, missing, entropy)
        return rows

    def _repair(self, rows: Packed, values: npt.NDArray[np.int64], missing: npt.NDArray[np.int64], entropy: Entropy) -> None:
        """Add or remove uniformly chosen cells, but never a row's own, until no row misses any."""
        flat, width = rows.reshape(-1), rows.shape[1]
        left = np.flatnonzero(missing)
        while left.size:
            cells = entropy.below_many(self.cardinality - 1, left.size)
            cells += cells >= values[left]
            at = left * width + (cells >> 3)
            bit = np.uint8(1) << (cells & 7).astype(np.uint8)
            few = missing[left]
            fits = ((flat[at] & bit) != 0) == (few < 0)
            flat[at[fits]] ^= bit[fits]
            missing[left[fits]] -= np.sign(few[fits])
            left = left[missing[left] != 0]
