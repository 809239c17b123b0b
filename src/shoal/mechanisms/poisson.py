"""Poisson numbers with a rational mean, exact: nothing is cut off.

Poisson numbers add up, and thinning one leaves a Poisson number: a mean of w + f, 0 <= f < 1, is w numbers of mean 1 and the points of
one more, each kept with chance f. A number of mean 1 is found by inversion: it is how many of the chances
F(k) = (1/0! + ... + 1/k!) / e lie below a uniform real. Its first 64 bits tell, unless they are those of an F(k); then more are drawn.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.exact import exp_bounds, floor_of


def poisson(mean: Fraction, entropy: Entropy) -> int:
    """One Poisson number, in time and memory proportional to its mean."""
    whole = math.floor(mean)
    part = mean - whole
    numbers = _ones(whole + 1, entropy)
    return int(numbers[:-1].sum()) + sum(entropy.below(part.denominator) < part.numerator for _ in range(numbers[-1]))


def _ones(n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
    """``n`` independent Poisson numbers of mean 1."""
    words, first = entropy.words(n, np.uint64), _first_bits()
    numbers = np.searchsorted(first, words)
    for i in np.flatnonzero(first[numbers] == words).tolist():
        numbers[i] = _settle(int(words[i]), entropy)
    return numbers


def _settle(word: int, entropy: Entropy) -> int:
    """The number of chances below a uniform real that begins with the 64 bits of ``word``; more are drawn as long as they tie."""
    bits, k = 64, 0
    while True:
        chance = _bits_of(k, bits)
        if chance > word:
            return k
        if chance == word:
            word, bits = word << 64 | entropy.word(), bits + 64
        else:
            k += 1


@cache
def _first_bits() -> npt.NDArray[np.uint64]:
    """The first 64 bits of F(0), F(1), ..., up to the first that are all ones: no word is beyond it."""
    bits = [_bits_of(0, 64)]
    while bits[-1] < (1 << 64) - 1:
        bits.append(_bits_of(len(bits), 64))
    return np.array(bits, np.uint64)


def _bits_of(k: int, bits: int) -> int:
    """``floor(2**bits F(k))``; F(k) is irrational, so that its digits never end in ones only, nor in zeros."""
    total = sum((Fraction(1, math.factorial(i)) for i in range(k + 1)), Fraction(0))

    def bounds(bits: int) -> tuple[Fraction, Fraction]:
        low, high = exp_bounds(Fraction(-1), bits)
        return total * low, total * high

    return floor_of(bounds, 1 << bits)
