"""One-time RAPPOR and (p, q)-perturbation: closed forms against the printed ones and against numeric minimisation."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import optimize

from shoal.mechanisms.bits import OneTimeRappor, PQPerturbation, least_error_numerator, matching_numerator, rappor_numerator
from shoal.mechanisms.exact import exp_bounds
from shoal.mechanisms.reports import WORD

GRID = [(epsilon, m) for epsilon in (0.01, 0.5, 1.0, 4.0, 16.0) for m in (2, 3, 16, 1000, 1 << 16)]


class Script:
    """Entropy whose bytes and words are given."""

    def __init__(self, *words: int) -> None:
        self._words = list(words)

    def word(self) -> int:
        return self._words.pop(0)


def equation_5_as_printed(epsilon: float, m: int) -> Decimal:
    """With 60 digits, so that the printed form's cancellation does no harm."""
    with localcontext(prec=60):
        lam = Decimal(epsilon).exp()
        root = ((m - 1) * (lam**3 + lam) + ((m - 1) ** 2 + 1) * lam**2).sqrt()
        return (lam**2 + m * lam - lam - root) / (lam**2 - 1)


@pytest.mark.parametrize(("epsilon", "m"), [*GRID, (1e-9, 2), (1e-9, 1000), (64.0, 3)])
def test_p_is_equation_5(epsilon, m):
    numerator = least_error_numerator(Fraction(epsilon), m)
    printed = equation_5_as_printed(epsilon, m)
    assert abs(Decimal(numerator) / WORD - printed) < Decimal(2) ** -63


@pytest.mark.parametrize(("epsilon", "m"), [(epsilon, m) for epsilon, m in GRID if 0.1 < epsilon < 10])
def test_no_other_p_has_less_error(epsilon, m):
    mechanism = PQPerturbation(epsilon, m)

    def squared_error(p: float) -> float:
        q = 1 / (1 + math.exp(epsilon) * (1 - p) / p)
        return ((m - 1) * q * (1 - q) + p * (1 - p)) / (p - q) ** 2

    found = optimize.minimize_scalar(squared_error, bounds=(1e-6, 1 - 1e-6), method="bounded", options={"xatol": 1e-10})
    assert math.isclose(found.x, float(mechanism.p), abs_tol=1e-5)
    assert mechanism.expected_error(1) ** 2 <= found.fun * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 16.0])
@pytest.mark.parametrize("keep", [WORD // 2 + 1, int(0.9 * WORD)])
def test_q_is_the_smallest_that_the_budget_allows(epsilon, keep):
    flip = matching_numerator(Fraction(epsilon), keep)
    p = Fraction(keep, WORD)

    def ratio(q: Fraction) -> Fraction:
        return p * (1 - q) / ((1 - p) * q)

    low, high = exp_bounds(Fraction(epsilon), 256)
    assert ratio(Fraction(flip, WORD)) <= low
    assert ratio(Fraction(flip - 1, WORD)) >= high


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 16.0])
def test_rappor_keeps_as_much_as_the_budget_allows(epsilon):
    keep = rappor_numerator(Fraction(epsilon))
    low, high = exp_bounds(Fraction(epsilon), 256)
    assert Fraction(keep, WORD - keep) ** 2 <= low
    assert Fraction(keep + 1, WORD - keep - 1) ** 2 >= high
    mechanism = OneTimeRappor(epsilon, 5)
    assert mechanism.p + mechanism.q == 1


def test_for_two_cells_the_two_are_the_same():
    """No strict improvement at m = 2 (errata A-05), but for the last of 64 bits."""
    pq, rappor = PQPerturbation(1.0, 2), OneTimeRappor(1.0, 2)
    assert pq.p == rappor.p
    assert abs(pq.q - rappor.q) <= Fraction(1, WORD)


def test_p_falls_to_one_half_as_cells_are_added():
    chances = [float(PQPerturbation(1.0, m).p) for m in (2, 16, 1000, 1 << 16)]
    assert chances == sorted(chances, reverse=True)
    assert math.isclose(chances[-1], 0.5, abs_tol=1e-4)


def test_a_tie_on_the_first_byte_is_settled_by_the_other_56_bits():
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


def test_the_true_bit_has_a_coin_of_its_own():
    mechanism = PQPerturbation(1.0, 8)
    keep = int(mechanism.p * WORD)
    nothing, everything = WORD - 1, 0
    assert mechanism.report(3, Script(nothing, keep - 1)) == bytes([1 << 3])
    assert mechanism.report(3, Script(nothing, keep)) == b"\x00"
    assert mechanism.report(3, Script(everything, keep - 1)) == b"\xff"
    assert mechanism.report(3, Script(everything, keep)) == bytes([0xFF - (1 << 3)])


def test_padding_bits_stay_clear_in_batches(entropy):
    reports = OneTimeRappor(0.1, 11).report_many(np.arange(11).repeat(50), entropy)
    assert reports.shape == (550, 2)
    assert (reports[:, 1] >> 3 == 0).all()
