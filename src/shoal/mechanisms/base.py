"""What every mechanism offers: its event, its exact draw, its variance and expected error in closed form."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from shoal.errors import MechanismError
from shoal.privacy.events import Event

MIN_EPSILON = 1e-9
MAX_EPSILON = 64.0
MAX_VALUE = 1 << 52


@runtime_checkable
class Mechanism(Protocol):
    """A randomised release of counts or of a person's cell, whose cost and error are known before it is run."""

    def event(self) -> Event:
        """The release as the accountant sees it; epsilon is that of the probabilities as realised."""
        ...

    def variance(self) -> float:
        """Variance of one released number, or of one cell's estimate for a single report."""
        ...

    def expected_error(self, n: int) -> float:
        """Expected error of what is estimated from ``n`` reports (or from one release, where n is 1)."""
        ...


def check_epsilon(epsilon: float) -> Fraction:
    """The exact value of a budget, if it is one that a mechanism can be run with.

    A float and its shortest decimal differ by a hair; a ledger counts the decimal, so the noise is made for the lesser of the two.
    """
    if not math.isfinite(epsilon) or not MIN_EPSILON <= epsilon <= MAX_EPSILON:
        raise MechanismError(
            "MECH-001",
            f"epsilon = {epsilon} cannot be used.",
            why=f"A mechanism takes an epsilon from {MIN_EPSILON:g} to {MAX_EPSILON:g}.",
            fix="Useful values lie between 0.1 and 8.",
        )
    return min(Fraction(float(epsilon)), Fraction(repr(float(epsilon))))


def check_delta(delta: float) -> float:
    """A delta that a mechanism with a failure chance can be run with."""
    if not 0 < delta < 1:
        raise MechanismError(
            "MECH-001",
            f"delta = {delta} cannot be used.",
            why="A mechanism that is private except with chance delta needs one between 0 and 1, both excluded.",
            fix="Useful values lie well below one in the number of units, such as 1e-6.",
        )
    return float(delta)


def check_integer(value: int) -> int:
    """A number that integer noise can hide."""
    if type(value) is not int or abs(value) > MAX_VALUE:
        raise MechanismError(
            "MECH-002",
            f"A value of type {type(value).__name__} is not an integer of at most 2**52 in size.",
            why="Exact noise is integer noise: the fraction of a float would shine through.",
            fix="Round to the integer units that the query is declared in.",
        )
    return value


def check_integers(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """An array that integer noise can hide; the fraction of a float would shine through."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu" or (array.size and max(-int(array.min()), int(array.max())) > MAX_VALUE):
        raise MechanismError(
            "MECH-002",
            f"An array of {array.size} values of type {array.dtype} is not made of integers of at most 2**52 in size.",
            why="Exact noise is integer noise: it hides integers, and sums must not leave 64 bits.",
            fix="Round to the integer units that the query is declared in.",
        )
    return array.astype(np.int64, copy=False)
