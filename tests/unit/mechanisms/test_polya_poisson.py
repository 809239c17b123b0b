"""Poisson sampling: exact thresholds, ties, and means that add up."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.mechanisms.polya import (
    _cdf_bits,
    _cdf_words,
    _draw_unit_poisson,
    _resolve_tie,
    draw_poisson,
)
from tests.unit.mechanisms.scripted import Scripted

LAST = (1 << 64) - 1


def chance_up_to(k: int, digits: int = 120) -> Decimal:
    with localcontext() as context:
        context.prec = digits
        return (
            sum((1 / Decimal(math.factorial(i)) for i in range(k + 1)), Decimal(0))
            * Decimal(-1).exp()
        )


@pytest.mark.parametrize("bits", [64, 128, 256])
@pytest.mark.parametrize("k", [0, 1, 5, 20, 40])
def test_thresholds_match_distribution(k: int, bits: int) -> None:
    with localcontext() as context:
        context.prec = 120
        assert _cdf_bits(k, bits) == int(chance_up_to(k) * 2**bits)


def test_table_of_thresholds_covers_all_words() -> None:
    table = _cdf_words().tolist()
    assert table[-1] == LAST > table[-2]
    assert table == sorted(set(table))
    assert [word for k, word in enumerate(table) if word != int(chance_up_to(k) * 2**64)] == []


def test_word_between_thresholds_decides() -> None:
    table = _cdf_words().tolist()
    for k, chance in enumerate(table[:-1]):
        assert _draw_unit_poisson(2, Scripted(chance - 1, chance + 1)).tolist() == [k, k + 1]
    assert _draw_unit_poisson(1, Scripted(0)).tolist() == [0]


def test_tie_is_resolved_by_more_words() -> None:
    for k in (0, 3):
        first, second, third = (_cdf_bits(k, 64 * (i + 1)) & LAST for i in range(3))
        for behind, want in [
            ((second - 1,), k),
            ((second + 1,), k + 1),
            ((second, third - 1), k),
            ((second, third + 1), k + 1),
        ]:
            entropy = Scripted(first, *behind)
            assert _draw_unit_poisson(1, entropy).tolist() == [want]
            assert entropy.left == []


def test_tail_continues_after_last_word() -> None:
    # All ones tie with each threshold that begins so: one more word decides the numbers from 20 on,
    # and a second such word goes further.
    k = len(_cdf_words()) - 1
    beyond = [j for j in range(k, 60) if _cdf_bits(j, 128) < (1 << 128) - 1]
    assert _resolve_tie(LAST, Scripted(0)) == k
    assert _resolve_tie(LAST, Scripted((_cdf_bits(k, 128) & LAST) + 1)) == k + 1
    assert _resolve_tie(LAST, Scripted(LAST, 0)) == beyond[-1] + 1 > k + 5


def test_whole_part_is_summed_and_fraction_is_thinned() -> None:
    two, three = _cdf_bits(2, 64) - 1, _cdf_bits(3, 64) - 1
    # 2 + 3, and of the third number's three points those that fall below 2 of 5: below() of the
    # script is its next number.
    entropy = Scripted(two, three, three, 0, 2, 1)
    assert draw_poisson(Fraction(12, 5), entropy) == 2 + 3 + 2
    assert entropy.left == []
    assert draw_poisson(Fraction(2), Scripted(two, two, three, 0, 0, 0)) == 4
    assert draw_poisson(Fraction(0), Scripted(three, 0, 0, 0)) == 0


def test_draws_are_close_to_mean() -> None:
    entropy = SeededEntropy(1)
    for mean in (Fraction(7, 3), Fraction(1, 50), Fraction(40)):
        drawn = np.array([draw_poisson(mean, entropy) for _ in range(4000)])
        assert abs(drawn.mean() - float(mean)) < 6 * math.sqrt(mean / 4000)
        assert drawn.var() == pytest.approx(float(mean), rel=0.25)
