"""Poisson numbers: the thresholds to the last bit, ties settled by more bits, and means that add up."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.mechanisms.poisson import _bits_of, _first_bits, _ones, _settle, poisson
from unit.mechanisms.scripted import Scripted

LAST = (1 << 64) - 1


def chance_up_to(k: int, digits: int = 120) -> Decimal:
    with localcontext() as context:
        context.prec = digits
        return sum((1 / Decimal(math.factorial(i)) for i in range(k + 1)), Decimal(0)) * Decimal(-1).exp()


@pytest.mark.parametrize("bits", [64, 128, 256])
@pytest.mark.parametrize("k", [0, 1, 5, 20, 40])
def test_the_bits_are_those_of_the_law(k: int, bits: int) -> None:
    with localcontext() as context:
        context.prec = 120
        assert _bits_of(k, bits) == int(chance_up_to(k) * 2**bits)


def test_the_table_reaches_to_where_no_word_is_beyond() -> None:
    table = _first_bits().tolist()
    assert table[-1] == LAST > table[-2]
    assert table == sorted(set(table))
    assert [word for k, word in enumerate(table) if word != int(chance_up_to(k) * 2**64)] == []


def test_a_word_between_two_chances_decides() -> None:
    table = _first_bits().tolist()
    for k, chance in enumerate(table[:-1]):
        assert _ones(2, Scripted(chance - 1, chance + 1)).tolist() == [k, k + 1]
    assert _ones(1, Scripted(0)).tolist() == [0]


def test_a_tie_is_settled_by_as_many_words_as_it_takes() -> None:
    for k in (0, 3):
        first, second, third = (_bits_of(k, 64 * (i + 1)) & LAST for i in range(3))
        for behind, want in [((second - 1,), k), ((second + 1,), k + 1), ((second, third - 1), k), ((second, third + 1), k + 1)]:
            entropy = Scripted(first, *behind)
            assert _ones(1, entropy).tolist() == [want]
            assert entropy.left == []


def test_the_tail_goes_on_behind_the_last_word() -> None:
    # All ones tie with every chance that begins so: one more word tells the numbers from 20 on, and a second such word goes further.
    k = len(_first_bits()) - 1
    beyond = [j for j in range(k, 60) if _bits_of(j, 128) < (1 << 128) - 1]
    assert _settle(LAST, Scripted(0)) == k
    assert _settle(LAST, Scripted((_bits_of(k, 128) & LAST) + 1)) == k + 1
    assert _settle(LAST, Scripted(LAST, 0)) == beyond[-1] + 1 > k + 5


def test_the_whole_part_is_summed_and_the_points_of_one_more_are_thinned() -> None:
    two, three = _bits_of(2, 64) - 1, _bits_of(3, 64) - 1
    # 2 + 3, and of the third number's three points those that fall below 2 of 5: below() of the script is its next number.
    entropy = Scripted(two, three, three, 0, 2, 1)
    assert poisson(Fraction(12, 5), entropy) == 2 + 3 + 2
    assert entropy.left == []
    assert poisson(Fraction(2), Scripted(two, two, three, 0, 0, 0)) == 4
    assert poisson(Fraction(0), Scripted(three, 0, 0, 0)) == 0


def test_numbers_of_many_means_are_about_the_mean() -> None:
    entropy = SeededEntropy(1)
    for mean in (Fraction(7, 3), Fraction(1, 50), Fraction(40)):
        drawn = np.array([poisson(mean, entropy) for _ in range(4000)])
        assert abs(drawn.mean() - float(mean)) < 6 * math.sqrt(mean / 4000)
        assert drawn.var() == pytest.approx(float(mean), rel=0.25)
