"""Exact biased coins, one at a time or by the million.

A coin with chance p shows heads when a uniform real u is below p. The bits of u are drawn lazily: eight decide 255 coins of
256; only where they equal the first eight bits of p are 56 more drawn, and after that 64 at a time. Nothing is truncated,
so the chance of heads is p itself, rational or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.exact import exp_bounds, floor_of

_WORD = 1 << 64
_MARGIN = 2.0**-36
_MARGIN_WORDS = 4.0
_FAR = 700.0


class Coin:
    """A coin whose chance of heads is known to any number of bits.

    Parameters
    ----------
    prefix
        ``prefix(b)`` is ``floor(2**b * p)``, for a p in ``[0, 1)``.
    is_dyadic
        Whether p is a multiple of 2^-64, so that there is nothing behind the first word.
    """

    __slots__ = ("_first", "_prefix", "_rest", "_top", "is_dyadic")

    def __init__(self, prefix: Callable[[int], int], *, is_dyadic: bool = False) -> None:
        self._prefix = prefix
        self.is_dyadic = is_dyadic
        self._top = prefix(64)
        self._first = np.uint8(self._top >> 56)
        self._rest = np.uint64(self._top & ((1 << 56) - 1))

    @classmethod
    def dyadic(cls, numerator: int) -> Coin:
        """The coin with chance ``numerator / 2**64``."""
        if not 0 <= numerator < _WORD:
            raise ValueError(f"a coin's chance must be in [0, 1), not {numerator} / 2**64")
        return cls(lambda bits: numerator << (bits - 64), is_dyadic=True)

    @classmethod
    def logistic(cls, x: Fraction) -> Coin:
        """The coin with chance ``1 / (1 + exp(x))``, for x > 0."""
        return cls(_prefix(x, lambda e: 1 / (1 + e)))

    @classmethod
    def twice_logistic(cls, x: Fraction) -> Coin:
        """The coin with chance ``2 / (1 + exp(x))``, for x > 0."""
        return cls(_prefix(x, lambda e: 2 / (1 + e)))

    @classmethod
    def exponential(cls, x: Fraction, factor: Fraction = Fraction(1)) -> Coin:
        """The coin with chance ``factor exp(-x)``, for x > 0 and a factor that keeps it below 1."""
        return cls(_prefix(x, lambda e: factor / e))

    @property
    def chance(self) -> Fraction:
        """The chance of heads to 64 bits, rounded down; exact for a dyadic coin."""
        return Fraction(self._top, _WORD)

    def flip(self, entropy: Entropy) -> bool:
        """One toss."""
        return self.settle(entropy.word(), entropy)

    def settle(self, word: int, entropy: Entropy) -> bool:
        """The toss whose first 64 bits are ``word``; more are drawn only where these tie with the chance."""
        return word < self._top or (word == self._top and not self.is_dyadic and self._behind(entropy))

    def flip_many(self, n: int, entropy: Entropy) -> npt.NDArray[np.bool_]:
        """``n`` independent tosses."""
        first = entropy.words(n, np.uint8)
        heads = first < self._first
        tied = np.flatnonzero(first == self._first)
        if tied.size:
            rest = entropy.words(tied.size, np.uint64) >> np.uint64(8)
            heads[tied] = rest < self._rest
            if not self.is_dyadic:
                for i in tied[rest == self._rest]:
                    heads[i] = self._behind(entropy)
        return heads

    def _behind(self, entropy: Entropy) -> bool:
        """Settle a tie on the first 64 bits: go on, a word at a time, until u and p differ."""
        bits = 128
        while True:
            word, target = entropy.word(), self._prefix(bits) % _WORD
            if word != target:
                return word < target
            bits += 64


def flip_exp(x: Fraction, entropy: Entropy) -> bool:
    """One toss of the coin with chance ``exp(-x)``, for an exact x >= 0; see `flip_exp_many`."""
    word = entropy.word()
    near = math.exp(-min(float(x), _FAR)) * _WORD
    if abs(word - near) > _MARGIN * near + _MARGIN_WORDS:
        return word < near
    return x == 0 or Coin.exponential(x).settle(word, entropy)


def flip_exp_many(x: npt.NDArray[np.float64], exact: Callable[[int], Fraction], entropy: Entropy) -> npt.NDArray[np.bool_]:
    """Tosses of coins with chances ``exp(-x)`` that all differ, each exact.

    Parameters
    ----------
    x
        Shape (n,): the exponents as floats, within 2^-38 of the exact ones where these are at most 64, and at least 60 elsewhere.
    exact
        ``exact(i)`` is the i-th exponent itself, zero or more.

    Notes
    -----
    Floats are a filter here, not the law. A 64-bit word w shows heads for certain when w + 1 <= 2^64 exp(-x) and tails for
    certain when w >= 2^64 exp(-x). The float is off from 2^64 exp(-x) by a part of 2^-38 for the error of x, and of a few
    2^-52 for the exponential and for taking w itself to a float; the margin is 2^-36, four words wider, which is
    also all there is beyond exponents of 60. Words within the margin, one of 2^34, are settled by `Coin` from
    the exact exponent, with bits drawn for as long as they tie: every toss is what unlimited precision would give.
    """

    def settle(i: int, word: int) -> bool:
        exponent = exact(i)
        return exponent == 0 or Coin.exponential(exponent).settle(word, entropy)

    return flip_near_many(np.exp(-np.minimum(x, _FAR)), settle, entropy)


def flip_near_many(near: npt.NDArray[np.float64], settle: Callable[[int, int], bool], entropy: Entropy) -> npt.NDArray[np.bool_]:
    """Tosses of coins with chances that all differ and are known nearly, each exact; `flip_exp_many` says why.

    Parameters
    ----------
    near
        Shape (n,): the chances as floats, off by a part of less than 2^-37, or below 2^-64 like the chances themselves.
    settle
        ``settle(i, word)`` is the i-th toss itself, whose first 64 bits are ``word``; asked only where floats cannot tell.
    """
    words = entropy.words(near.size, np.uint64)
    near = near * float(_WORD)
    word = words.astype(np.float64)
    heads = word < near
    for i in np.flatnonzero(np.abs(word - near) <= _MARGIN * near + _MARGIN_WORDS).tolist():
        heads[i] = settle(i, int(words[i]))
    return heads


def _prefix(x: Fraction, of_exp: Callable[[Fraction], Fraction]) -> Callable[[int], int]:
    """Binary digits of a decreasing function of ``exp(x)``, which is irrational for every rational x but 0."""
    if x <= 0:
        raise ValueError(f"a coin's exponent must be positive, not {float(x):g}")

    def bounds(bits: int) -> tuple[Fraction, Fraction]:
        low, high = exp_bounds(x, bits)
        return of_exp(high), of_exp(low)

    return lambda bits: floor_of(bounds, 1 << bits)
