"""k-ary randomised response.

A report is the true cell with probability p, and otherwise a uniformly chosen other cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.mechanisms.base import check_epsilon
from shoal.mechanisms.bernoulli import BernoulliSampler
from shoal.mechanisms.exact import bound_exp, floor_scaled
from shoal.mechanisms.frequency_oracle import (
    WORD,
    FrequencyOracle,
    Report,
    Reports,
    check_cardinality,
)
from shoal.privacy.events import LOCAL_PERSON, Scope


def compute_other_numerator(epsilon: Fraction, m: int) -> int:
    """Return the probability of each other cell, over 2^64.

    It is the least integer q with p / q <= exp(epsilon), where p = 2^64 - (m - 1) q.
    """

    def chance(bits: int) -> tuple[Fraction, Fraction]:
        low, high = bound_exp(epsilon, bits)
        return 1 / (high + m - 1), 1 / (low + m - 1)

    return floor_scaled(chance, WORD) + 1


class RandomizedResponse(FrequencyOracle):
    """Randomised response among m cells; a report is the number of a cell.

    Parameters
    ----------
    epsilon
        Budget of one report.
    cardinality
        m, the number of cells.
    scope
        Unit, neighbouring relation and adversary of the claim.

    Notes
    -----
    Ref: AnonML §VII-C; epsilon = ln((m - 1) p / (1 - p)), not the printed ln(m p / (1 - p)) (errata
    A-01). The encoding is the number, little-endian, in the smallest number of bytes for m - 1.

    Privacy
    -------
    epsilon-DP for one report: two values give a report with probabilities p and (1 - p) / (m - 1)
    in the worst case.

    Examples
    --------
    >>> from shoal.entropy import SeededEntropy
    >>> survey = RandomizedResponse(1.0, 4)
    >>> reports = survey.report_many(np.zeros(1000, np.int64), SeededEntropy(1))
    >>> survey.debias(survey.tally(reports), 1000).round(-2)
    array([900., 100.,   0.,  -0.])
    """

    name: ClassVar[str] = "random-response"

    def __init__(self, epsilon: float, cardinality: int, scope: Scope = LOCAL_PERSON) -> None:
        m = check_cardinality(cardinality)
        self._other = compute_other_numerator(check_epsilon(epsilon), m)
        self._keep = WORD - (m - 1) * self._other
        self._keep_sampler = BernoulliSampler.dyadic(self._keep)
        super().__init__(
            epsilon,
            m,
            scope,
            p=Fraction(self._keep, WORD),
            q=Fraction(self._other, WORD),
            worst_ratio=Fraction(self._keep, self._other),
            parameters={"keep_numerator": self._keep},
        )
        self._width = ((m - 1).bit_length() + 7) // 8

    def report(self, value: int, entropy: Entropy) -> int:
        if type(value) is not int or not 0 <= value < self.cardinality:
            raise self._outside_error()
        # One word decides: below `keep` the true cell; the rest is m - 1 ranges of equal length,
        # one for each other cell.
        word = entropy.word()
        if word < self._keep:
            return value
        other = (word - self._keep) // self._other
        return other + (other >= value)

    def tally(self, reports: Reports) -> npt.NDArray[np.int64]:
        if reports.ndim != 1 or reports.dtype.kind not in "iu":
            raise self._malformed_error(
                f"Reports are a vector of integers, not {reports.dtype} of shape {reports.shape}."
            )
        if reports.size and not (reports.min() >= 0 and reports.max() < self.cardinality):
            raise self._malformed_error("At least one is outside the cells.")
        return np.bincount(reports, minlength=self.cardinality).astype(np.int64, copy=False)

    def encode(self, report: Report) -> bytes:
        return self._check_report(report).to_bytes(self._width, "little")

    def decode(self, wire: bytes) -> int:
        if not isinstance(wire, bytes) or len(wire) != self._width:
            raise self._malformed_error(f"It is not {self._width} bytes.")
        return self._check_report(int.from_bytes(wire, "little"))

    def stack(self, reports: Iterable[Report]) -> npt.NDArray[np.int64]:
        return np.fromiter((self._check_report(report) for report in reports), np.int64)

    def _check_report(self, report: Report) -> int:
        if type(report) is not int or not 0 <= report < self.cardinality:
            raise self._malformed_error("It is not the number of a cell.")
        return report

    def _allocate_reports(self, n: int) -> Reports:
        return np.empty(n, np.int64)

    def _report_block(
        self, values: npt.NDArray[np.int64], entropy: Entropy
    ) -> npt.NDArray[np.integer[Any]]:
        kept = self._keep_sampler.sample_many(values.size, entropy)
        # Drawing an unused other cell for people who keep theirs is cheaper than selecting those
        # who do not.
        others = entropy.below_many(self.cardinality - 1, values.size)
        others += others >= values
        return np.where(kept, values, others)
