"""What can be forecast from public figures alone, without a row: the error of tables and weights, and never how well a model predicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from shoal.sim.forecast import EPSILONS, SIZES, around
from shoal.sim.forecast_points import is_possible
from shoal.sim.forecast_target import Needed, Target
from shoal.sim.sweep import vary
from shoal.study.plan import Plan, make_plan
from shoal.study.spec import Study
from shoal.study.values import MAX_COUNT

ERROR = "error"
"""The one measure of a forecast without rows."""


def error_of(plan: Plan) -> float:
    """The error of the worst of what is learned.

    Notes
    -----
    For AnonML, DDML and the tables of PFDS it is what the plan forecasts. The noise on a count of SDQ, and on a leaf of PFDS's paper, does
    not fall as more rows are counted, but there is more to be counted: it is taken as a share of an average count.
    """
    worst = plan.forecasts[-1]
    return worst.value / (2 * worst.useless_from) if _is_count(plan.study) else worst.value


def what_of(plan: Plan) -> str:
    """What the error is, in words without figures that depend on the size."""
    study = plan.study
    if study.protocol == "anonml":
        return "root mean square error (L2) of the shares in the worst of the tables"
    if study.protocol == "ddml":
        return "noise of a weight per unit that is learned of it (0.2 is good, 2 is useless)"
    if study.protocol == "pfds" and study.variant == "plus":
        return "noise on one cell of a pooled table, as a share of its rows (standard deviation)"
    return "noise on a count, as a share of an average one (standard deviation; from a half on most of the result is noise)"


def closed_forecast(study: Study, sizes: Sequence[int], epsilons: Sequence[float], target: Target | None) -> dict[str, Any]:
    """The error as a function of size and epsilon, and the size at which it falls to a target."""
    own = study.participation.size
    sizes = sorted(set(sizes)) or around(study, "size", own, SIZES)
    epsilons = sorted(set(epsilons)) or around(study, "epsilon", study.privacy.epsilon, EPSILONS)
    points = [
        {"size": size, "epsilon": epsilon, "total": plan.loss.to_dict(), ERROR: error_of(plan)}
        for size in sizes
        for epsilon in epsilons
        for plan in [make_plan(vary(study, {"size": size, "epsilon": epsilon}))]
    ]
    return {
        "measure": ERROR,
        "what": what_of(make_plan(study)),
        "points": points,
        "target": None if target is None else {**asdict(target), **asdict(_needed(study, target.value))},
    }


def _needed(study: Study, value: float) -> Needed:
    """The least size whose error is at most a value: by doubling, and then by halving what lies between."""

    def is_enough(size: int) -> bool:
        return is_possible(study, {"size": size}) and error_of(make_plan(vary(study, {"size": size}))) <= value

    high = 1
    while not is_enough(high):
        if 2 * high > MAX_COUNT:
            return Needed(None, None, None, 1, high)
        high *= 2
    low = high // 2
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return Needed(high, high, high, 1, high)


def _is_count(study: Study) -> bool:
    return study.protocol == "sdq" or (study.protocol == "pfds" and study.variant == "paper")
