"""How many participants a study needs for a result: where the forecast, as a function of the size, crosses what is wanted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.errors import UsageError
from shoal.names import shown
from shoal.sim.forecast_interval import SMALLER_IS_BETTER, Interval
from shoal.sim.forecast_points import Points, is_possible, n_rows_of
from shoal.sim.sweep import Settings, vary

SEARCHED_ROWS = 200_000
"""Larger populations are not searched, unless they are asked for."""
_MOST_STEPS = 8
_SMALLEST = 20


@dataclass(frozen=True)
class Target:
    """A measure, and the value that it should reach."""

    measure: str
    value: float


@dataclass(frozen=True)
class Needed:
    """How many are needed for a target.

    Parameters
    ----------
    n
        Size at which the target is what is expected.
    low, high
        Below ``low`` even the better end of the interval misses the target; from ``high`` on even the worse end has it. Of all three:
        None where no size that was tried is large enough, and the smallest one where each is.
    smallest, largest
        Sizes that were tried.
    without_privacy
        The measure without any privacy, by the best of what a study is held against; None where that is not known.
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
    """The target in words such as ``accuracy=0.8``.

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
        what = f"--target {shown(text[:60])} is not a measure of this study and a number."
        raise UsageError("USAGE-001", what, fix=f"--target {measures[0]}=NUMBER; the measures are {', '.join(measures)}.")
    return Target(measure, number)


def reach(points: Points, target: Target, sizes: Sequence[int], without_privacy: float | None) -> Needed:
    """Search the sizes at which a target is reached, from those that were forecast, doubling and halving them where that is not enough.

    Parameters
    ----------
    points
        Gets the sizes that are tried, with the study's own epsilon.
    target
        What is wanted.
    sizes
        Where to begin.
    without_privacy
        What the measure is without privacy; None where that is not known.
    """
    tried = sorted(set(sizes))
    sign = -1 if target.measure in SMALLER_IS_BETTER else 1
    wanted = sign * target.value
    for _ in range(_MOST_STEPS):
        _, worse, better = _curves(points, target.measure, tried)
        is_beyond = without_privacy is not None and max(sign * without_privacy, better[-1]) < wanted
        is_early, is_late = better[0] >= wanted and tried[0] >= 2 * _SMALLEST, worse[-1] < wanted and not is_beyond
        step = tried[0] // 2 if is_early else 2 * tried[-1] if is_late else 0
        if not step or not is_possible(points.study, {"size": step}) or n_rows_of(vary(points.study, {"size": step})) > SEARCHED_ROWS:
            break
        tried = sorted([*tried, step])
    expected, worse, better = _curves(points, target.measure, tried)
    n, low, high = (_crossing(tried, curve, wanted) for curve in (expected, better, worse))
    is_beyond = without_privacy is not None and max(sign * without_privacy, better[-1]) < wanted
    return Needed(n, low, high, tried[0], tried[-1], without_privacy, is_beyond)


def _curves(points: Points, measure: str, sizes: Sequence[int]) -> tuple[list[float], list[float], list[float]]:
    """What is expected, the worse end and the better end at each size, turned so that more is better, and never falling."""
    settings: list[Settings] = [{"size": size} for size in sizes]
    points.add(settings)
    found = points.intervals(measure, settings)
    if measure in SMALLER_IS_BETTER:
        found = [Interval(-one.value, -one.high, -one.low) for one in found]
    return rising([one.value for one in found]), rising([one.low for one in found]), rising([one.high for one in found])


def rising(values: Sequence[float]) -> list[float]:
    """The rising sequence that is nearest in squares: those that fall are replaced by their mean.

    Examples
    --------
    >>> rising([1.0, 3.0, 2.0, 4.0])
    [1.0, 2.5, 2.5, 4.0]
    """
    blocks: list[tuple[float, int]] = []
    for value in values:
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, n), (b, m) = blocks[-2:]
            blocks[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return [value for value, n in blocks for _ in range(n)]


def _crossing(sizes: Sequence[int], curve: Sequence[float], value: float) -> int | None:
    """The size at which a rising curve has a value, between sizes by their logarithm; the smallest where all have it, None where none."""
    if curve[-1] < value:
        return None
    after = next(i for i, one in enumerate(curve) if one >= value)
    if after == 0:
        return sizes[0]
    low, high = math.log(sizes[after - 1]), math.log(sizes[after])
    share = (value - curve[after - 1]) / (curve[after] - curve[after - 1])
    return round(math.exp(low + share * (high - low)))
