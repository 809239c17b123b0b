"""Polya (negative binomial) noise, exact at every scale: what several parties add so that the sum is geometric.

The law NB(r, a) with a = exp(-rate) has the generating function ((1 - a) / (1 - a z))^r. It is infinitely divisible: the exponents r add
up, and r = 1 is the geometric law. So m parties that each draw r = 1/m make one geometric variable together.

Written as exp(r sum_k (a^k / k) (z^k - 1)), the law is a sum of points of sizes k = 1, 2, ..., which come independently, those of size k
Poisson with mean r a^k / k. They are thinned from candidates that are easy to draw. Let J be the least integer with K = 2^J >= 1 / rate:

- in octave j < J: r candidates in the mean, uniform over k in [2^j, 2^(j + 1)), that is r / 2^j for each k; one is kept with chance
  (2^j / k) a^k, which is below 1 because k >= 2^j;
- in block q = 1, 2, ... beyond: r / 2^q candidates, uniform over k in [q K, (q + 1) K), that is r / (2^q K) for each k; one is kept with
  chance 2^q (K / k) a^k, which is at most (2 / e)^q / q < 1 because k >= q K and rate k >= q.

Both give r a^k / k, and the candidates are r (J + 1) in the mean, of which the blocks are one part in J + 1, with q fair tosses up to the
first tail. q has no limit, so neither has k.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import MechanismError
from shoal.mechanisms.coins import Coin, flip_near_many
from shoal.mechanisms.laplace import geometric_sampler
from shoal.mechanisms.poisson import poisson

_BLOCK = 1 << 16
_FAR = 700.0


class PolyaSampler:
    """Draws X >= 0 with P(X = x) proportional to Gamma(x + shares) / x! exp(-rate x).

    Parameters
    ----------
    rate
        Exact, positive; refused below 2^-40, as for one geometric variable.
    shares
        r: how many geometric variables' worth, exact and positive. Whole ones are drawn as such.

    Notes
    -----
    Ref: errata S-08, X-02. Values leave 64 bits with a chance that no test could see, and then wrap, as all sums of a secure sum do.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> share = PolyaSampler(Fraction(1, 10), Fraction(1, 4))
    >>> share.draw_many(8, SeededEntropy(1)).tolist()
    [0, 1, 21, 0, 6, 1, 0, 1]
    """

    def __init__(self, rate: Fraction, shares: Fraction) -> None:
        if shares <= 0:
            raise MechanismError("MECH-001", f"Noise of {float(shares):g} shares is none.", fix="Give a positive number of shares.")
        self._rate = rate
        self._geometric = geometric_sampler(rate)
        self._whole = math.floor(shares)
        self._part = shares - self._whole
        self._n_octaves = (math.ceil(1 / rate) - 1).bit_length()

    @property
    def candidates(self) -> Fraction:
        """Candidates of one variate in the mean: r (J + 1), for the part of r that is not whole."""
        return self._part * (self._n_octaves + 1)

    def draw_many(self, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        """``n`` independent variates."""
        drawn = np.zeros(n, np.int64)
        for _ in range(self._whole):
            drawn += self._geometric.draw_many(n, entropy)
        if self._part:
            step = math.ceil(_BLOCK / self.candidates)
            for start in range(0, n, step):
                self._add_points(drawn[start : start + step], entropy)
        return drawn

    def _add_points(self, drawn: npt.NDArray[np.int64], entropy: Entropy) -> None:
        """Add the points of all variates: as many candidates as all have together; a point that is kept is dealt to any of them."""
        octave = entropy.below_many(self._n_octaves + 1, poisson(drawn.size * self.candidates, entropy))
        q = _blocks(octave == self._n_octaves, entropy)
        width = np.left_shift(1, octave)
        k = np.maximum(q, 1) * width + (entropy.words(q.size, np.uint64).view(np.int64) & (width - 1))

        def settle(i: int, word: int) -> bool:
            return self._coin(int(k[i]), int(octave[i]), int(q[i])).settle(word, entropy)

        kept = k[flip_near_many(self._near(k, width, q), settle, entropy)]
        np.add.at(drawn, entropy.below_many(drawn.size, kept.size), kept)

    def _near(self, k: npt.NDArray[np.int64], width: npt.NDArray[np.int64], q: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The chances of `_coin` as floats, off by less than a part of 2^-42, or far below 2^-64.

        rate k and q log 2 are off by a part of 2^-51 each. Where their difference, at least 0.3 q, is below 64, neither is above 210.
        """
        return np.asarray(width / k * np.exp(-np.minimum(k * float(self._rate) - q * math.log(2), _FAR)))

    def _coin(self, k: int, octave: int, q: int) -> Coin:
        """Whether a candidate of size k is kept; q is 0 in the octaves below the blocks."""
        return Coin.exponential(self._rate * k, Fraction(1 << octave + q, k))


def _blocks(is_beyond: npt.NDArray[np.bool_], entropy: Entropy) -> npt.NDArray[np.int64]:
    """The block of each candidate beyond the octaves, 1 with chance 1/2, 2 with 1/4, and so on; 0 for the others."""
    q = is_beyond.astype(np.int64)
    going = np.flatnonzero(is_beyond)
    while going.size:
        going = going[entropy.words(going.size, np.uint8) < 128]
        q[going] += 1
    return q


@lru_cache(maxsize=256)
def polya_sampler(rate: Fraction, shares: Fraction) -> PolyaSampler:
    """The sampler for a rate and a number of shares; setting one up costs a millisecond, so they are kept."""
    return PolyaSampler(rate, shares)
