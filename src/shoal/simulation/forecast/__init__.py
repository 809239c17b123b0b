"""Forecasts of what a study would learn, before any budget is spent.

``shoal check`` calls `forecast`, which simulates the study on public rows, or on rows drawn from
public tables. It also doubles each setting alone to show which settings matter. A seed gives the
same forecast with any number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shoal.simulation.forecast.engine import TrialProgress, ignore_progress, open_runner
from shoal.simulation.forecast.intervals import SMALLER_IS_BETTER
from shoal.simulation.forecast.points import (
    ForecastConfig,
    ForecastPoints,
    count_rows,
    is_possible,
    list_measures,
)
from shoal.simulation.forecast.sources import PopulationSource
from shoal.simulation.forecast.target import MAX_SEARCH_ROWS, Target, find_required_size
from shoal.simulation.metrics import RunMean, compute_mean
from shoal.simulation.registry import get_simulated, make_simulation_params
from shoal.simulation.sweep import SWEEP_KEYS, Settings, vary
from shoal.study.spec import Study

_ALWAYS = ("epsilon", "size")
_SMALL = "delta"
"""The key that changes tenfold: a factor of two would have almost no effect."""
_FACTORS = (2, 0.5)
_TENFOLD = (10, 0.1)


@dataclass(frozen=True)
class SettingChange:
    """One setting of a study multiplied by a factor; halved if its double is impossible."""

    key: str
    before: float
    after: float

    @property
    def settings(self) -> Settings:
        """The settings that are replaced in the study."""
        return {self.key: self.after}


def list_changes(study: Study) -> list[SettingChange]:
    """Return the change of each setting that the study has and a sweep may vary.

    Examples
    --------
    >>> from shoal.study.loader import parse_study_text
    >>> from shoal.study.sdq import SDQProtocol
    >>> from shoal.study.starters import read_starter
    >>> for change in list_changes(parse_study_text(read_starter(SDQProtocol.name))):
    ...     print(change.key, change.before, change.after)
    epsilon 1.0 2.0
    size 20000 40000
    n_databases 10 20
    max_colluders 3 6
    depth 4 8
    """
    changes = []
    own_keys = get_simulated(study).sweep_keys
    others = [key for key in SWEEP_KEYS if key not in _ALWAYS and key not in own_keys]
    for key in [*_ALWAYS, *others, *own_keys]:
        before = _read_value(study, key)
        for factor in _TENFOLD if key == _SMALL else _FACTORS:
            after = SWEEP_KEYS[key][1](before * factor) if before else 0
            if after and after != before and is_possible(study, {key: after}):
                changes.append(SettingChange(key, before, after))
                break
    return changes


def _read_value(study: Study, key: str) -> float:
    """Return a setting of the study, as written or by its default rule; 0 if it has none."""
    places: list[Any] = [study.privacy, study.participation]
    if study.protocol in SWEEP_KEYS[key][0]:
        params: Any = make_simulation_params(study)
        places += [getattr(study, study.protocol), params, getattr(params, "rates", None)]
    values = (getattr(place, key, None) for place in places)
    return next((value for value in values if value is not None), 0)


def compute_effects(
    points: ForecastPoints, changes: Sequence[SettingChange], measure: str
) -> list[tuple[SettingChange, RunMean]]:
    """Return the effect of each change on the expected measure, the largest first.

    The standard error is over trials on the same folds.
    """
    base = points[{}].runs.scores(measure)
    effects = [
        (change, compute_mean((points[change.settings].runs.scores(measure) - base).tolist()))
        for change in changes
    ]
    return sorted(effects, key=lambda pair: -float(np.abs(pair[1].value)))


TRIVIAL_BASELINES = ("most_common", "mean_label")
"""Baselines that use no feature."""
SIZES, EPSILONS = (0.25, 0.5, 1, 2), (0.5, 1, 2)
"""Default sizes and epsilons of a forecast, as factors of the study's."""


def forecast(
    study: Study,
    source: PopulationSource,
    *,
    sizes: Sequence[int] = (),
    epsilons: Sequence[float] = (),
    target: Target | None = None,
    config: ForecastConfig = ForecastConfig(),  # noqa: B008 - it is frozen
    on_progress: TrialProgress = ignore_progress,
) -> dict[str, Any]:
    """Forecast a study as a function of its size and of epsilon.

    Parameters
    ----------
    study
        The study. Each size is also the declared size of the forecast study.
    sizes, epsilons
        The study is forecast for every pair; by default for values around its own.
    target
        The score to reach.

    Returns
    -------
    dict
        Plain data: ``points`` with a score and its interval for every measure, ``yardsticks``,
        ``matters`` and ``target``.
    """
    declared, study = study, limit_size(study)
    sizes = sorted(set(sizes)) or list_values_around(
        study, "size", study.participation.size, SIZES, 2 * MAX_SEARCH_ROWS
    )
    epsilons = sorted(set(epsilons)) or list_values_around(
        study, "epsilon", study.privacy.epsilon, EPSILONS
    )
    grid: list[Settings] = [
        {"size": size, "epsilon": epsilon} for size in sizes for epsilon in epsilons
    ]
    measures, changes = list_measures(study), list_changes(study)
    with open_runner(source, config.jobs, on_progress) as run:
        points = ForecastPoints(study, source, config, run)
        points.add([{}, *grid, *(change.settings for change in changes)])
        baselines = points.score_baselines({})
        needed = (
            None
            if target is None
            else find_required_size(
                points,
                target,
                sizes,
                _find_best_without_privacy(points, sizes, target, baselines),
            )
        )
        intervals = {
            measure: points.compute_intervals(measure, [{}, *grid]) for measure in measures
        }
        pessimism = {measure: points.estimate_pessimism(measure) for measure in measures}
    records = [
        {
            **settings,
            "rows": points[settings].runs.n_rows,
            "repeated": source.is_repeated(points[settings].runs.n_rows),
            "total": points[settings].plan.loss.to_dict(),
            "scores": {measure: asdict(intervals[measure][i]) for measure in measures},
        }
        for i, settings in enumerate([_read_own_settings(study), *grid])
    ]
    return {
        "level": config.level,
        "repeats": config.repeats,
        "seed": config.seed,
        "measure": measures[0],
        "declared": declared.participation.size,
        "study": records[0],
        "points": records[1:],
        "yardsticks": baselines,
        "pessimistic_by": None if pessimism[measures[0]] is None else pessimism,
        "matters": [
            {
                "key": change.key,
                "before": change.before,
                "after": change.after,
                "effect": effect.value,
                "error": effect.error,
            }
            for change, effect in compute_effects(points, changes, measures[0])
        ],
        "target": None
        if target is None or needed is None
        else {**asdict(target), **asdict(needed)},
    }


def limit_size(study: Study) -> Study:
    """Return the study, with a smaller size if it has more rows than a forecast simulates."""
    n_rows, size = count_rows(study), study.participation.size
    return (
        study
        if n_rows <= MAX_SEARCH_ROWS
        else vary(study, {"size": size * MAX_SEARCH_ROWS // n_rows})
    )


def list_values_around(
    study: Study, key: str, own: float, parts: Sequence[float], most_rows: int | None = None
) -> list[Any]:
    """Return values around the study's own that are valid and do not need too many rows."""
    values = [type(own)(own * part) for part in parts]
    return [
        value
        for value in values
        if value == own or (value and _is_small(study, {key: value}, most_rows))
    ]


def _is_small(study: Study, settings: Settings, most_rows: int | None) -> bool:
    return is_possible(study, settings) and (
        most_rows is None or count_rows(vary(study, settings)) <= most_rows
    )


def _read_own_settings(study: Study) -> Settings:
    return {"size": study.participation.size, "epsilon": study.privacy.epsilon}


def _find_best_without_privacy(
    points: ForecastPoints, sizes: Sequence[int], target: Target, own: dict[str, dict[str, float]]
) -> float | None:
    """Return the best known value of the target's measure without privacy, on the most rows."""
    max_size = max(sizes)
    baselines = (
        points.score_baselines({"size": max_size})
        if max_size > points.study.participation.size
        else own
    )
    known = [
        scores[target.measure]
        for name, scores in baselines.items()
        if name not in TRIVIAL_BASELINES
    ]
    return (min if target.measure in SMALLER_IS_BETTER else max)(known, default=None)
