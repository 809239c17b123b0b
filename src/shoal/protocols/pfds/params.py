"""Parameters, public coding, and checks of roster and prices.

Peers, aggregators, scripts and simulations of PFDS read `PFDSParams`, on which all parties of a
study agree. `PFDSRows` are the rows of a holder in the public coding.

The coding cuts each number into cells by its declared range alone. It reads no row, so it costs no
privacy and is the same for every holder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Feature, Numeric, Schema
from shoal.errors import LocalProtocolError, SpecError
from shoal.mechanisms.base import check_delta, check_epsilon
from shoal.privacy.accountant import epsilon_to_rho
from shoal.privacy.events import Event, Relation, Scope, Unit
from shoal.privacy.rounding import grains_up
from shoal.protocols.sdq.params import encode_cells as cut
from shoal.protocols.secagg.messages import SumParameters
from shoal.text import format_count

CELLS_OF_A_NUMBER = 8
"""Number of cells of equal width, or of halvings if the range is wide."""
MAX_WHOLE_NUMBERS = 24
"""Largest number of integers in a range that has one cell for each of them.

The range has integers as ends and contains at least four integers; a shorter one may be a range of
fractions.
"""
WIDE = 2_000
"""Width above which a range is cut by magnitudes.

Amounts of money and counts have a few large values and many small ones.
"""
_BELOW_ZERO = -math.ulp(0.0)


def code_feature(feature: Feature) -> Feature:
    """Return the feature with public cells: its declared bins, or bins from its range.

    Notes
    -----
    The function reads no row, so it is free and gives the same result for every holder.

    Examples
    --------
    >>> (
    ...     code_feature(Numeric("floor", 0, 3)).bins,
    ...     code_feature(Numeric("age", 0, 80)).bins[:2],
    ...     code_feature(Numeric("gain", 0, 12800)).bins[:4],
    ... )
    ((0.5, 1.5, 2.5), (10.0, 20.0), (0.0, 100.0, 200.0, 400.0))
    """
    if not isinstance(feature, Numeric) or feature.bins is not None:
        return feature
    low, high = float(feature.low), float(feature.high)
    width = high - low
    if low.is_integer() and high.is_integer() and 2 < width < MAX_WHOLE_NUMBERS:
        cuts = {low + i + 0.5 for i in range(int(width))}
    elif width > WIDE and CELLS_OF_A_NUMBER * max(low, -high) <= max(abs(low), abs(high)):
        cuts = _cut_by_magnitude(low, high)
    else:
        # This includes wide ranges far from 0, such as dates: they span few magnitudes.
        cuts = {low + width / CELLS_OF_A_NUMBER * i for i in range(1, CELLS_OF_A_NUMBER)}
    return replace(feature, bins=tuple(sorted(cut for cut in cuts if low <= cut < high)))


def code_schema(schema: Schema) -> Schema:
    """Return the schema with public cells for every number."""
    return replace(schema, features=tuple(map(code_feature, schema.features)))


def _cut_by_magnitude(low: float, high: float) -> set[float]:
    """Return halvings of the largest magnitude on both sides of 0; 0 has a separate cell."""
    largest = max(abs(low), abs(high))
    sizes = [largest * 2.0**-j for j in range(1, CELLS_OF_A_NUMBER)]
    cuts = {*sizes, *(-size for size in sizes)}
    return cuts | {_BELOW_ZERO, 0.0} if low <= 0 <= high else cuts


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

GRID = 256
"""Units of a row: counts are integers in units of 1/256.

A row adds 256 units to a cell. If its label is a number, it adds part of them to each side.
"""


@dataclass(frozen=True)
class PFDSParams:
    """Public parameters of a study.

    Parameters
    ----------
    schema
        Features and a label, a category or a number.
    epsilon, delta
        The whole budget of one unit. An infinite epsilon means no noise; only simulations may use
        it. A positive delta requires secure sums.
    size
        Expected number of rows of all holders together; a public guess.
    n_holders, minimum
        m, and the smallest number of holders that must share; the others may drop out.
    max_colluders
        C: number of holders that may collude with the readers of the sums.
    variant, trust
        ``"paper"`` shares trees and data, with trust ``"local"``.
    max_depth, n_candidates, n_levels, n_buckets
        Variant paper: h_max, t, p, and b for a numeric label.
    labelling
        Variant paper: the trees that label a holder's data. ``"own"`` is PFDS(s).
    projection
        Variant paper: whether the counts of a tree are made consistent. False is PFDS-.
    unit, max_rows
        The unit that epsilon protects, and the largest number of its rows that a holder uses.

    Notes
    -----
    Ref: PFDS Algorithms 1 to 5; errata P-01 to P-09.

    Examples
    --------
    >>> from shoal.data.schema import Categorical
    >>> schema = Schema([Numeric("age", 0, 100)], label=Categorical("ill", ["no", "yes"]))
    >>> params = PFDSParams(schema, epsilon=1.0, size=10_000)
    >>> params.arities, params.n_sides, str(params.scope)
    ((9,), 2, 'record, add-remove, against all who read the release')
    """

    schema: Schema
    epsilon: float
    size: int
    delta: float = 0.0
    n_holders: int = 10
    minimum: int = 10
    max_colluders: int = 0
    variant: Literal["plus", "paper"] = "plus"
    trust: Literal["local", "secure-sum"] = "local"
    max_depth: int = 8
    n_candidates: int = 10
    n_levels: int = 4
    n_buckets: int = 10
    labelling: Literal["shared", "own"] = "shared"
    projection: bool = True
    unit: Literal["record", "person"] = "record"
    max_rows: int = 1

    def __post_init__(self) -> None:
        if self.schema.label is None:
            raise SpecError(
                "SCHEMA-001", "The schema declares no label.", fix="Schema(..., label=...)"
            )
        if not self.is_noiseless:
            check_epsilon(self.epsilon)
            if self.delta:
                check_delta(self.delta)

    @property
    def is_noiseless(self) -> bool:
        """Whether epsilon is infinite, so that no noise is added; only simulations may do this."""
        return self.epsilon == math.inf

    @property
    def label(self) -> Feature:
        """The feature to predict."""
        assert self.schema.label is not None
        return self.schema.label

    @property
    def is_number(self) -> bool:
        """Whether the label is a number."""
        return isinstance(self.label, Numeric)

    @property
    def n_sides(self) -> int:
        """Number of counts of each cell: one for each class, or two if the label is a number.

        The two sides of a number are its distance to the highest value and its distance to the
        lowest, as shares of the range.
        """
        return 2 if isinstance(self.label, Numeric) else len(self.label.values)

    @property
    def n_models(self) -> int:
        """Number of additive models to learn.

        One for a number or two classes, otherwise one for each class against all others.
        """
        return 1 if self.n_sides == 2 else self.n_sides

    @property
    def n_outcomes(self) -> int:
        """Variant paper: number of classes, or of buckets of a number."""
        return self.n_buckets if isinstance(self.label, Numeric) else len(self.label.values)

    @cached_property
    def coded_schema(self) -> Schema:
        """The schema with public cells for every number: the coding of variant plus."""
        return code_schema(self.schema)

    @cached_property
    def arities(self) -> tuple[int, ...]:
        """Number of cells of each feature, including the cell for missing values."""
        return tuple(feature.n_bins or 0 for feature in self.coded_schema.features)

    @cached_property
    def starts(self) -> Ints:
        """First cell of each feature among all cells, ``(k + 1,)``; the last entry is D."""
        return np.concatenate([[0], np.cumsum(self.arities)]).astype(np.int64)

    @property
    def n_cells(self) -> int:
        """D: number of cells of all features."""
        return sum(self.arities)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that a release depends on."""
        return (*self.schema.names, self.label.name)

    @property
    def n_honest(self) -> int:
        """Number of noise shares in a sum that the adversary does not know.

        Each share is scaled so that this many of them are enough.
        """
        return 1 if self.trust == "local" else self.minimum - self.max_colluders

    @property
    def scope(self) -> Scope:
        """Unit, neighbouring relation and adversary of the epsilon of a release."""
        return Scope(Unit(self.unit), Relation.ADD_REMOVE, self._adversary)

    @property
    def _adversary(self) -> str:
        if self.trust == "local":
            return "all who read the release"
        if self.max_colluders == 0:
            # A holder can subtract its own share of the noise, so it counts as one colluder.
            return "all who read the sums or the release and hold none of the data"
        return (
            "all who read the sums or the release, and up to "
            f"{format_count(self.max_colluders, 'colluding holder')}"
        )


@dataclass(frozen=True)
class PFDSRows:
    """Rows in the public coding, of one holder or, in a simulation, of several.

    Parameters
    ----------
    cells
        ``(n, k)`` the cell of each feature among all cells of all features.
    sides
        ``(n, n_sides)`` units that the row adds to each side of its cells; they sum to `GRID`.
    owners
        ``(n,)`` the holder of each row, counted from 0; None if all rows have the same holder.
    """

    cells: Ints
    sides: Ints
    owners: Ints | None = None

    def __post_init__(self) -> None:
        # Prices rely on the contribution of a row to a sum, so it is checked for all callers.
        is_whole = (self.sides >= 0).all() and (self.sides.sum(axis=1) == GRID).all()
        if not is_whole or (self.cells < 0).any():
            raise LocalProtocolError(
                "PFDS-005",
                "The rows do not consist of encoded columns and labels.",
                fix="Use PFDSRows.from_columns(params, columns, labels).",
            )

    def __len__(self) -> int:
        return len(self.cells)

    @classmethod
    def from_columns(
        cls,
        params: PFDSParams,
        columns: Mapping[str, npt.NDArray[Any]],
        labels: npt.NDArray[Any],
        owners: Ints | None = None,
    ) -> PFDSRows:
        """Return the rows of columns and labels that ``schema.encode`` produced.

        The labels are the output of ``schema.encode_label``.
        """
        return cls(encode_cells(params, columns), encode_sides(params, labels), owners)

    def take(self, which: npt.NDArray[Any]) -> PFDSRows:
        """Return the selected rows."""
        return replace(
            self,
            cells=self.cells[which],
            sides=self.sides[which],
            owners=None if self.owners is None else self.owners[which],
        )


def encode_cells(params: PFDSParams, columns: Mapping[str, npt.NDArray[Any]]) -> Ints:
    """Return the cell of each feature among all cells, ``(n, k)``.

    An undeclared category gets the last cell of its feature.
    """
    return cut(params.coded_schema, columns) + params.starts[:-1]


def encode_sides(params: PFDSParams, labels: npt.NDArray[Any]) -> Ints:
    """Return the units that each row adds to the sides of its cells, ``(n, n_sides)``.

    A row adds all its units to the side of its class. A number adds its share of the range to the
    second side, and the rest to the first.
    """
    if isinstance(params.label, Numeric):
        low, high = float(params.label.low), float(params.label.high)
        share = np.rint(GRID * ((np.clip(labels, low, high) - low) / (high - low))).astype(np.int64)
        return np.stack([GRID - share, share], axis=1)
    whole: Ints = GRID * np.eye(params.n_sides, dtype=np.int64)[labels]
    return whole


def check_sum_parameters(params: PFDSParams, sum_params: SumParameters) -> None:
    """Raise unless the roster and threshold of a secure sum fit the study's guarantee.

    Notes
    -----
    Two lists of survivors must have an honest signer in common, and the noise of the honest holders
    among the survivors must be in the sum.
    """
    n, minimum, colluders = len(sum_params.roster), params.minimum, params.max_colluders
    if n != params.n_holders or sum_params.threshold != minimum or 2 * minimum <= n + colluders:
        raise LocalProtocolError(
            "PROTO-001",
            f"A secure sum of {n} holders with threshold {sum_params.threshold} does not fit the "
            f"study of {params.n_holders} holders.",
            why=f"The study has a minimum of {minimum} holders and up to {colluders} colluders.",
        )


def check_prices(params: PFDSParams, prices: Mapping[str, Event]) -> Mapping[str, Event]:
    """Return the prices of all questions if together they are within the study's budget.

    An aggregator may ask all of them.
    """
    if params.is_noiseless:
        raise LocalProtocolError(
            "PROTO-001",
            "A holder cannot answer without noise.",
            why="Such an answer has no price that a participant could agree to.",
            fix="Set a finite epsilon in the study; only simulations run without noise.",
        )
    if params.delta:
        # A study with a delta has no release without a rho.
        rhos = (math.inf if event.rho is None else event.rho for event in prices.values())
        is_within = math.fsum(rhos) <= epsilon_to_rho(params.epsilon, params.delta)
    else:
        is_within = sum(grains_up(event.epsilon) for event in prices.values()) <= grains_up(
            params.epsilon
        )
    if not is_within:
        raise LocalProtocolError(
            "PROTO-001", "The questions of the study cost more together than its budget."
        )
    return prices
