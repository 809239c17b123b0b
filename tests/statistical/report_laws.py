"""The law of one report, enumerated from the integers in a mechanism's event alone: the oracle for enumeration and for fits."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import numpy.typing as npt

from shoal.mechanisms.bits import OneTimeRappor, PQPerturbation
from shoal.mechanisms.reports import FrequencyMechanism, Report, Reports
from shoal.mechanisms.response import RandomResponse
from shoal.mechanisms.subset import SubsetSelection

KINDS: list[type[RandomResponse | OneTimeRappor | PQPerturbation | SubsetSelection]] = [
    RandomResponse,
    OneTimeRappor,
    PQPerturbation,
    SubsetSelection,
]


def law(mechanism: FrequencyMechanism, value: int) -> dict[int, Fraction]:
    """Output (the number of a cell, or a set of cells as the bits of an integer) -> its exact chance."""
    parameters = mechanism.event().parameters
    m = int(parameters["cardinality"])
    keep = Fraction(int(parameters["keep_numerator"]), 2**64)
    if mechanism.name == "random-response":
        return {cell: keep if cell == value else (1 - keep) / (m - 1) for cell in range(m)}
    if mechanism.name == "subset-selection":
        w = int(parameters["subset_size"])
        chances = {True: keep / math.comb(m - 1, w - 1), False: (1 - keep) / math.comb(m - 1, w)}
        return {sum(1 << cell for cell in cells): chances[value in cells] for cells in combinations(range(m), w)}
    flip = Fraction(int(parameters["flip_numerator"]), 2**64)
    chance_of_one = [keep if cell == value else flip for cell in range(m)]
    return {bits: math.prod(p if bits >> cell & 1 else 1 - p for cell, p in enumerate(chance_of_one)) for bits in range(1 << m)}


def supports(mechanism: FrequencyMechanism, output: int, cell: int) -> bool:
    """Whether an output of `law` supports a cell."""
    return output == cell if mechanism.name == "random-response" else bool(output >> cell & 1)


def output_of(report: Report) -> int:
    """A single report as an output of `law`."""
    return report if isinstance(report, int) else int.from_bytes(report, "little")


def outputs_of(reports: Reports) -> npt.NDArray[np.int64]:
    """Many reports, of at most 56 cells, as outputs of `law`."""
    if reports.ndim == 1:
        return reports.astype(np.int64)
    return sum(reports[:, byte].astype(np.int64) << 8 * byte for byte in range(reports.shape[1]))
