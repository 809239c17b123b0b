"""Randomised answers: one person's value among m cells, reported so that nobody need be trusted with it.

A report *supports* some cells. It supports the person's true cell with chance p and any other cell with chance q < p, so that counts
of support over n reports can be turned into unbiased counts of people. Random response, one-time RAPPOR,
(p, q)-perturbation and subset selection differ only in how a report is drawn and in what it looks like.

Chances are integers over 2^64, rounded towards less information. p and q are those integers' exact values, and the price of a report
is the price of them, not of the epsilon that was asked for.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.errors import MechanismError
from shoal.mechanisms.exact import log_up
from shoal.privacy.events import Event, Scope

WORD = 1 << 64
"""Denominator of every realised chance."""
MAX_CARDINALITY = 1 << 16

_MAX_BLOCK_ROWS = 1 << 15
_MAX_BLOCK_CELLS = 1 << 25

Report = int | bytes
"""What one person sends: the number of a cell, or packed bits."""
Reports = npt.NDArray[np.integer[Any]]
"""Many of them: ``(n,) int64`` numbers of cells, or ``(n, ceil(m / 8)) uint8`` packed bits."""


def check_cardinality(cardinality: int) -> int:
    """The number of cells, if a person's value can be one of so many."""
    if type(cardinality) is not int or not 2 <= cardinality <= MAX_CARDINALITY:
        is_too_large = type(cardinality) is int and cardinality > MAX_CARDINALITY
        raise MechanismError(
            "MECH-001",
            f"cardinality = {cardinality} cannot be used.",
            why=f"A value is one of 2 to {MAX_CARDINALITY} cells.",
            fix="Use fewer or coarser features in one question." if is_too_large else "Give a whole number, 2 or more.",
        )
    return cardinality


def norm_sub(values: npt.ArrayLike, total: float) -> npt.NDArray[np.float64]:
    """The nearest vector that is not negative and sums to ``total``: a constant is subtracted, and what falls below zero is cut off.

    Notes
    -----
    The constant is the largest of (sum of the k largest values - total) / k: each k gives a lower bound on it, and the number of cells
    that stay positive attains its bound. This is the Euclidean projection onto the scaled simplex.
    """
    array = np.asarray(values, np.float64)
    falling = np.sort(array)[::-1]
    constant = np.max((np.cumsum(falling) - total) / np.arange(1, array.size + 1))
    return np.maximum(array - constant, 0.0)


class FrequencyMechanism(ABC):
    """What all randomised answers share: the price, the estimate and its error.

    Parameters
    ----------
    epsilon
        The budget that was asked for.
    cardinality
        m, the number of cells.
    scope
        Unit, neighbouring relation and adversary of the claim.
    p, q
        Exact chances that a report supports the true cell, or any one other cell.
    worst_ratio
        The largest ratio of the chances of one report under two values.
    parameters
        What the event says beside the cardinality; numerators are over 2^64.

    Notes
    -----
    Ref: AnonML §VII-C and §VII-D.

    Privacy
    -------
    ``log(worst_ratio)``-DP for one report, whatever the value is replaced with and whoever reads it.
    """

    name: ClassVar[str]

    def __init__(
        self,
        epsilon: float,
        cardinality: int,
        scope: Scope,
        *,
        p: Fraction,
        q: Fraction,
        worst_ratio: Fraction,
        parameters: Mapping[str, int],
    ) -> None:
        self.epsilon = epsilon
        self.cardinality = cardinality
        self.scope = scope
        self.p = p
        self.q = q
        self.worst_ratio = worst_ratio
        self._parameters = parameters

    def event(self) -> Event:
        """One report as the accountant sees it, priced by its realised chances; never above the epsilon asked for."""
        return Event(self.name, {"cardinality": self.cardinality, **self._parameters}, self.scope, log_up(self.worst_ratio))

    def debias(self, noisy_counts: npt.ArrayLike, n: int, *, nonnegative: bool = False) -> npt.NDArray[np.float64]:
        """Estimated counts of people from counts of support.

        Parameters
        ----------
        noisy_counts
            What `tally` gives, ``(m,)``.
        n
            Number of reports.
        nonnegative
            Return the nearest counts that could be true, none negative and n in all. The plain estimate is unbiased; this one is not,
            but its error is smaller.

        Notes
        -----
        Ref: AnonML §VII-D, n_hat = (n_tilde - q n) / (p - q); `norm_sub`.
        """
        n_tilde = np.asarray(noisy_counts, np.float64)
        if n_tilde.shape != (self.cardinality,):
            raise MechanismError("MECH-003", f"Counts of shape {n_tilde.shape} do not belong to {self.cardinality} cells.")
        n_hat = (n_tilde - float(self.q) * n) / float(self.p - self.q)
        return norm_sub(n_hat, n) if nonnegative else n_hat

    def variance(self, share: float | None = None) -> float:
        """Variance that one report adds to a cell's estimated count.

        Parameters
        ----------
        share
            Share of people in the cell; None averages over the cells.

        Notes
        -----
        Ref: AnonML appendix, proof of Theorem 2: the true counts are fixed. Where people are themselves drawn from a larger
        population, ``share * (1 - share)`` comes on top.
        """
        p, q = self.p, self.q
        kept = Fraction(1, self.cardinality) if share is None else Fraction(share)
        return float((kept * p * (1 - p) + (1 - kept) * q * (1 - q)) / (p - q) ** 2)

    def expected_error(self, n: int) -> float:
        """Root mean square L2 error of the estimated shares of all cells, from n reports.

        Notes
        -----
        Ref: AnonML Theorem 2, Eq. (4). It bounds the expected norm from above, and holds before normalisation (errata A-04).
        """
        return math.sqrt(self.cardinality * self.variance() / n)

    @abstractmethod
    def report(self, value: int, entropy: Entropy) -> Report:
        """One person's answer."""

    def report_many(self, values: npt.NDArray[np.integer[Any]], entropy: Entropy) -> Reports:
        """The answers of ``(n,)`` people, each drawn independently; for simulations."""
        checked = self._checked(values)
        reports = self._empty(checked.size)
        step = max(1, min(_MAX_BLOCK_ROWS, _MAX_BLOCK_CELLS // self.cardinality))
        for start in range(0, checked.size, step):
            reports[start : start + step] = self._report_block(checked[start : start + step], entropy)
        return reports

    @abstractmethod
    def tally(self, reports: Reports) -> npt.NDArray[np.int64]:
        """How many of the reports support each cell, ``(m,)``."""

    @abstractmethod
    def encode(self, report: Report) -> bytes:
        """The wire form; each report has exactly one."""

    @abstractmethod
    def decode(self, wire: bytes) -> Report:
        """The report behind a wire form; bytes that `encode` cannot have written are refused."""

    @abstractmethod
    def stack(self, reports: Iterable[Report]) -> Reports:
        """Single reports in the form that `tally` takes."""

    @abstractmethod
    def _empty(self, n: int) -> Reports:
        """Room for n reports."""

    @abstractmethod
    def _report_block(self, values: npt.NDArray[np.int64], entropy: Entropy) -> Reports:
        """The answers of a block of people whose values were checked."""

    def _checked(self, values: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise MechanismError("MECH-002", f"Values come as a vector of integers, not as {values.dtype} of shape {values.shape}.")
        if values.size and not (values.min() >= 0 and values.max() < self.cardinality):
            row = int(np.argmax((values < 0) | (values >= self.cardinality)))
            raise self._outside(f"The value in row {row}")
        return values.astype(np.int64, copy=False)

    def _outside(self, what: str = "A value") -> MechanismError:
        """The refusal of a value; the value itself is private and stays out of it."""
        return MechanismError(
            "MECH-002",
            f"{what} is not an integer from 0 to {self.cardinality - 1}.",
            why=f"{self.name} was set up for {self.cardinality} cells.",
            fix="Encode the row with the study's own schema.",
        )

    def _malformed(self, why: str) -> MechanismError:
        return MechanismError("MECH-003", f"This is not a report of {self.name} over {self.cardinality} cells.", why=why)
