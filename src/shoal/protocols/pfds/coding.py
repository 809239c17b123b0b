"""The public coding of the schema: which cells a number is cut into, by its range alone."""

from __future__ import annotations

import math
from dataclasses import replace

from shoal.domain import Feature, Numeric, Schema

CELLS_OF_A_NUMBER = 8
"""Equal widths of a range that is neither narrow nor wide; halvings of a wide one."""
MOST_WHOLE_NUMBERS = 24
"""A range between whole numbers that holds four to so many of them has a cell for each; one of fewer may well be a range of fractions."""
WIDE = 2_000
"""A wider range is cut by magnitudes: amounts of money and counts have a few large values and many small ones."""
_BELOW_ZERO = -math.ulp(0.0)


def coded(feature: Feature) -> Feature:
    """The feature with public cells: its own bins, or those that follow from its range.

    Notes
    -----
    Nothing here looks at a row, so it is free, and the same for every holder.

    Examples
    --------
    >>> coded(Numeric("floor", 0, 3)).bins, coded(Numeric("age", 0, 80)).bins[:2], coded(Numeric("gain", 0, 12800)).bins[:4]
    ((0.5, 1.5, 2.5), (10.0, 20.0), (0.0, 100.0, 200.0, 400.0))
    """
    if not isinstance(feature, Numeric) or feature.bins is not None:
        return feature
    low, high = float(feature.low), float(feature.high)
    width = high - low
    if low.is_integer() and high.is_integer() and 2 < width < MOST_WHOLE_NUMBERS:
        cuts = {low + i + 0.5 for i in range(int(width))}
    elif width > WIDE and CELLS_OF_A_NUMBER * max(low, -high) <= max(abs(low), abs(high)):
        cuts = _magnitudes(low, high)
    else:
        # Also where a wide range lies far from 0, as dates do: it would span few magnitudes.
        cuts = {low + width / CELLS_OF_A_NUMBER * i for i in range(1, CELLS_OF_A_NUMBER)}
    return replace(feature, bins=tuple(sorted(cut for cut in cuts if low <= cut < high)))


def coded_schema(schema: Schema) -> Schema:
    """The schema with public cells for every number."""
    return replace(schema, features=tuple(map(coded, schema.features)))


def _magnitudes(low: float, high: float) -> set[float]:
    """Halvings of the largest magnitude, on both sides of 0, which has a cell of its own."""
    largest = max(abs(low), abs(high))
    sizes = [largest * 2.0**-j for j in range(1, CELLS_OF_A_NUMBER)]
    cuts = {*sizes, *(-size for size in sizes)}
    return cuts | {_BELOW_ZERO, 0.0} if low <= 0 <= high else cuts
