"""Base class of the LDP frequency oracles: price, report, tally, debias.

A frequency oracle randomises one person's value among m cells, so that no recipient of the report
has to be trusted with the value. AnonML calls it.

A report *supports* some cells. It supports the person's true cell with probability p and any other
cell with probability q < p, so that counts of support over n reports can be turned into unbiased
counts of people. Randomised response, one-time RAPPOR, (p, q)-perturbation and subset selection
differ only in how a report is drawn and in its form.

A change must keep: probabilities are integers over 2^64, rounded towards less information. p and q
are the exact values of those integers, and a report is priced by them, not by the requested
epsilon.
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
"""Denominator of each realised probability."""
MAX_CARDINALITY = 1 << 16

_MAX_BLOCK_ROWS = 1 << 15
_MAX_BLOCK_CELLS = 1 << 25

Report = int | bytes
"""The report of one person: the number of a cell, or packed bits."""
Reports = npt.NDArray[np.integer[Any]]
"""Reports: ``(n,) int64`` numbers of cells, or ``(n, ceil(m / 8)) uint8`` packed bits."""


def check_cardinality(cardinality: int) -> int:
    """Return a valid number of cells; raise ``MECH-001`` for any other value."""
    if type(cardinality) is not int or not 2 <= cardinality <= MAX_CARDINALITY:
        is_too_large = type(cardinality) is int and cardinality > MAX_CARDINALITY
        raise MechanismError(
            "MECH-001",
            f"cardinality = {cardinality} cannot be used.",
            why=f"A value is one of 2 to {MAX_CARDINALITY} cells.",
            fix="Use fewer or coarser features in one question."
            if is_too_large
            else "Give a whole number, 2 or more.",
        )
    return cardinality


def norm_sub(values: npt.ArrayLike, total: float) -> npt.NDArray[np.float64]:
    """Return the nearest vector that is not negative and sums to ``total``.

    A constant is subtracted, and negative values are set to zero.

    Notes
    -----
    The constant is the largest of (sum of the k largest values - total) / k: each k gives a lower
    bound on it, and the number of cells that stay positive attains its bound. This is the Euclidean
    projection onto the scaled simplex.
    """
    array = np.asarray(values, np.float64)
    falling = np.sort(array)[::-1]
    constant = np.max((np.cumsum(falling) - total) / np.arange(1, array.size + 1))
    return np.maximum(array - constant, 0.0)


class FrequencyOracle(ABC):
    """Base class of the frequency oracles: the price, the estimate and its error.

    Parameters
    ----------
    epsilon
        The requested budget.
    cardinality
        m, the number of cells.
    scope
        Unit, neighbouring relation and adversary of the claim.
    p, q
        Exact probabilities that a report supports the true cell, or any one other cell.
    worst_ratio
        The largest ratio of the probabilities of one report under two values.
    parameters
        Of the event, in addition to the cardinality; numerators are over 2^64.

    Notes
    -----
    Ref: AnonML §VII-C and §VII-D.

    Privacy
    -------
    ``log(worst_ratio)``-DP for one report, under replacement of the value by any other, against
    every reader.
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
        """Return one report for the accountant, priced by its realised probabilities.

        The price is never above the requested epsilon.
        """
        return Event(
            self.name,
            {"cardinality": self.cardinality, **self._parameters},
            self.scope,
            log_up(self.worst_ratio),
        )

    def debias(
        self, noisy_counts: npt.ArrayLike, n: int, *, nonnegative: bool = False
    ) -> npt.NDArray[np.float64]:
        """Estimate counts of people from counts of support.

        Parameters
        ----------
        noisy_counts
            The result of `tally`, ``(m,)``.
        n
            Number of reports.
        nonnegative
            Return the nearest possible counts, none negative and with the sum n. The plain estimate
            is unbiased; this one is not, but its error is smaller.

        Notes
        -----
        Ref: AnonML §VII-D, n_hat = (n_tilde - q n) / (p - q); `norm_sub`.
        """
        n_tilde = np.asarray(noisy_counts, np.float64)
        if n_tilde.shape != (self.cardinality,):
            raise MechanismError(
                "MECH-003",
                f"Counts of shape {n_tilde.shape} do not fit {self.cardinality} cells.",
            )
        n_hat = (n_tilde - float(self.q) * n) / float(self.p - self.q)
        return norm_sub(n_hat, n) if nonnegative else n_hat

    def variance(self, share: float | None = None) -> float:
        """Return the variance that one report adds to a cell's estimated count.

        Parameters
        ----------
        share
            Share of people in the cell; None averages over the cells.

        Notes
        -----
        Ref: AnonML appendix, proof of Theorem 2: the true counts are fixed. If the people are drawn
        from a larger population, ``share * (1 - share)`` is added.
        """
        p, q = self.p, self.q
        kept = Fraction(1, self.cardinality) if share is None else Fraction(share)
        return float((kept * p * (1 - p) + (1 - kept) * q * (1 - q)) / (p - q) ** 2)

    def expected_error(self, n: int) -> float:
        """Return the root mean square L2 error of all estimated shares, from n reports.

        Notes
        -----
        Ref: AnonML Theorem 2, Eq. (4). It bounds the expected norm from above, and is valid before
        normalisation (errata A-04).
        """
        return math.sqrt(self.cardinality * self.variance() / n)

    @abstractmethod
    def report(self, value: int, entropy: Entropy) -> Report:
        """Draw one person's report."""

    def report_many(self, values: npt.NDArray[np.integer[Any]], entropy: Entropy) -> Reports:
        """Draw the reports of ``(n,)`` people independently; for simulations."""
        checked = self._check_values(values)
        reports = self._allocate_reports(checked.size)
        step = max(1, min(_MAX_BLOCK_ROWS, _MAX_BLOCK_CELLS // self.cardinality))
        for start in range(0, checked.size, step):
            reports[start : start + step] = self._report_block(
                checked[start : start + step], entropy
            )
        return reports

    @abstractmethod
    def tally(self, reports: Reports) -> npt.NDArray[np.int64]:
        """Count the reports that support each cell, ``(m,)``."""

    @abstractmethod
    def encode(self, report: Report) -> bytes:
        """Return the encoding of a report, which is unique."""

    @abstractmethod
    def decode(self, wire: bytes) -> Report:
        """Return the report of an encoding; raise ``MECH-003`` for any other bytes."""

    @abstractmethod
    def stack(self, reports: Iterable[Report]) -> Reports:
        """Return single reports in the form that `tally` takes."""

    @abstractmethod
    def _allocate_reports(self, n: int) -> Reports:
        """Return an uninitialised array for n reports."""

    @abstractmethod
    def _report_block(self, values: npt.NDArray[np.int64], entropy: Entropy) -> Reports:
        """Draw the reports of a block of people with checked values."""

    def _check_values(self, values: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise MechanismError(
                "MECH-002",
                f"Values must be a vector of integers, not {values.dtype} of shape {values.shape}.",
            )
        if values.size and not (values.min() >= 0 and values.max() < self.cardinality):
            row = int(np.argmax((values < 0) | (values >= self.cardinality)))
            raise self._outside_error(f"The value in row {row}")
        return values.astype(np.int64, copy=False)

    def _outside_error(self, what: str = "A value") -> MechanismError:
        """Return the error for an invalid value, without the private value itself."""
        return MechanismError(
            "MECH-002",
            f"{what} is not an integer from 0 to {self.cardinality - 1}.",
            why=f"This {self.name} has {self.cardinality} cells.",
            fix="Encode the row with the schema of the study.",
        )

    def _malformed_error(self, why: str) -> MechanismError:
        return MechanismError(
            "MECH-003",
            f"This is not a report of {self.name} over {self.cardinality} cells.",
            why=why,
        )
