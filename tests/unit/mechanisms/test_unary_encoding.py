"""One-time RAPPOR and (p, q)-perturbation: closed forms and least error."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import optimize

from shoal.mechanisms.exact import bound_exp
from shoal.mechanisms.frequency_oracle import WORD
from shoal.mechanisms.unary_encoding import (
    OneTimeRappor,
    PQPerturbation,
    compute_least_error_numerator,
    compute_matching_numerator,
    compute_rappor_numerator,
)

GRID = [(epsilon, m) for epsilon in (0.01, 0.5, 1.0, 4.0, 16.0) for m in (2, 3, 16, 1000, 1 << 16)]


class Script:
    """Entropy that returns given bytes and words."""

    def __init__(self, *words: int) -> None:
        self._words = list(words)

    def word(self) -> int:
        return self._words.pop(0)


def equation_5_as_printed(epsilon: float, m: int) -> Decimal:
    """Compute with 60 digits, since terms of the printed form cancel."""
    with localcontext(prec=60):
        lam = Decimal(epsilon).exp()
        root = ((m - 1) * (lam**3 + lam) + ((m - 1) ** 2 + 1) * lam**2).sqrt()
        return (lam**2 + m * lam - lam - root) / (lam**2 - 1)


@pytest.mark.parametrize(("epsilon", "m"), [*GRID, (1e-9, 2), (1e-9, 1000), (64.0, 3)])
def test_p_is_equation_5(epsilon, m):
    numerator = compute_least_error_numerator(Fraction(epsilon), m)
    printed = equation_5_as_printed(epsilon, m)
    assert abs(Decimal(numerator) / WORD - printed) < Decimal(2) ** -63


@pytest.mark.parametrize(
    ("epsilon", "m"), [(epsilon, m) for epsilon, m in GRID if 0.1 < epsilon < 10]
)
def test_p_has_least_error(epsilon, m):
    mechanism = PQPerturbation(epsilon, m)

    def compute_squared_error(p: float) -> float:
        q = 1 / (1 + math.exp(epsilon) * (1 - p) / p)
        return ((m - 1) * q * (1 - q) + p * (1 - p)) / (p - q) ** 2

    found = optimize.minimize_scalar(
        compute_squared_error, bounds=(1e-6, 1 - 1e-6), method="bounded", options={"xatol": 1e-10}
    )
    assert math.isclose(found.x, float(mechanism.p), abs_tol=1e-5)
    assert mechanism.expected_error(1) ** 2 <= found.fun * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 16.0])
@pytest.mark.parametrize("keep", [WORD // 2 + 1, int(0.9 * WORD)])
def test_q_is_smallest_within_budget(epsilon, keep):
    flip = compute_matching_numerator(Fraction(epsilon), keep)
    p = Fraction(keep, WORD)

    def ratio(q: Fraction) -> Fraction:
        return p * (1 - q) / ((1 - p) * q)

    low, high = bound_exp(Fraction(epsilon), 256)
    assert ratio(Fraction(flip, WORD)) <= low
    assert ratio(Fraction(flip - 1, WORD)) >= high


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 16.0])
def test_rappor_p_is_largest_within_budget(epsilon):
    keep = compute_rappor_numerator(Fraction(epsilon))
    low, high = bound_exp(Fraction(epsilon), 256)
    assert Fraction(keep, WORD - keep) ** 2 <= low
    assert Fraction(keep + 1, WORD - keep - 1) ** 2 >= high
    mechanism = OneTimeRappor(epsilon, 5)
    assert mechanism.p + mechanism.q == 1


def test_pq_equals_rappor_for_two_cells():
    """There is no strict improvement at m = 2 (errata A-05), except for the last of 64 bits."""
    pq, rappor = PQPerturbation(1.0, 2), OneTimeRappor(1.0, 2)
    assert pq.p == rappor.p
    assert abs(pq.q - rappor.q) <= Fraction(1, WORD)


def test_p_falls_to_one_half_with_more_cells():
    chances = [float(PQPerturbation(1.0, m).p) for m in (2, 16, 1000, 1 << 16)]
    assert chances == sorted(chances, reverse=True)
    assert math.isclose(chances[-1], 0.5, abs_tol=1e-4)


def test_tie_on_first_byte_is_resolved_by_56_bits():
    mechanism = PQPerturbation(1.0, 8)
    flip = int(mechanism.q * WORD)
    first, rest = flip >> 56, flip & (2**56 - 1)
    word_of_ties = int.from_bytes(bytes([first] * 8), "little")
    true_bit_off = WORD - 1
    below, at = (rest - 1) << 8, rest << 8
    all_below = mechanism.report(0, Script(word_of_ties, *[below] * 8, true_bit_off))
    all_at = mechanism.report(0, Script(word_of_ties, *[at] * 8, true_bit_off))
    assert (all_below, all_at) == (b"\xfe", b"\x00")
    one_below = mechanism.report(0, Script(word_of_ties, *[at] * 6, below, at, true_bit_off))
    assert int.from_bytes(one_below, "little").bit_count() == 1


def test_true_bit_has_independent_sample():
    mechanism = PQPerturbation(1.0, 8)
    keep = int(mechanism.p * WORD)
    nothing, everything = WORD - 1, 0
    assert mechanism.report(3, Script(nothing, keep - 1)) == bytes([1 << 3])
    assert mechanism.report(3, Script(nothing, keep)) == b"\x00"
    assert mechanism.report(3, Script(everything, keep - 1)) == b"\xff"
    assert mechanism.report(3, Script(everything, keep)) == bytes([0xFF - (1 << 3)])


def test_padding_bits_are_zero_in_batches(entropy):
    reports = OneTimeRappor(0.1, 11).report_many(np.arange(11).repeat(50), entropy)
    assert reports.shape == (550, 2)
    assert (reports[:, 1] >> 3 == 0).all()
