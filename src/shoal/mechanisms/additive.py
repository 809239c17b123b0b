"""Integer counts plus integer noise, whichever law the noise has."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.base import check_integer, check_integers


class Sampler(Protocol):
    """Exact integer noise, one variate at a time or many."""

    def draw(self, entropy: Entropy) -> int:
        """One variate."""
        ...

    def draw_many(self, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        """``n`` independent variates."""
        ...


class AdditiveNoise(ABC):
    """A mechanism that adds independent noise to every number of a vector."""

    _sampler: Sampler

    def randomise(self, value: int, entropy: Entropy) -> int:
        """One count, with noise."""
        return check_integer(value) + self._sampler.draw(entropy)

    def randomise_many(self, values: npt.NDArray[np.int64], entropy: Entropy) -> npt.NDArray[np.int64]:
        """A vector of counts, each with noise of its own."""
        counts = check_integers(values)
        return counts + self._sampler.draw_many(counts.size, entropy).reshape(counts.shape)

    def expected_error(self, n: int = 1) -> float:
        """Mean absolute error of the sum of n independent releases; for more than one, by its variance."""
        return self._mean_absolute() if n == 1 else math.sqrt(n * self.variance() * 2 / math.pi)

    @abstractmethod
    def variance(self) -> float:
        """Variance of the noise on one number."""

    @abstractmethod
    def _mean_absolute(self) -> float:
        """Mean size of the noise on one number."""
