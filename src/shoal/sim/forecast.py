"""What a study would learn, before anything is spent: by simulation on public rows, or on rows that public tables describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from shoal.sim.forecast_changes import changes_of, effects
from shoal.sim.forecast_engine import Told, runner, untold
from shoal.sim.forecast_interval import SMALLER_IS_BETTER
from shoal.sim.forecast_points import Points, Wanted, is_possible, measures_of, n_rows_of
from shoal.sim.forecast_rows import Source
from shoal.sim.forecast_target import SEARCHED_ROWS, Target, reach
from shoal.sim.sweep import Settings, vary
from shoal.study.spec import Study

GUESSES = ("most_common", "mean_label")
"""Yardsticks that look at no feature."""
SIZES, EPSILONS = (0.25, 0.5, 1, 2), (0.5, 1, 2)
"""Parts of the declared size and of epsilon that a forecast is made for, where none are given."""


def forecast(
    study: Study,
    source: Source,
    *,
    sizes: Sequence[int] = (),
    epsilons: Sequence[float] = (),
    target: Target | None = None,
    wanted: Wanted = Wanted(),  # noqa: B008 - it is frozen
    jobs: int = 1,
    told: Told = untold,
) -> dict[str, Any]:
    """Forecast a study as a function of its size and of epsilon.

    Parameters
    ----------
    study
        The study. Each size is also what the study then declares.
    source
        What its population is drawn from.
    sizes, epsilons
        The study is forecast for every pair of them; for some around its own where there are none.
    target
        What should be reached.
    wanted
        How the forecast is made.
    jobs
        Processes; the result is the same for any number.
    told
        Is told how many runs are made, and of how many that are known to be needed.

    Returns
    -------
    dict
        Plain data: ``points`` with a score and its interval for every measure, ``yardsticks``, ``matters`` and ``target``.
    """
    declared, study = study, simulated(study)
    sizes = sorted(set(sizes)) or around(study, "size", study.participation.size, SIZES, 2 * SEARCHED_ROWS)
    epsilons = sorted(set(epsilons)) or around(study, "epsilon", study.privacy.epsilon, EPSILONS)
    grid: list[Settings] = [{"size": size, "epsilon": epsilon} for size in sizes for epsilon in epsilons]
    measures, changes = measures_of(study), changes_of(study)
    with runner(source, jobs, told) as run:
        points = Points(study, source, wanted, run)
        points.add([{}, *grid, *(change.settings for change in changes)])
        held_against = points.yardsticks({})
        needed = None if target is None else reach(points, target, sizes, _without_privacy(points, sizes, target, held_against))
        found = {measure: points.intervals(measure, [{}, *grid]) for measure in measures}
        better_by = {measure: points.better_by(measure) for measure in measures}
    records = [
        {
            **settings,
            "rows": points[settings].runs.n_rows,
            "repeated": source.is_repeated(points[settings].runs.n_rows),
            "total": points[settings].plan.loss.to_dict(),
            "scores": {measure: asdict(found[measure][i]) for measure in measures},
        }
        for i, settings in enumerate([_own(study), *grid])
    ]
    return {
        "level": wanted.level,
        "repeats": wanted.repeats,
        "seed": wanted.seed,
        "measure": measures[0],
        "declared": declared.participation.size,
        "study": records[0],
        "points": records[1:],
        "yardsticks": held_against,
        "pessimistic_by": None if better_by[measures[0]] is None else better_by,
        "matters": [
            {"key": change.key, "before": change.before, "after": change.after, "effect": effect.value, "error": effect.error}
            for change, effect in effects(points, changes, measures[0])
        ],
        "target": None if target is None or needed is None else {**asdict(target), **asdict(needed)},
    }


def simulated(study: Study) -> Study:
    """The study, or as large a one as is simulated without being asked for."""
    n_rows, size = n_rows_of(study), study.participation.size
    return study if n_rows <= SEARCHED_ROWS else vary(study, {"size": size * SEARCHED_ROWS // n_rows})


def around(study: Study, key: str, own: float, parts: Sequence[float], most_rows: int | None = None) -> list[Any]:
    """Values around the study's own with which it still is a study, and has not too many rows."""
    values = [type(own)(own * part) for part in parts]
    return [value for value in values if value == own or (value and _is_small(study, {key: value}, most_rows))]


def _is_small(study: Study, settings: Settings, most_rows: int | None) -> bool:
    return is_possible(study, settings) and (most_rows is None or n_rows_of(vary(study, settings)) <= most_rows)


def _own(study: Study) -> Settings:
    return {"size": study.participation.size, "epsilon": study.privacy.epsilon}


def _without_privacy(points: Points, sizes: Sequence[int], target: Target, own: dict[str, dict[str, float]]) -> float | None:
    """The best that is known of the target's measure without privacy, on the most rows."""
    most = max(sizes)
    held_against = points.yardsticks({"size": most}) if most > points.study.participation.size else own
    known = [scores[target.measure] for name, scores in held_against.items() if name not in GUESSES]
    return (min if target.measure in SMALLER_IS_BETTER else max)(known, default=None)
