"""The distribution of one report, enumerated from the integers in a mechanism's event.

It is the oracle for the enumeration in `shoal.mechanisms` and for fits of drawn reports. It must
read nothing of a mechanism but its event.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import numpy.typing as npt

from shoal.mechanisms.frequency_oracle import FrequencyOracle, Report, Reports
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.mechanisms.subset_selection import SubsetSelection
from shoal.mechanisms.unary_encoding import OneTimeRappor, PQPerturbation

KINDS: list[type[RandomizedResponse | OneTimeRappor | PQPerturbation | SubsetSelection]] = [
    RandomizedResponse,
    OneTimeRappor,
    PQPerturbation,
    SubsetSelection,
]


def enumerate_outputs(mechanism: FrequencyOracle, value: int) -> dict[int, Fraction]:
    """Return the exact chance of each output.

    An output is the number of a cell, or a set of cells as the bits of an integer.
    """
    parameters = mechanism.event().parameters
    m = int(parameters["cardinality"])
    keep = Fraction(int(parameters["keep_numerator"]), 2**64)
    if mechanism.name == "random-response":
        return {cell: keep if cell == value else (1 - keep) / (m - 1) for cell in range(m)}
    if mechanism.name == "subset-selection":
        w = int(parameters["subset_size"])
        chances = {True: keep / math.comb(m - 1, w - 1), False: (1 - keep) / math.comb(m - 1, w)}
        return {
            sum(1 << cell for cell in cells): chances[value in cells]
            for cells in combinations(range(m), w)
        }
    flip = Fraction(int(parameters["flip_numerator"]), 2**64)
    chance_of_one = [keep if cell == value else flip for cell in range(m)]
    return {
        bits: math.prod(p if bits >> cell & 1 else 1 - p for cell, p in enumerate(chance_of_one))
        for bits in range(1 << m)
    }


def supports(mechanism: FrequencyOracle, output: int, cell: int) -> bool:
    """Return whether an output of `enumerate_outputs` supports a cell."""
    return output == cell if mechanism.name == "random-response" else bool(output >> cell & 1)


def to_output(report: Report) -> int:
    """Return a single report as an output of `enumerate_outputs`."""
    return report if isinstance(report, int) else int.from_bytes(report, "little")


def to_outputs(reports: Reports) -> npt.NDArray[np.int64]:
    """Return many reports, of at most 56 cells, as outputs of `enumerate_outputs`."""
    if reports.ndim == 1:
        return reports.astype(np.int64)
    return sum(reports[:, byte].astype(np.int64) << 8 * byte for byte in range(reports.shape[1]))
