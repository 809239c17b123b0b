"""Random directions: how they are drawn, and the law of the inner product of one with a fixed direction.

Nothing here is secret: a mechanism that picks among random directions is private for whatever directions there are. So they may be
drawn in single precision; how well they serve depends on it by less than a millionth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]

_BLOCK = 1 << 15
_NODES, _END, _SIGMAS = 1 << 15, 12.0, 13.0
_TINY = 1e-300


def normals(n: int, entropy: Entropy) -> Floats:
    """``(n,)`` independent standard normal numbers, for simulations.

    Notes
    -----
    Ref: Box and Muller 1958. The radius is made of 23 bits and ends at 5.8, so that none is infinite, nor zero.
    """
    return _singles(n, entropy).astype(np.float64)


def directions(n: int, p: int, entropy: Entropy) -> Singles:
    """``(n, p)``: rows that point in independent uniform directions; their lengths mean nothing."""
    return _singles(n * p, entropy).reshape(n, p)


def _singles(n: int, entropy: Entropy) -> Singles:
    drawn = np.empty(n, np.float32)
    for start in range(0, n, _BLOCK):
        part = drawn[start : start + _BLOCK]
        half = -(-part.size // 2)
        words = entropy.words(2 * half, np.uint32)
        # Half a unit above 23 bits is exact in single precision: the chance is never rounded to 1, whose radius would be 0.
        chance = ((words[:half] >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
        radius = np.sqrt(np.float32(-2) * np.log(chance))
        angle = words[half:].astype(np.float32) * np.float32(2 * math.pi / 2**32)
        part[:half] = radius * np.cos(angle)
        part[half:] = (radius * np.sin(angle))[: part.size - half]
    return drawn


@dataclass(frozen=True, eq=False)
class Cosines:
    """The law of T = <v, u> for a fixed direction v and a uniform one u in p dimensions, on nodes from -1 to 1.

    Parameters
    ----------
    values
        t of each node, rising.
    mass
        The law, as weights of the nodes: their sum with any smooth function is its mean.
    below
        Chance that T is below t. By symmetry, read backwards, the chance that it is above.
    beyond
        Mean of T where it is above t, and of 0 elsewhere.

    Notes
    -----
    The angle from the equator has the density c cos^(p-2). Nodes lie evenly in x, where the angle is as far as it matters times
    tanh x: whatever is integrated falls off at both ends, and the plain sum is as good as exact. Means of the largest of up to 4,096 are
    right to a part in 10^6.
    """

    values: Floats
    mass: Floats
    below: Floats
    beyond: Floats

    @cached_property
    def _log_below(self) -> Floats:
        # Where the chance has left the floats, so has the mass that it is multiplied with.
        return np.log(np.maximum(self.below, _TINY))

    def top_sum(self, n: int, k: int) -> float:
        """Expected sum of the k largest of n independent T.

        Notes
        -----
        It is n times the mean of T where T is among them. By parts, that is the mean of ``beyond`` at the border between k and the rest.
        """
        return n * float(np.sum(self.beyond * self._border(n, k)))

    def quantiles(self, n: int, k: int, near: float) -> Floats:
        """The chance of less than t, at each node, for any of the k largest of n with chance ``near``, and any of the others if not."""
        among = _running(_running(self._border(n, k)) * self.mass)
        chances = near * n / k * among + (1 - near) * n / (n - k) * (self.below - among)
        return np.maximum.accumulate(chances / chances[-1])

    def _border(self, n: int, k: int) -> Floats:
        """The law of the k-th largest of n - 1: how the chance to be among the k largest of n grows with t."""
        log_size = math.lgamma(n) - math.lgamma(k) - math.lgamma(n - k)
        law: Floats = np.exp(log_size + (n - k - 1) * self._log_below + (k - 1) * self._log_below[::-1]) * self.mass
        return law


@lru_cache(maxsize=16)
def cosines(p: int) -> Cosines:
    """The law in p >= 2 dimensions; it takes milliseconds to set up, so it is kept."""
    x = np.linspace(-_END, _END, _NODES)
    # The distance to the pole, without loss where it is tiny; in many dimensions nothing comes near a pole.
    reach = min(math.pi / 2, _SIGMAS / math.sqrt(p))
    from_pole = math.pi / 2 - reach + reach * 2 / (1 + np.exp(2 * np.abs(x)))
    log_cosine = np.log(np.sin(from_pole))
    mass = np.exp((p - 2) * log_cosine) / np.cosh(x) ** 2
    below = _running(mass)
    total = float(below[-1])
    density = 1 / (total * reach * (x[1] - x[0]))
    beyond = density * np.exp((p - 1) * log_cosine) / (p - 1)
    return Cosines(np.sign(x) * np.cos(from_pole), mass / total, below / total, beyond)


def _running(values: Floats) -> Floats:
    """The integral up to each node, in steps of 1, of what falls off to zero at both ends: cubics through four nodes."""
    padded = np.pad(values, (2, 1))
    pieces = 13 * (padded[1:-2] + padded[2:-1]) - padded[:-3] - padded[3:]
    integral: Floats = np.cumsum(pieces) / 24
    return integral
