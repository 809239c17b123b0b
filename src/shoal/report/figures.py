"""Measures, intervals and guarantees as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shoal.privacy.rounding import show
from shoal.report.charts import Axis
from shoal.report.details import Guarantee, Mean
from shoal.report.documents import Audit, Entry
from shoal.report.markup import Markup, tag

NAMES = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "f1": "f1",
    "rmse": "RMSE",
    "mean_absolute_error": "mean absolute error",
    "r_squared": "R squared",
}
SHARES = ("accuracy", "auc", "f1")
"""Measures from 0 to 1, the larger the better."""
_FALLING = ("rmse", "mean_absolute_error")
Scoped = Guarantee | Entry | Audit
"""What has an epsilon, and says what it speaks about."""
_PER = {"person": "per person", "record": "per record", "update": "per update", "weight": "per weight of an update"}
_NEIGHBOURS = {"replace": "replace one", "add-remove": "add or remove one"}

# Student's t at 97.5 %, by degrees of freedom; beyond, an expansion in their reciprocal is exact to four digits.
_QUANTILES = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip
_Z = 1.959964


def name_of(measure: str) -> str:
    """A measure as people call it."""
    return NAMES.get(measure, measure)


def is_falling(measure: str) -> bool:
    """Whether less is better."""
    return measure in _FALLING


def measure_axis(measure: str, *, is_whole: bool) -> Axis:
    """An axis for a measure; of a share all of it, from 0 to 1, where that is asked for."""
    name = f"{name_of(measure)} (less is better)" if is_falling(measure) else name_of(measure)
    low, high = (0.0, 1.0) if is_whole and measure in SHARES else (None, None)
    return Axis(name, "share" if measure == "accuracy" else "number", low=low, high=high)


def figure(measure: str, value: float) -> str:
    """A measure's value: accuracy in per cent, other shares with three decimals, the rest with four digits that count.

    Examples
    --------
    >>> figure("accuracy", 0.8412), figure("auc", 0.8412), figure("rmse", 1234.56)
    ('84.1 %', '0.841', '1235')
    """
    if measure == "accuracy":
        return f"{100 * value:.1f} %"
    if measure in SHARES or measure == "r_squared":
        return f"{round(value, 3) + 0.0:.3f}"
    return f"{value:.4g}"


def exact(measure: str, value: float) -> Markup:
    """A value for people, on one line, with the value itself for programs."""
    return tag("data", figure(measure, value).replace(" ", "\N{NO-BREAK SPACE}"), value=repr(value))


def t_quantile(n_runs: int) -> float:
    """By how many standard errors of a mean over runs its 95 % interval reaches to each side (Student's t).

    Examples
    --------
    >>> round(t_quantile(3), 3), round(t_quantile(101), 3)
    (4.303, 1.984)
    """
    v = n_runs - 1
    if v <= len(_QUANTILES):
        return _QUANTILES[v - 1]
    z = _Z
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
    return z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2) + third


def interval(measure: str, mean: Mean, n_runs: int) -> tuple[float, float] | None:
    """The 95 % interval of a mean over runs; None of one run. A share stays within 0 and 1."""
    if mean.error is None or n_runs < 2:
        return None
    reach = t_quantile(n_runs) * mean.error
    low, high = mean.value - reach, mean.value + reach
    return (max(low, 0.0), min(high, 1.0)) if measure in SHARES else (max(low, 0.0) if is_falling(measure) else low, high)


def interval_words(measure: str, found: tuple[float, float] | None) -> str:
    """An interval in words; empty where there is none."""
    return "" if found is None else f"{figure(measure, found[0])} to {figure(measure, found[1])}"


def scope_words(of: Scoped) -> str:
    """What an epsilon speaks about: unit, neighbouring relation and adversary."""
    unit = _PER.get(of.unit, of.unit)
    return f"{unit}; neighbours: {_NEIGHBOURS.get(of.relation, of.relation)}; against {of.adversary}"


def epsilon_words(of: Scoped) -> str:
    """An epsilon, with its delta where there is one."""
    return f"epsilon {show(of.epsilon)}" + (f", delta {show(of.delta)}" if of.delta else "")


def epsilon_axis(of: Scoped) -> str:
    """The name of an axis of epsilons."""
    return f"epsilon {_PER.get(of.unit, of.unit)} ({_NEIGHBOURS.get(of.relation, of.relation)})"


def guarantee_words(of: Scoped) -> str:
    """A guarantee in one line."""
    return f"{epsilon_words(of)} {scope_words(of)}"


def main_measure(scores: Mapping[str, object]) -> str:
    """The measure that stands for all."""
    return next((name for name in ("accuracy", "rmse") if name in scores), next(iter(scores)))


def number(value: float) -> str:
    """Any number, with four digits that count."""
    return f"{value:,.0f}" if abs(value) >= 10_000 or (value == math.floor(value) and abs(value) < 1e9) else f"{value:.4g}"
