"""Where a number is drawn, and which numbers an axis names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0, 20.0, 25.0)
_HAIR = 0.02
"""Of a step: what reaches beyond a round number by no more is drawn at it."""
_DECADES = 2.5
"""From so many powers of ten on, an axis names these only."""
_MOST_LOG_TICKS = 9


@dataclass(frozen=True)
class Axis:
    """What is shown along one side of a chart.

    Parameters
    ----------
    name
        What it is, with its unit; an epsilon also with its neighbouring relation.
    kind
        How numbers are written: as they are, or shares as per cent.
    is_log
        Whether equal steps are equal factors; numbers must be positive then.
    low, high
        What it must reach at least; the numbers shown may widen it.
    ticks
        The numbers to name; None where any round ones will do.
    """

    name: str
    kind: Literal["number", "share"] = "number"
    is_log: bool = False
    low: float | None = None
    high: float | None = None
    ticks: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Scale:
    """An axis with numbers on it: from `low` at `start` to `high` at `end`, in units of the picture."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Where a number is drawn; at the edge if it is beyond."""
        inside = min(max(value, self.low), self.high)
        low, high, here = (math.log(x) if self.is_log else x for x in (self.low, self.high, inside))
        return self.start + (self.end - self.start) * (here - low) / (high - low)


def scale_for(axis: Axis, values: Sequence[float], start: float, end: float) -> Scale:
    """A scale on which all of some numbers have a place."""
    given = [*values, *(edge for edge in (axis.low, axis.high) if edge is not None)]
    low, high = min(given, default=0.0), max(given, default=1.0)
    if axis.is_log:
        if low == high:
            low, high = low / 2, high * 2
        shown = axis.ticks or log_ticks(low, high)
        return Scale(low, high, start, end, True, tuple(tick for tick in shown if low <= tick <= high))
    if low == high:
        low, high = low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)
    if axis.ticks is not None:
        return Scale(low, high, start, end, False, tuple(tick for tick in axis.ticks if low <= tick <= high))
    # Round numbers at both ends, unless an end is fixed.
    step = _step(low, high)
    low = low if low == axis.low else math.floor(low / step + _HAIR) * step
    high = high if high == axis.high else math.ceil(high / step - _HAIR) * step
    return Scale(low, high, start, end, False, _multiples(step, low, high))


def _step(low: float, high: float, most: int = 6) -> float:
    """The smallest round step that covers low to high, both ends rounded outwards, at most so many times."""
    unit = 10.0 ** math.floor(math.log10((high - low) / most))
    steps = (factor * unit for factor in _STEPS)
    return next(step for step in steps if math.ceil(high / step - _HAIR) - math.floor(low / step + _HAIR) <= most)


def _multiples(step: float, low: float, high: float) -> tuple[float, ...]:
    return tuple(round(i * step, 12) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1))


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Powers of ten from low to high, with 2 and 5 times each where they are few.

    Examples
    --------
    >>> log_ticks(0.4, 12), log_ticks(1, 10_000)
    ((0.5, 1.0, 2.0, 5.0, 10.0), (1.0, 10.0, 100.0, 1000.0, 10000.0))
    """
    span = math.log10(high / low)
    factors = (1.0,) if span > _DECADES else (1.0, 2.0, 5.0)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [round(factor * 10.0**decade, 12) for decade in decades for factor in factors]
    inside = [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    every = -(-len(inside) // _MOST_LOG_TICKS) or 1
    return tuple(inside[::every])


def words(ticks: Sequence[float], axis: Axis) -> list[str]:
    """The numbers of an axis as they are written, all with as many decimals as they need to differ.

    Examples
    --------
    >>> words([0.0, 0.25, 0.5], Axis("accuracy", "share")), words([500, 1000], Axis("updates"))
    (['0 %', '25 %', '50 %'], ['500', '1,000'])
    """
    numbers = [100 * tick for tick in ticks] if axis.kind == "share" else list(ticks)
    unit = " %" if axis.kind == "share" else ""
    if axis.is_log or any(abs(x) >= 1e6 or 0 < abs(x) < 1e-4 for x in numbers):
        return [f"{x:,.6g}{unit}" if 1e-4 <= abs(x) < 1e6 or x == 0 else f"{x:.3g}{unit}" for x in numbers]
    digits = next(n for n in range(13) if n == 12 or all(abs(round(x, n) - x) <= 1e-9 * max(1.0, abs(x)) for x in numbers))
    return [f"{x + 0.0:,.{digits}f}{unit}" for x in numbers]
