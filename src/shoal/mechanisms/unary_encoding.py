"""One-time RAPPOR and (p, q)-perturbation.

A report has one bit per cell. The bit of the true cell is set with probability p, each other bit
with probability q, all independently. One-time RAPPOR is the case q = 1 - p.
"""

from __future__ import annotations

import math
from fractions import Fraction
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

_TIE = ord("?")


def compute_rappor_numerator(epsilon: Fraction) -> int:
    """Return the largest p over 2^64 with (p / (1 - p))^2 <= exp(epsilon)."""

    def chance(bits: int) -> tuple[Fraction, Fraction]:
        low, high = bound_exp(epsilon / 2, bits)
        return low / (low + 1), high / (high + 1)

    return floor_scaled(chance, WORD)


def compute_least_error_numerator(epsilon: Fraction, m: int) -> int:
    """Return the p over 2^64, rounded down, that minimises the error of (p, q)-perturbation.

    Notes
    -----
    Ref: AnonML Eq. (5). With L = exp(epsilon) its root is that of L (L + m - 1) ((m - 1) L + 1),
    and multiplying by the conjugate gives (p / (1 - p))^2 = L (L + m - 1) / ((m - 1) L + 1), in
    which no terms cancel.
    """

    def squared_odds(exp: Fraction) -> Fraction:
        return exp * (exp + m - 1) / ((m - 1) * exp + 1)

    def chance(bits: int) -> tuple[Fraction, Fraction]:
        low, high = bound_exp(epsilon, bits)
        # The odds rise with L, so bounds on L give bounds on the odds.
        odds_low = Fraction(math.isqrt(math.floor(squared_odds(low) * 4**bits)), 2**bits)
        odds_high = Fraction(math.isqrt(math.floor(squared_odds(high) * 4**bits)) + 1, 2**bits)
        return odds_low / (odds_low + 1), odds_high / (odds_high + 1)

    return floor_scaled(chance, WORD)


def compute_matching_numerator(epsilon: Fraction, keep: int) -> int:
    """Return the smallest q over 2^64 for a given p.

    It satisfies p (1 - q) / ((1 - p) q) <= exp(epsilon).
    """

    def chance(bits: int) -> tuple[Fraction, Fraction]:
        low, high = bound_exp(epsilon, bits)
        return keep / (keep + (WORD - keep) * high), keep / (keep + (WORD - keep) * low)

    return floor_scaled(chance, WORD) + 1


class UnaryEncoding(PackedFrequencyOracle):
    """Independent bits, one per cell.

    The probability is ``keep / 2**64`` for the true cell and ``flip / 2**64`` for each other one.

    Notes
    -----
    Ref: AnonML Theorem 1: epsilon = ln(p (1 - q) / ((1 - p) q)).
    """

    def __init__(
        self, epsilon: float, cardinality: int, scope: Scope, keep: int, flip: int
    ) -> None:
        p, q = Fraction(keep, WORD), Fraction(flip, WORD)
        worst_ratio = p * (1 - q) / ((1 - p) * q)
        parameters = {"keep_numerator": keep, "flip_numerator": flip}
        super().__init__(
            epsilon, cardinality, scope, p=p, q=q, worst_ratio=worst_ratio, parameters=parameters
        )
        self._keep = keep
        self._keep_sampler, self._flip_sampler = (
            BernoulliSampler.dyadic(keep),
            BernoulliSampler.dyadic(flip),
        )
        # The first eight bits of a uniform number decide, or tie with those of q: then 56 more are
        # drawn.
        first, self._rest = divmod(flip, 1 << 56)
        self._decision_table = b"1" * first + b"?" + b"0" * (255 - first)

    def report(self, value: int, entropy: Entropy) -> bytes:
        if type(value) is not int or not 0 <= value < self.cardinality:
            raise self._outside_error()
        digits = draw_bytes(self.cardinality, entropy).translate(self._decision_table)
        if _TIE in digits:
            head, *pieces = digits.split(b"?")
            digits = head + b"".join(
                (b"1" if entropy.word() >> 8 < self._rest else b"0") + piece for piece in pieces
            )
        bits, true_bit = int(digits, 2), 1 << value
        bits = bits | true_bit if entropy.word() < self._keep else bits & ~true_bit
        return bits.to_bytes(self.width, "little")

    def _report_block(self, values: npt.NDArray[np.int64], entropy: Entropy) -> PackedRows:
        rows = draw_packed_rows(
            values.size, self.cardinality, lambda n: self._flip_sampler.sample_many(n, entropy)
        )
        set_cells(rows, values, self._keep_sampler.sample_many(values.size, entropy))
        return rows


class OneTimeRappor(UnaryEncoding):
    """One-time RAPPOR: each bit is reported truthfully with the same probability p.

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
    Ref: AnonML §VII-C; epsilon = 2 ln(p / (1 - p)).

    Privacy
    -------
    epsilon-DP for one report: two values differ in two bits, and each gives a ratio of at most p /
    (1 - p).

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> rappor = OneTimeRappor(2.0, 12)
    >>> len(rappor.report(7, SeededEntropy(1))), round(float(rappor.p), 4)
    (2, 0.7311)
    """

    name: ClassVar[str] = "rappor"

    def __init__(self, epsilon: float, cardinality: int, scope: Scope = LOCAL_PERSON) -> None:
        keep = compute_rappor_numerator(check_epsilon(epsilon))
        super().__init__(epsilon, check_cardinality(cardinality), scope, keep, WORD - keep)


class PQPerturbation(UnaryEncoding):
    """(p, q)-perturbation with the p of least error.

    Ones and zeros have different probabilities.

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
    Ref: AnonML §VII-C, Theorem 1 and Eq. (5). At m = 2 it is one-time RAPPOR (errata A-05).

    Privacy
    -------
    epsilon-DP for one report, by Theorem 1.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> bits = PQPerturbation(1.0, 16)
    >>> reports = bits.report_many(np.arange(1600) % 16, SeededEntropy(1))
    >>> reports.shape, bits.tally(reports).shape
    ((1600, 2), (16,))
    """

    name: ClassVar[str] = "pq"

    def __init__(self, epsilon: float, cardinality: int, scope: Scope = LOCAL_PERSON) -> None:
        exact, m = check_epsilon(epsilon), check_cardinality(cardinality)
        keep = compute_least_error_numerator(exact, m)
        super().__init__(epsilon, m, scope, keep, compute_matching_numerator(exact, keep))
