"""Forecasts from the numbers of a study alone, without rows.

``shoal check --target error=...`` calls `forecast_closed_form`. Without rows only the error of
tables and weights can be forecast, not how well a model predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from shoal.simulation.forecast import EPSILONS, SIZES, list_values_around
from shoal.simulation.forecast.points import is_possible
from shoal.simulation.forecast.target import RequiredSize, Target
from shoal.simulation.sweep import vary
from shoal.study.plan import Plan, make_plan
from shoal.study.registry import get_protocol
from shoal.study.settings import MAX_COUNT
from shoal.study.spec import Study

ERROR = "error"
"""The only measure of a forecast without rows."""


def compute_error(plan: Plan) -> float:
    """Return the error of the worst table or weight.

    Notes
    -----
    The plan forecasts it. If the protocol releases counts, their noise does not fall as more rows
    are counted, but the counts grow: the error is the noise as a share of an average count.
    """
    worst = plan.forecasts[-1]
    measure = get_protocol(plan.study).get_error_measure(plan.study)
    return worst.value / (2 * worst.useless_from) if measure.is_count else worst.value


def forecast_closed_form(
    study: Study, sizes: Sequence[int], epsilons: Sequence[float], target: Target | None
) -> dict[str, Any]:
    """Return the error for each size and epsilon, and the size at which it reaches a target."""
    declared = study.participation.size
    sizes = sorted(set(sizes)) or list_values_around(study, "size", declared, SIZES)
    epsilons = sorted(set(epsilons)) or list_values_around(
        study, "epsilon", study.privacy.epsilon, EPSILONS
    )
    points = [
        {"size": size, "epsilon": epsilon, "total": plan.loss.to_dict(), ERROR: compute_error(plan)}
        for size in sizes
        for epsilon in epsilons
        for plan in [make_plan(vary(study, {"size": size, "epsilon": epsilon}))]
    ]
    return {
        "measure": ERROR,
        "what": get_protocol(study).get_error_measure(study).description,
        "points": points,
        "target": None
        if target is None
        else {**asdict(target), **asdict(_find_required_size(study, target.value))},
    }


def _find_required_size(study: Study, value: float) -> RequiredSize:
    """Return the smallest size with an error of at most `value`, within one percent.

    The search doubles the size, and then bisects.
    """

    def is_enough(size: int) -> bool:
        return (
            is_possible(study, {"size": size})
            and compute_error(make_plan(vary(study, {"size": size}))) <= value
        )

    high = 1
    while not is_enough(high):
        if 2 * high > MAX_COUNT:
            return RequiredSize(None, None, None, 1, high)
        high *= 2
    low = high // 2
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return RequiredSize(high, high, high, 1, high)
