"""Format measures, intervals and guarantees; colours; verdicts.

Sections of the report, the statement and the commands that print figures all use this module, so
that the same value looks the same everywhere. A verdict about a mean must use its interval: no
other module compares means with baselines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from shoal.privacy.rounding import format_epsilon
from shoal.report.charts import Axis
from shoal.report.documents import AuditDocument, ComparisonEntry, ScoreMean, StatedGuarantee
from shoal.report.html import Markup, tag
from shoal.study.registry import PROTOCOLS

MEASURE_NAMES = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "f1": "f1",
    "rmse": "RMSE",
    "mean_absolute_error": "mean absolute error",
    "r_squared": "R squared",
}
SHARE_MEASURES = ("accuracy", "auc", "f1")
"""Measures from 0 to 1; higher is better."""
_LOWER_IS_BETTER = ("rmse", "mean_absolute_error")
ScopedEpsilon = StatedGuarantee | ComparisonEntry | AuditDocument
"""A record with an epsilon and the scope that the epsilon is for."""
_UNIT_TEXTS = {
    "person": "per person",
    "record": "per record",
    "update": "per update",
    "weight": "per weight of an update",
}
_RELATION_TEXTS = {"replace": "replace one", "add-remove": "add or remove one"}

# The 97.5 % quantile of Student's t, by degrees of freedom. For more degrees of freedom, an
# expansion in their reciprocal is exact to four digits.
_QUANTILES = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip
_Z = 1.959964


def get_measure_name(measure: str) -> str:
    """Return the display name of a measure."""
    return MEASURE_NAMES.get(measure, measure)


def is_lower_better(measure: str) -> bool:
    """Return whether a lower value of the measure is better."""
    return measure in _LOWER_IS_BETTER


def make_measure_axis(measure: str, *, is_whole: bool) -> Axis:
    """Return the axis of a measure; `is_whole` gives a share the range from 0 to 1."""
    name = (
        f"{get_measure_name(measure)} (lower is better)"
        if is_lower_better(measure)
        else get_measure_name(measure)
    )
    low, high = (0.0, 1.0) if is_whole and measure in SHARE_MEASURES else (None, None)
    return Axis(name, "share" if measure == "accuracy" else "number", low=low, high=high)


def format_measure(measure: str, value: float) -> str:
    """Format a value of a measure.

    Accuracy is in per cent, other shares have three decimals, and the rest four significant digits.

    Examples
    --------
    >>> (
    ...     format_measure("accuracy", 0.8412),
    ...     format_measure("auc", 0.8412),
    ...     format_measure("rmse", 1234.56),
    ... )
    ('84.1 %', '0.841', '1235')
    """
    if measure == "accuracy":
        return f"{100 * value:.1f} %"
    if measure in SHARE_MEASURES or measure == "r_squared":
        return f"{round(value, 3) + 0.0:.3f}"
    return f"{value:.4g}"


def format_exact(measure: str, value: float) -> Markup:
    """Return a ``data`` element: the formatted value, with the exact value for programs."""
    return tag(
        "data", format_measure(measure, value).replace(" ", "\N{NO-BREAK SPACE}"), value=repr(value)
    )


def compute_t_quantile(n_runs: int) -> float:
    """Return the factor of the standard error in a 95 % interval of a mean over runs.

    It is the 97.5 % quantile of Student's t with ``n_runs - 1`` degrees of freedom.

    Examples
    --------
    >>> round(compute_t_quantile(3), 3), round(compute_t_quantile(101), 3)
    (4.303, 1.984)
    """
    v = n_runs - 1
    if v <= len(_QUANTILES):
        return _QUANTILES[v - 1]
    z = _Z
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2) + third


def compute_interval(measure: str, mean: ScoreMean, n_runs: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean over runs; None for a single run.

    The interval of a share is clipped to 0 and 1.
    """
    if mean.error is None or n_runs < 2:
        return None
    reach = compute_t_quantile(n_runs) * mean.error
    low, high = mean.value - reach, mean.value + reach
    return (
        (max(low, 0.0), min(high, 1.0))
        if measure in SHARE_MEASURES
        else (max(low, 0.0) if is_lower_better(measure) else low, high)
    )


def format_interval(measure: str, bounds: tuple[float, float] | None) -> str:
    """Format an interval; empty if there is none."""
    return (
        ""
        if bounds is None
        else f"{format_measure(measure, bounds[0])} to {format_measure(measure, bounds[1])}"
    )


def format_scope(guarantee: ScopedEpsilon) -> str:
    """Format the scope of an epsilon: unit, neighbouring relation and adversary."""
    unit = _UNIT_TEXTS.get(guarantee.unit, guarantee.unit)
    return (
        f"{unit}; neighbours: {_RELATION_TEXTS.get(guarantee.relation, guarantee.relation)}; "
        f"against {guarantee.adversary}"
    )


def format_epsilon_delta(guarantee: ScopedEpsilon) -> str:
    """Format an epsilon, and its delta if that is positive."""
    return f"epsilon {format_epsilon(guarantee.epsilon)}" + (
        f", delta {format_epsilon(guarantee.delta)}" if guarantee.delta else ""
    )


def format_epsilon_axis(guarantee: ScopedEpsilon) -> str:
    """Return the name of an axis for epsilons."""
    return (
        f"epsilon {_UNIT_TEXTS.get(guarantee.unit, guarantee.unit)} "
        f"({_RELATION_TEXTS.get(guarantee.relation, guarantee.relation)})"
    )


def format_guarantee(guarantee: ScopedEpsilon) -> str:
    """Format a guarantee on one line."""
    return f"{format_epsilon_delta(guarantee)} {format_scope(guarantee)}"


def choose_main_measure(scores: Mapping[str, object]) -> str:
    """Return the measure that a summary shows first."""
    return next((name for name in ("accuracy", "rmse") if name in scores), next(iter(scores)))


def format_number(value: float) -> str:
    """Format a number with four significant digits, or as a whole number."""
    return (
        f"{value:,.0f}"
        if abs(value) >= 10_000 or (value == math.floor(value) and abs(value) < 1e9)
        else f"{value:.4g}"
    )


# The palette of Okabe and Ito: people with any kind of colour vision can distinguish these colours.
PROTOCOL_COLOURS = dict(zip(PROTOCOLS, ("#0072b2", "#d55e00", "#009e73", "#cc79a7"), strict=False))
"""Colours of the protocols in the order of the registry; the same everywhere."""
GREY = "#7a7f87"
"""Colour of baselines, which belong to no protocol."""
CLASS_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Colours of the classes of a label; each is shown next to the name of its class."""


def get_protocol_colour(protocol: str) -> str:
    """Return the colour of a protocol; grey for any other name.

    Examples
    --------
    >>> get_protocol_colour(next(iter(PROTOCOLS))), get_protocol_colour("guessing")
    ('#0072b2', '#7a7f87')
    """
    return PROTOCOL_COLOURS.get(protocol, GREY)


def get_class_colour(position: int) -> str:
    """Return the colour of a class by position; grey beyond the distinguishable ones."""
    return CLASS_COLOURS[position] if position < len(CLASS_COLOURS) else GREY


Verdict = Literal["worse", "unsure", "better"]
_MAX_DIGITS = 12


def compare_with_guessing(measure: str, mean: ScoreMean, n_runs: int, guess: float) -> Verdict:
    """Return whether a mean is worse than guessing, better, or neither for sure.

    A mean is worse or better only if its whole 95 % interval over runs is. A single run has no
    interval and is never called worse.

    Examples
    --------
    >>> [
    ...     compare_with_guessing("accuracy", ScoreMean(value=value, error=0.01), 5, 0.8)
    ...     for value in (0.7, 0.79, 0.8, 0.9)
    ... ]
    ['worse', 'unsure', 'unsure', 'better']
    """
    sign = -1 if is_lower_better(measure) else 1
    ends = [sign * end for end in compute_interval(measure, mean, n_runs) or (mean.value,)]
    if max(ends) < sign * guess and n_runs > 1:
        return "worse"
    return "better" if min(ends) > sign * guess else "unsure"


def format_distinct(values: Sequence[float], write: Callable[[float, int], str]) -> list[str]:
    """Format values with enough digits to make different values look different.

    Parameters
    ----------
    write
        Formats a value with a number of additional digits.
    """
    for n_more in range(_MAX_DIGITS):
        texts = [write(value, n_more) for value in values]
        if len(set(texts)) == len(set(values)):
            return texts
    return [repr(value) for value in values]


def format_measures(measure: str, *values: float) -> list[str]:
    """Format values of a measure, with more digits than usual if two would look equal.

    Examples
    --------
    >>> format_measures("accuracy", 0.7731, 0.7734), format_measures("accuracy", 0.8, 0.7734)
    (['77.31 %', '77.34 %'], ['80.0 %', '77.3 %'])
    """

    def write(value: float, n_more: int) -> str:
        if not n_more:
            return format_measure(measure, value)
        if measure == "accuracy":
            return f"{100 * value:.{1 + n_more}f} %"
        return f"{value:.{4 + n_more}g}"

    return format_distinct(values, write)


def explain_above_no_privacy(measure: str, value: float, free: float, n_unseen: int) -> str:
    """Return a remark if a private model is better than one without privacy.

    The remark is empty if it is not better.
    """
    sign = -1 if is_lower_better(measure) else 1
    if sign * value <= sign * free:
        return ""
    return (
        "better than without privacy; the cause may be chance in the "
        f"{n_unseen:,} held-out rows, or the different kind of model"
    )
