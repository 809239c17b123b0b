"""Subset selection.

A report is a set of w cells, which contains the true cell with probability p; the other cells are
chosen at random.

A uniform set of k of the other m - 1 cells is drawn in two steps. First each cell is taken by an
independent Bernoulli sample with the same probability: given the number of cells taken, all sets of
that size are equally likely. Then, until there are k, a cell chosen uniformly among those not taken
is added (or, among those taken, removed), which keeps all sets of the new size equally likely. The
result is exact for any probability of the first step, which decides only the number of repairs. The
true cell is decided by a separate sample before the repair, which never changes it: k is w - 1 if
the set contains the true cell, and w if not.
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
from shoal.mechanisms.bernoulli import BernoulliSampler
from shoal.mechanisms.exact import bound_exp, floor_scaled
from shoal.mechanisms.frequency_oracle import WORD, check_cardinality
from shoal.mechanisms.packed_bits import (
    PackedFrequencyOracle,
    PackedRows,
    draw_bytes,
    draw_packed_rows,
    set_cells,
)
from shoal.privacy.events import LOCAL_PERSON, Scope

_FEW = 5


def compute_keep_numerator(epsilon: Fraction, m: int, w: int) -> int:
    """Return the largest p over 2^64 with p (m - w) / ((1 - p) w) <= exp(epsilon)."""

    def chance(bits: int) -> tuple[Fraction, Fraction]:
        low, high = bound_exp(epsilon, bits)
        return w * low / (w * low + m - w), w * high / (w * high + m - w)

    return floor_scaled(chance, WORD)


def compute_squared_error(p: Fraction, m: int, w: int) -> Fraction:
    """Return the square of equation 4 for one report.

    A set of w cells contains each other cell with probability q = (w - p) / (m - 1).
    """
    q = (w - p) / (m - 1)
    return ((m - 1) * q * (1 - q) + p * (1 - p)) / (p - q) ** 2


def choose_subset_size(epsilon: Fraction, m: int) -> int:
    """Return the w of least error; it is one of the two integers at m / (exp(epsilon) + 1)."""

    def ideal(bits: int) -> tuple[Fraction, Fraction]:
        low, high = bound_exp(epsilon, bits)
        return m / (high + 1), m / (low + 1)

    below = floor_scaled(ideal, 1)
    sizes = [w for w in (below, below + 1) if w >= 1]
    return min(
        sizes,
        key=lambda w: compute_squared_error(
            Fraction(compute_keep_numerator(epsilon, m, w), WORD), m, w
        ),
    )


def choose_start_threshold(m: int, w: int) -> int:
    """Return the probability, over 256, with which a cell is taken at first.

    It affects only the speed, as the result is exact with any.

    A repair by rejection costs 1 / (share not taken) draws for a missing cell and 1 / (share taken)
    for a surplus one, so the count should be too high with a probability equal to the share taken.
    A few cells are chosen one by one faster than by one sample for each cell.
    """
    if w <= _FEW:
        return 0
    share = (w - 0.5) / (m - 1)
    taken = w - NormalDist().inv_cdf(1 - share) * math.sqrt(w * (1 - share))
    return max(0, int(256 * taken / (m - 1)))


class SubsetSelection(PackedFrequencyOracle):
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
    Ref: Ye and Barg 2018, Wang et al. 2016. The size w is the one of least error; p = w
    exp(epsilon) / (w exp(epsilon) + m - w).

    Privacy
    -------
    epsilon-DP for one report: a set is reported with probability p / C(m - 1, w - 1) if it contains
    the value and (1 - p) / C(m - 1, w) if not, a ratio of p (m - w) / ((1 - p) w).

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
        w = choose_subset_size(exact, m)
        keep = compute_keep_numerator(exact, m, w)
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
        self._keep_sampler = BernoulliSampler.dyadic(keep)
        self._mask = (1 << (m - 1).bit_length()) - 1
        self._threshold = choose_start_threshold(m, w)
        self._take_table = b"1" * self._threshold + b"0" * (256 - self._threshold)

    def report(self, value: int, entropy: Entropy) -> bytes:
        m, mask = self.cardinality, self._mask
        if type(value) is not int or not 0 <= value < m:
            raise self._outside_error()
        true_bit = 1 << value
        bits = (
            int(draw_bytes(m, entropy).translate(self._take_table), 2) & ~true_bit
            if self._threshold
            else 0
        )
        if entropy.word() < self._keep:
            bits |= true_bit
        missing = self.ones - bits.bit_count()
        # A word gives four cells; a marker bit above them shows when it is used up. Numbers that
        # are not one of the other cells are skipped.
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

    def _report_block(self, values: npt.NDArray[np.int64], entropy: Entropy) -> PackedRows:
        threshold = np.uint8(self._threshold)
        if threshold:
            rows = draw_packed_rows(
                values.size, self.cardinality, lambda n: entropy.words(n, np.uint8) < threshold
            )
        else:
            rows = np.zeros((values.size, self.width), np.uint8)
        set_cells(rows, values, self._keep_sampler.sample_many(values.size, entropy))
        missing = self.ones - np.bitwise_count(rows).sum(axis=1, dtype=np.int64)
        self._repair(rows, values, missing, entropy)
        return rows

    def _repair(
        self,
        rows: PackedRows,
        values: npt.NDArray[np.int64],
        missing: npt.NDArray[np.int64],
        entropy: Entropy,
    ) -> None:
        """Add or remove uniformly chosen cells until each row has the right number.

        A row's true cell is never changed.
        """
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
