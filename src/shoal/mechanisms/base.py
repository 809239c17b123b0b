"""The Mechanism interface, argument checks, and additive noise.

Each mechanism has an event, an exact draw, and its variance and expected error in closed form. A
change must keep: noise is integer noise on integers, since the fraction of a float would reveal the
value.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from fractions import Fraction
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import MechanismError
from shoal.privacy.events import Event

MIN_EPSILON = 1e-9
MAX_EPSILON = 64.0
MAX_VALUE = 1 << 52


@runtime_checkable
class Mechanism(Protocol):
    """A randomised release of counts or of one person's cell.

    Its cost and error are known before it runs.
    """

    def event(self) -> Event:
        """Return the release for the accountant, priced by its realised probabilities."""
        ...

    def variance(self) -> float:
        """Return the variance of one number, or of a cell's estimate from one report."""
        ...

    def expected_error(self, n: int) -> float:
        """Return the expected error of the estimate from ``n`` reports.

        For a mechanism that releases counts, ``n`` is 1.
        """
        ...


def check_epsilon(epsilon: float) -> Fraction:
    """Return the exact value of a budget; raise ``MECH-001`` if no mechanism can run with it.

    A float and its shortest decimal differ slightly. The ledger counts the decimal, so the noise is
    made for the smaller of the two.
    """
    if not math.isfinite(epsilon) or not MIN_EPSILON <= epsilon <= MAX_EPSILON:
        raise MechanismError(
            "MECH-001",
            f"epsilon = {epsilon} cannot be used.",
            why=f"A mechanism takes an epsilon from {MIN_EPSILON:g} to {MAX_EPSILON:g}.",
            fix="Use an epsilon between 0.1 and 8.",
        )
    return min(Fraction(float(epsilon)), Fraction(repr(float(epsilon))))


def check_delta(delta: float) -> float:
    """Return a delta in (0, 1); raise ``MECH-001`` for any other number."""
    if not 0 < delta < 1:
        raise MechanismError(
            "MECH-001",
            f"delta = {delta} cannot be used.",
            why="It is a probability of failure, between 0 and 1, both excluded.",
            fix="Use a delta well below one in the number of units, such as 1e-6.",
        )
    return float(delta)


def check_integer(value: int) -> int:
    """Return a number that integer noise can hide; raise ``MECH-002`` for any other value."""
    if type(value) is not int or abs(value) > MAX_VALUE:
        raise MechanismError(
            "MECH-002",
            f"A value of type {type(value).__name__} is not an integer of at most 2**52 in size.",
            why="Noise is integer noise: the fraction of a float would reveal the value.",
            fix="Round to the integer units of the query.",
        )
    return value


def check_integers(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return an array that integer noise can hide; raise ``MECH-002`` for any other."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or (
        array.size and max(-int(array.min()), int(array.max())) > MAX_VALUE
    ):
        raise MechanismError(
            "MECH-002",
            f"An array of {array.size} values of type {array.dtype} does not consist of integers "
            "of at most 2**52 in size.",
            why="Noise is integer noise: it hides integers, and sums must fit into 64 bits.",
            fix="Round to the integer units of the query.",
        )
    return array.astype(np.int64, copy=False)


class Sampler(Protocol):
    """Exact integer noise, one variate at a time or many."""

    def draw(self, entropy: Entropy) -> int:
        """Draw one variate."""
        ...

    def draw_many(self, n: int, entropy: Entropy) -> npt.NDArray[np.int64]:
        """Draw ``n`` independent variates."""
        ...


class AdditiveNoise(ABC):
    """A mechanism that adds independent noise to each number of a vector."""

    _sampler: Sampler

    def randomise(self, value: int, entropy: Entropy) -> int:
        """Return one count with noise."""
        return check_integer(value) + self._sampler.draw(entropy)

    def randomise_many(
        self, values: npt.NDArray[np.int64], entropy: Entropy
    ) -> npt.NDArray[np.int64]:
        """Return a vector of counts, each with independent noise."""
        counts = check_integers(values)
        return counts + self._sampler.draw_many(counts.size, entropy).reshape(counts.shape)

    def expected_error(self, n: int = 1) -> float:
        """Return the mean absolute error of the sum of n independent releases.

        For more than one it is computed from the variance.
        """
        return (
            self._mean_absolute_noise() if n == 1 else math.sqrt(n * self.variance() * 2 / math.pi)
        )

    @abstractmethod
    def variance(self) -> float:
        """Return the variance of the noise on one number."""

    @abstractmethod
    def _mean_absolute_noise(self) -> float:
        """Return the mean size of the noise on one number."""
