"""Polya (negative binomial) and Poisson sampling.

Several parties each add Polya noise so that the sum is geometric
(`shoal.mechanisms.distributed_laplace`). Both samplers are exact at every scale.

The distribution NB(r, a) with a = exp(-rate) has the generating function ((1 - a) / (1 - a z))^r.
It is infinitely divisible: the exponents r add up, and r = 1 is the geometric distribution. So m
parties that each draw r = 1/m make one geometric variable together.

Written as exp(r sum_k (a^k / k) (z^k - 1)), the variable is a sum of independent points of sizes
k = 1, 2, ...; the number of points of size k is Poisson with mean r a^k / k. They are thinned from
candidates that are easy to draw. Let J be the least integer with K = 2^J >= 1 / rate:

- in octave j < J: r candidates in the mean, uniform over k in [2^j, 2^(j + 1)), that is r / 2^j for
  each k; one is kept with probability (2^j / k) a^k, which is below 1 because k >= 2^j;
- in block q = 1, 2, ... beyond: r / 2^q candidates, uniform over k in [q K, (q + 1) K), that is r /
  (2^q K) for each k; one is kept with probability 2^q (K / k) a^k, which is at most (2 / e)^q / q <
  1 because k >= q K and rate k >= q.

Both give r a^k / k. The mean number of candidates is r (J + 1), of which the blocks are one part in
J + 1, with q fair tosses up to the first tail. q has no limit, so k has none either.

Poisson variables with a rational mean: nothing is cut off. Poisson variables add up, and thinning
one gives a Poisson variable. So a mean of w + f, 0 <= f < 1, is w variables of mean 1 and the
points of one more, each kept with probability f. A variable of mean 1 is found by inversion: it is
the number of the probabilities F(k) = (1/0! + ... + 1/k!) / e below a uniform real. The first 64
bits of the real decide, unless they equal those of an F(k); then more are drawn.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import MechanismError
from shoal.mechanisms.bernoulli import BernoulliSampler, sample_bernoulli_near_many
from shoal.mechanisms.exact import bound_exp, floor_scaled
from shoal.mechanisms.laplace import get_geometric_sampler


def draw_poisson(mean: Fraction, entropy: Entropy) -> int:
    """Draw one Poisson variable, in time and memory proportional to its mean."""
    whole = math.floor(mean)
    part = mean - whole
    numbers = _draw_unit_poisson(whole + 1, entropy)
    return int(numbers[:-1].sum()) + sum(
        entropy.below(part.denominator) < part.numerator for _ in range(numbers[-1])
    )


def _draw_unit_poisson(n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
    """Draw ``n`` independent Poisson variables of mean 1."""
    words, first = entropy.words(n, np.uint64), _cdf_words()
    numbers = np.searchsorted(first, words)
    for i in np.flatnonzero(first[numbers] == words).tolist():
        numbers[i] = _resolve_tie(int(words[i]), entropy)
    return numbers


def _resolve_tie(word: int, entropy: Entropy) -> int:
    """Return the number of probabilities F(k) below a uniform real that begins with ``word``.

    More bits are drawn while they tie.
    """
    bits, k = 64, 0
    while True:
        chance = _cdf_bits(k, bits)
        if chance > word:
            return k
        if chance == word:
            word, bits = word << 64 | entropy.word(), bits + 64
        else:
            k += 1


@cache
def _cdf_words() -> npt.NDArray[np.uint64]:
    """Return the first 64 bits of F(0), F(1), ..., up to the first that are all ones.

    No word is larger than the last.
    """
    bits = [_cdf_bits(0, 64)]
    while bits[-1] < (1 << 64) - 1:
        bits.append(_cdf_bits(len(bits), 64))
    return np.array(bits, np.uint64)


def _cdf_bits(k: int, bits: int) -> int:
    """Return ``floor(2**bits F(k))``.

    F(k) is irrational, so its digits never end in ones only, nor in zeros.
    """
    total = sum((Fraction(1, math.factorial(i)) for i in range(k + 1)), Fraction(0))

    def bounds(bits: int) -> tuple[Fraction, Fraction]:
        low, high = bound_exp(Fraction(-1), bits)
        return total * low, total * high

    return floor_scaled(bounds, 1 << bits)


_BLOCK = 1 << 16
_FAR = 700.0


class PolyaSampler:
    """Sampler of X >= 0 with P(X = x) proportional to Gamma(x + shares) / x! exp(-rate x).

    Parameters
    ----------
    rate
        Exact, positive; rejected below 2^-40, as for one geometric variable.
    shares
        r: the number of geometric variables, exact and positive. Whole ones are drawn as such.

    Notes
    -----
    Ref: errata S-08, X-02. The probability that a value does not fit into 64 bits is negligible;
    such a value wraps, as all sums of a secure sum do.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> share = PolyaSampler(Fraction(1, 10), Fraction(1, 4))
    >>> share.draw_many(8, SeededEntropy(1)).tolist()
    [0, 1, 21, 0, 6, 1, 0, 1]
    """

    def __init__(self, rate: Fraction, shares: Fraction) -> None:
        if shares <= 0:
            raise MechanismError(
                "MECH-001",
                f"shares = {float(shares):g}: it must be positive.",
                fix="Give a positive number of shares.",
            )
        self._rate = rate
        self._geometric = get_geometric_sampler(rate)
        self._whole = math.floor(shares)
        self._part = shares - self._whole
        self._n_octaves = (math.ceil(1 / rate) - 1).bit_length()

    @property
    def mean_candidates(self) -> Fraction:
        """Mean number of candidates of one variate: r (J + 1), for the fractional part of r."""
        return self._part * (self._n_octaves + 1)

    def draw_many(self, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        """Draw ``n`` independent variates."""
        drawn = np.zeros(n, np.int64)
        for _ in range(self._whole):
            drawn += self._geometric.draw_many(n, entropy)
        if self._part:
            step = math.ceil(_BLOCK / self.mean_candidates)
            for start in range(0, n, step):
                self._add_points(drawn[start : start + step], entropy)
        return drawn

    def _add_points(self, drawn: npt.NDArray[np.int64], entropy: Entropy) -> None:
        """Add the points of all variates.

        The candidates of all variates are drawn together; each kept point is assigned to a
        uniformly chosen variate.
        """
        octave = entropy.below_many(
            self._n_octaves + 1, draw_poisson(drawn.size * self.mean_candidates, entropy)
        )
        q = _draw_blocks(octave == self._n_octaves, entropy)
        width = np.left_shift(1, octave)
        k = np.maximum(q, 1) * width + (
            entropy.words(q.size, np.uint64).view(np.int64) & (width - 1)
        )

        def resolve(i: int, word: int) -> bool:
            return self._make_keep_sampler(int(k[i]), int(octave[i]), int(q[i])).sample_from_word(
                word, entropy
            )

        kept = k[
            sample_bernoulli_near_many(self._approximate_chances(k, width, q), resolve, entropy)
        ]
        np.add.at(drawn, entropy.below_many(drawn.size, kept.size), kept)

    def _approximate_chances(
        self, k: npt.NDArray[np.int64], width: npt.NDArray[np.int64], q: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """Return the probabilities of `_make_keep_sampler` as floats.

        Their relative error is less than 2^-42, or they are far below 2^-64. rate k and q log 2
        have relative errors of 2^-51 each. If their difference, at least 0.3 q, is below 64,
        neither is above 210.
        """
        return np.asarray(
            width / k * np.exp(-np.minimum(k * float(self._rate) - q * math.log(2), _FAR))
        )

    def _make_keep_sampler(self, k: int, octave: int, q: int) -> BernoulliSampler:
        """Make the exact sampler of whether a candidate of size k is kept.

        q is 0 in the octaves below the blocks.
        """
        return BernoulliSampler.exponential(self._rate * k, Fraction(1 << octave + q, k))


def _draw_blocks(is_beyond: npt.NDArray[np.bool_], entropy: Entropy) -> npt.NDArray[np.int64]:
    """Draw the block of each candidate beyond the octaves; 0 for the others.

    Block 1 has probability 1/2, block 2 has 1/4, and so on.
    """
    q = is_beyond.astype(np.int64)
    active = np.flatnonzero(is_beyond)
    while active.size:
        active = active[entropy.words(active.size, np.uint8) < 128]
        q[active] += 1
    return q


@lru_cache(maxsize=256)
def get_polya_sampler(rate: Fraction, shares: Fraction) -> PolyaSampler:
    """Return the cached sampler for a rate and shares; making one takes a millisecond."""
    return PolyaSampler(rate, shares)
