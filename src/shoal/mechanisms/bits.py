"""One coin for every cell: (p, q)-perturbation, and one-time RAPPOR, which is the case q = 1 - p.

The true cell's bit is set with chance p, every other bit with chance q, all independently.
"""

from __future__ import annotations

import math
from fractions import Fraction
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

_TIE = ord("?")


def rappor_numerator(epsilon: Fraction) -> int:
    """The largest p over 2^64 with (p / (1 - p))^2 <= exp(epsilon)."""

    def chance(bits: int) -> tuple[Fraction, Fraction]:
        low, high = exp_bounds(epsilon / 2, bits)
        return low / (low + 1), high / (high + 1)

    return floor_of(chance, WORD)


def least_error_numerator(epsilon: Fraction, m: int) -> int:
    """The p over 2^64, rounded down, that minimises the error of (p, q)-perturbation.

    Notes
    -----
    Ref: AnonML Eq. (5). With L = exp(epsilon) its root is that of L (L + m - 1) ((m - 1) L + 1), and multiplying by the conjugate
    leaves (p / (1 - p))^2 = L (L + m - 1) / ((m - 1) L + 1), in which nothing cancels.
    """

    def squared_odds(exp: Fraction) -> Fraction:
        return exp * (exp + m - 1) / ((m - 1) * exp + 1)

    def chance(bits: int) -> tuple[Fraction, Fraction]:
        low, high = exp_bounds(epsilon, bits)
        # The odds rise with L, so that bounds on L give bounds on them.
        odds_low = Fraction(math.isqrt(math.floor(squared_odds(low) * 4**bits)), 2**bits)
        odds_high = Fraction(math.isqrt(math.floor(squared_odds(high) * 4**bits)) + 1, 2**bits)
        return odds_low / (odds_low + 1), odds_high / (odds_high + 1)

    return floor_of(chance, WORD)


def matching_numerator(epsilon: Fraction, keep: int) -> int:
    """The smallest q over 2^64 with p (1 - q) / ((1 - p) q) <= exp(epsilon), for a given p."""

    def chance(bits: int) -> tuple[Fraction, Fraction]:
        low, high = exp_bounds(epsilon, bits)
        return keep / (keep + (WORD - keep) * high), keep / (keep + (WORD - keep) * low)

    return floor_of(chance, WORD) + 1


class BitPerturbation(PackedMechanism):
    """Independent bits: chance ``keep / 2**64`` for the true cell and ``flip / 2**64`` for every other one.

    Notes
    -----
    Ref: AnonML Theorem 1: epsilon = ln(p (1 - q) / ((1 - p) q)).
    """

    def __init__(self, epsilon: float, cardinality: int, scope: Scope, keep: int, flip: int) -> None:
        p, q = Fraction(keep, WORD), Fraction(flip, WORD)
        worst_ratio = p * (1 - q) / ((1 - p) * q)
        parameters = {"keep_numerator": keep, "flip_numerator": flip}
        super().__init__(epsilon, cardinality, scope, p=p, q=q, worst_ratio=worst_ratio, parameters=parameters)
        self._keep = keep
        self._keep_coin, self._flip_coin = Coin.dyadic(keep), Coin.dyadic(flip)
        # The first eight bits of a coin's uniform number settle it, or tie with those of q: then 56 more are drawn.
        first, self._rest = divmod(flip, 1 << 56)
        self._settled = b"1" * first + b"?" + b"0" * (255 - first)

    def report(self, value: int, entropy: Entropy) -> bytes:
        if type(value) is not int or not 0 <= value < self.cardinality:
            raise self._outside()
        digits = random_bytes(self.cardinality, entropy).translate(self._settled)
        if _TIE in digits:
            head, *pieces = digits.split(b"?")
            digits = head + b"".join((b"1" if entropy.word() >> 8 < self._rest else b"0") + piece for piece in pieces)
        bits, true_bit = int(digits, 2), 1 << value
        bits = bits | true_bit if entropy.word() < self._keep else bits & ~true_bit
        return bits.to_bytes(self.width, "little")

    def _report_block(self, values: npt.NDArray[np.int64], entropy: Entropy) -> Packed:
        rows = pack_draws(values.size, self.cardinality, lambda n: self._flip_coin.flip_many(n, entropy))
        set_cells(rows, values, self._keep_coin.flip_many(values.size, entropy))
        return rows


class OneTimeRappor(BitPerturbation):
    """One-time RAPPOR: every bit is told truly with the same chance p.

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
    epsilon-DP for one report: two values differ in two bits, and each gives a ratio of at most p / (1 - p).

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> rappor = OneTimeRappor(2.0, 12)
    >>> len(rappor.report(7, SeededEntropy(1))), round(float(rappor.p), 4)
    (2, 0.7311)
    """

    name: ClassVar[str] = "rappor"

    def __init__(self, epsilon: float, cardinality: int, scope: Scope = LOCAL_PERSON) -> None:
        keep = rappor_numerator(check_epsilon(epsilon))
        super().__init__(epsilon, check_cardinality(cardinality), scope, keep, WORD - keep)


class PQPerturbation(BitPerturbation):
    """(p, q)-perturbation with the p of least error: ones and zeros are not treated alike.

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
        keep = least_error_numerator(exact, m)
        super().__init__(epsilon, m, scope, keep, matching_numerator(exact, keep))
