"""The number of participants that a study needs to reach a score.

`shoal.simulation.forecast` calls `find_required_size`, which finds the size at which the forecast
crosses the target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import UsageError
from shoal.simulation.forecast.intervals import SMALLER_IS_BETTER, PredictionInterval
from shoal.simulation.forecast.points import ForecastPoints, count_rows, is_possible
from shoal.simulation.sweep import Settings, vary
from shoal.text import escape_text

MAX_SEARCH_ROWS = 200_000
"""Rows of the largest population that a search tries."""
_MAX_STEPS = 8
_SMALLEST = 20


@dataclass(frozen=True)
class Target:
    """A measure and the value to reach."""

    measure: str
    value: float


@dataclass(frozen=True)
class RequiredSize:
    """The size that a target needs.

    Parameters
    ----------
    n
        Size with the target as its expected score.
    low, high
        Below ``low`` even the better end of the interval misses the target; from ``high`` on even
        the worse end reaches it. `n`, `low` and `high` are None if no tried size is large enough,
        and the smallest size if each is.
    smallest, largest
        Smallest and largest size that was tried.
    without_privacy
        The measure of the best model without privacy; None if it is not known.
    is_beyond
        Whether the target is better than that, and than the better end of all intervals.
    """

    n: int | None
    low: int | None
    high: int | None
    smallest: int
    largest: int
    without_privacy: float | None = None
    is_beyond: bool = False


def parse_target(text: str, measures: Sequence[str]) -> Target:
    """Parse a target such as ``accuracy=0.8``.

    Examples
    --------
    >>> parse_target("auc = 0.75", ["accuracy", "auc"])
    Target(measure='auc', value=0.75)
    """
    measure, sign, value = (part.strip() for part in text.partition("="))
    try:
        number = math.nan if "_" in value else float(value)
    except ValueError:
        number = math.nan
    if measure not in measures or not sign or not math.isfinite(number):
        what = f"--target {escape_text(text[:60])} is not a measure of this study and a number."
        raise UsageError(
            "USAGE-001",
            what,
            fix=f"Give --target {measures[0]}=NUMBER; the measures are {', '.join(measures)}.",
        )
    return Target(measure, number)


def find_required_size(
    points: ForecastPoints, target: Target, sizes: Sequence[int], without_privacy: float | None
) -> RequiredSize:
    """Search for the size at which a target is reached.

    The search begins with the given sizes, and doubles or halves them if necessary.

    Parameters
    ----------
    points
        Receives each tried size, with the study's epsilon.
    without_privacy
        The measure without privacy; None if it is not known.
    """
    tried = sorted(set(sizes))
    sign = -1 if target.measure in SMALLER_IS_BETTER else 1
    wanted = sign * target.value
    for _ in range(_MAX_STEPS):
        _, worse, better = _compute_curves(points, target.measure, tried)
        is_beyond = without_privacy is not None and max(sign * without_privacy, better[-1]) < wanted
        is_early, is_late = (
            better[0] >= wanted and tried[0] >= 2 * _SMALLEST,
            worse[-1] < wanted and not is_beyond,
        )
        step = tried[0] // 2 if is_early else 2 * tried[-1] if is_late else 0
        if (
            not step
            or not is_possible(points.study, {"size": step})
            or count_rows(vary(points.study, {"size": step})) > MAX_SEARCH_ROWS
        ):
            break
        tried = sorted([*tried, step])
    expected, worse, better = _compute_curves(points, target.measure, tried)
    n, low, high = (_find_crossing(tried, curve, wanted) for curve in (expected, better, worse))
    is_beyond = without_privacy is not None and max(sign * without_privacy, better[-1]) < wanted
    return RequiredSize(n, low, high, tried[0], tried[-1], without_privacy, is_beyond)


def _compute_curves(
    points: ForecastPoints, measure: str, sizes: Sequence[int]
) -> tuple[list[float], list[float], list[float]]:
    """Return the expected score and both ends of its interval at each size.

    Signs are changed so that more is better, and the curves never fall.
    """
    settings: list[Settings] = [{"size": size} for size in sizes]
    points.add(settings)
    intervals = points.compute_intervals(measure, settings)
    if measure in SMALLER_IS_BETTER:
        intervals = [
            PredictionInterval(-interval.value, -interval.high, -interval.low)
            for interval in intervals
        ]
    return (
        fit_isotonic([interval.value for interval in intervals]),
        fit_isotonic([interval.low for interval in intervals]),
        fit_isotonic([interval.high for interval in intervals]),
    )


def fit_isotonic(values: Sequence[float]) -> list[float]:
    """Return the nearest rising sequence in least squares.

    Examples
    --------
    >>> fit_isotonic([1.0, 3.0, 2.0, 4.0])
    [1.0, 2.5, 2.5, 4.0]
    """
    blocks: list[tuple[float, int]] = []
    for value in values:
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, n), (b, m) = blocks[-2:]
            blocks[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return [value for value, n in blocks for _ in range(n)]


def _find_crossing(sizes: Sequence[int], curve: Sequence[float], value: float) -> int | None:
    """Return the size at which a rising curve reaches a value; None if it never does.

    Between sizes the curve is linear in the logarithm of the size.
    """
    if curve[-1] < value:
        return None
    after = next(i for i, level in enumerate(curve) if level >= value)
    if after == 0:
        return sizes[0]
    low, high = math.log(sizes[after - 1]), math.log(sizes[after])
    share = (value - curve[after - 1]) / (curve[after] - curve[after - 1])
    return round(math.exp(low + share * (high - low)))
