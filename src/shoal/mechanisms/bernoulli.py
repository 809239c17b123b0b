"""Exact Bernoulli sampling, one at a time or vectorised.

All samplers of this package use it. A sample with probability p is True if a uniform real u is
below p. The bits of u are drawn lazily: the first eight decide 255 samples of 256; only if they
equal the first eight bits of p are 56 more drawn, and after that 64 at a time. Nothing is
truncated, so the probability is p itself, rational or not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.exact import bound_exp, floor_scaled

_WORD = 1 << 64
_MARGIN = 2.0**-36
_MARGIN_WORDS = 4.0
_FAR = 700.0


class BernoulliSampler:
    """A sampler of True with a probability p that is known to any number of bits.

    Parameters
    ----------
    prefix
        ``prefix(b)`` is ``floor(2**b * p)``, for a p in ``[0, 1)``.
    is_dyadic
        Whether p is a multiple of 2^-64, so that all bits after the first word are zero.
    """

    __slots__ = ("_first", "_prefix", "_rest", "_top", "is_dyadic")

    def __init__(self, prefix: Callable[[int], int], *, is_dyadic: bool = False) -> None:
        self._prefix = prefix
        self.is_dyadic = is_dyadic
        self._top = prefix(64)
        self._first = np.uint8(self._top >> 56)
        self._rest = np.uint64(self._top & ((1 << 56) - 1))

    @classmethod
    def dyadic(cls, numerator: int) -> BernoulliSampler:
        """Make the sampler with probability ``numerator / 2**64``."""
        if not 0 <= numerator < _WORD:
            raise ValueError(f"a probability must be in [0, 1), not {numerator} / 2**64")
        return cls(lambda bits: numerator << (bits - 64), is_dyadic=True)

    @classmethod
    def logistic(cls, x: Fraction) -> BernoulliSampler:
        """Make the sampler with probability ``1 / (1 + exp(x))``, for x > 0."""
        return cls(_make_prefix(x, lambda e: 1 / (1 + e)))

    @classmethod
    def twice_logistic(cls, x: Fraction) -> BernoulliSampler:
        """Make the sampler with probability ``2 / (1 + exp(x))``, for x > 0."""
        return cls(_make_prefix(x, lambda e: 2 / (1 + e)))

    @classmethod
    def exponential(cls, x: Fraction, factor: Fraction = Fraction(1)) -> BernoulliSampler:
        """Make the sampler with probability ``factor exp(-x)``, for x > 0.

        The factor keeps the probability below 1.
        """
        return cls(_make_prefix(x, lambda e: factor / e))

    @property
    def chance(self) -> Fraction:
        """The probability of True to 64 bits, rounded down; exact if p is dyadic."""
        return Fraction(self._top, _WORD)

    def sample(self, entropy: Entropy) -> bool:
        """Draw one sample."""
        return self.sample_from_word(entropy.word(), entropy)

    def sample_from_word(self, word: int, entropy: Entropy) -> bool:
        """Return the sample with ``word`` as the first 64 bits of its uniform real.

        More bits are drawn only if these tie with the probability.
        """
        return word < self._top or (
            word == self._top and not self.is_dyadic and self._resolve_tie(entropy)
        )

    def sample_many(self, n: int, entropy: Entropy) -> npt.NDArray[np.bool_]:
        """Draw ``n`` independent samples."""
        first = entropy.words(n, np.uint8)
        heads = first < self._first
        tied = np.flatnonzero(first == self._first)
        if tied.size:
            rest = entropy.words(tied.size, np.uint64) >> np.uint64(8)
            heads[tied] = rest < self._rest
            if not self.is_dyadic:
                for i in tied[rest == self._rest]:
                    heads[i] = self._resolve_tie(entropy)
        return heads

    def _resolve_tie(self, entropy: Entropy) -> bool:
        """Resolve a tie on the first 64 bits: draw words until u and p differ."""
        bits = 128
        while True:
            word, target = entropy.word(), self._prefix(bits) % _WORD
            if word != target:
                return word < target
            bits += 64


def sample_bernoulli_exp(x: Fraction, entropy: Entropy) -> bool:
    """Draw one sample with probability ``exp(-x)``, for an exact x >= 0.

    See `sample_bernoulli_exp_many`.
    """
    word = entropy.word()
    near = math.exp(-min(float(x), _FAR)) * _WORD
    if abs(word - near) > _MARGIN * near + _MARGIN_WORDS:
        return word < near
    return x == 0 or BernoulliSampler.exponential(x).sample_from_word(word, entropy)


def sample_bernoulli_exp_many(
    x: npt.NDArray[np.float64], exact: Callable[[int], Fraction], entropy: Entropy
) -> npt.NDArray[np.bool_]:
    """Draw samples with different probabilities ``exp(-x)``, each exact.

    Parameters
    ----------
    x
        Shape (n,): the exponents as floats, within 2^-38 of the exact ones if these are at most 64,
        and at least 60 otherwise.
    exact
        ``exact(i)`` is the i-th exponent itself, zero or more.

    Notes
    -----
    Floats are a filter here; they do not decide the distribution. A 64-bit word w certainly means
    True if w + 1 <= 2^64 exp(-x), and certainly False if w >= 2^64 exp(-x). The float differs from
    2^64 exp(-x) by a part of 2^-38 for the error of x, and of a few 2^-52 for the exponential and
    for the conversion of w to a float. The margin is 2^-36, four words wider; beyond exponents of
    60 these four words are the whole margin. Words within the margin, one of 2^34, are resolved by
    `BernoulliSampler` from the exact exponent, with bits drawn while they tie: each sample is what
    unlimited precision would give.
    """

    def resolve(i: int, word: int) -> bool:
        exponent = exact(i)
        return exponent == 0 or BernoulliSampler.exponential(exponent).sample_from_word(
            word, entropy
        )

    return sample_bernoulli_near_many(np.exp(-np.minimum(x, _FAR)), resolve, entropy)


def sample_bernoulli_near_many(
    near: npt.NDArray[np.float64], resolve: Callable[[int, int], bool], entropy: Entropy
) -> npt.NDArray[np.bool_]:
    """Draw samples with different probabilities that are known approximately, each exact.

    `sample_bernoulli_exp_many` explains why.

    Parameters
    ----------
    near
        Shape (n,): the probabilities as floats, with a relative error of less than 2^-37, or below
        2^-64 like the probabilities themselves.
    resolve
        ``resolve(i, word)`` is the exact i-th sample with ``word`` as its first 64 bits. It is
        called only if floats cannot decide.
    """
    words = entropy.words(near.size, np.uint64)
    near = near * float(_WORD)
    word = words.astype(np.float64)
    heads = word < near
    for i in np.flatnonzero(np.abs(word - near) <= _MARGIN * near + _MARGIN_WORDS).tolist():
        heads[i] = resolve(i, int(words[i]))
    return heads


def _make_prefix(x: Fraction, function: Callable[[Fraction], Fraction]) -> Callable[[int], int]:
    """Return a function for the binary digits of a decreasing function of ``exp(x)``.

    ``exp(x)`` is irrational for every rational x but 0.
    """
    if x <= 0:
        raise ValueError(f"an exponent must be positive, not {float(x):g}")

    def bounds(bits: int) -> tuple[Fraction, Fraction]:
        low, high = bound_exp(x, bits)
        return function(high), function(low)

    return lambda bits: floor_scaled(bounds, 1 << bits)
