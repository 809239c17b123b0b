"""Points of a forecast: varied settings, simulated on the same populations.

`shoal.simulation.forecast` and its search for a size add points and read their intervals. Each
point is simulated once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from shoal.data.schema import Numeric
from shoal.errors import ShoalError, UsageError
from shoal.simulation.forecast.engine import TrialRunner
from shoal.simulation.forecast.intervals import (
    ROW_SHARES,
    SMALLER_IS_BETTER,
    PredictionInterval,
    RepeatedRuns,
    compute_intervals,
)
from shoal.simulation.forecast.sources import PopulationSource
from shoal.simulation.forecast.trials import ForecastTrial, ForecastTrialResult
from shoal.simulation.metrics import ClassificationScores, RegressionScores
from shoal.simulation.protocol import Engine
from shoal.simulation.registry import get_simulated, make_simulation_params
from shoal.simulation.sweep import Settings, vary
from shoal.study.plan import Plan, make_plan
from shoal.study.spec import Study

MAX_ROWS = 2_000_000
"""Rows of the largest population that is simulated."""
_MAX_COMPARED = 50_000
"""Rows that the model without privacy learns from: more would hardly improve it."""
_QUICK_ROWS = 20_000
_HALF = 0.5

SettingsKey = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class ForecastConfig:
    """The settings of a forecast.

    Parameters
    ----------
    level
        Probability that an interval covers the real study's score.
    repeats
        Trials of each study, a multiple of the source's folds.
    seed
        Source of all randomness.
    n_test_rows
        Rows on which the real study is tested; None for an unlimited number.
    jobs
        Processes; the result is the same for any number.
    """

    level: float = 0.9
    repeats: int = 8
    seed: int = 0
    n_test_rows: int | None = None
    jobs: int = 1


def count_rows(study: Study) -> int:
    """Return the rows of all participants at the declared size."""
    return get_simulated(study).count_rows(study)


def list_measures(study: Study) -> tuple[str, ...]:
    """Return the names of the measures of a model, the main one first."""
    kind = (
        RegressionScores
        if isinstance(study.label.make_feature(), Numeric)
        else ClassificationScores
    )
    return tuple(part.name for part in fields(kind))


def make_varied_plan(study: Study, settings: Settings) -> Plan:
    """Return the plan of the study with some settings replaced.

    Raises
    ------
    ShoalError
        The settings are invalid, or have no price, or the study is too large to simulate.
    """
    plan = make_plan(vary(study, settings))
    make_simulation_params(plan.study)
    n_rows = count_rows(plan.study)
    if n_rows > MAX_ROWS:
        raise UsageError(
            "USAGE-001",
            f"A population of {n_rows:,} rows is too large for a forecast.",
            fix=f"Give sizes of at most {MAX_ROWS:,} rows.",
        )
    return plan


def is_possible(study: Study, settings: Settings) -> bool:
    """Return whether the study with some settings replaced is valid and has a price."""
    try:
        make_plan(vary(study, settings))
    except ShoalError:
        return False
    return True


def is_large(study: Study) -> bool:
    """Return whether a trial is slow enough for fewer repeats and several processes."""
    return count_rows(study) > _QUICK_ROWS


def choose_repeats(study: Study) -> int:
    """Return the trials of each study: more if they are fast."""
    return 8 if is_large(study) else 16


@dataclass(frozen=True)
class ForecastPoint:
    """A simulated study: its plan and its runs."""

    plan: Plan
    runs: RepeatedRuns


class ForecastPoints:
    """Studies that differ in a few settings, simulated on the same populations.

    Parameters
    ----------
    study
        The study to which settings are applied.
    run
        Function that runs trials.
    """

    def __init__(
        self, study: Study, source: PopulationSource, config: ForecastConfig, run: TrialRunner
    ) -> None:
        self.study, self.source, self.config, self._run = study, source, config, run
        self._points: dict[SettingsKey, ForecastPoint] = {}
        self._halved: tuple[SettingsKey, RepeatedRuns] | None = None
        self._engine: Engine = "numpy"

    def __getitem__(self, settings: Settings) -> ForecastPoint:
        return self._points[self._make_key(settings)]

    def add(self, several: Iterable[Settings]) -> None:
        """Simulate the study with each of these settings, unless that was done before."""
        keys = {self._make_key(settings): settings for settings in several}
        plans = {
            key: make_varied_plan(self.study, settings)
            for key, settings in keys.items()
            if key not in self._points
        }
        results = iter(
            self._run_trials(
                [trial for plan in plans.values() for trial in self._make_trials(plan.study)]
            )
        )
        for key, plan in plans.items():
            self._points[key] = ForecastPoint(
                plan,
                RepeatedRuns(
                    count_rows(plan.study), [next(results) for _ in range(self.config.repeats)]
                ),
            )

    def compute_intervals(
        self, measure: str, several: Sequence[Settings]
    ) -> list[PredictionInterval]:
        """Return the intervals of studies that were added."""
        intervals = compute_intervals(
            [point.runs for point in self._points.values()],
            self.source,
            measure,
            self.config.level,
            row_share=ROW_SHARES[self.study.trust],
            # The loss from few rows is measured once, for a population of one size.
            pessimism=self.estimate_pessimism(measure) or 0.0,
            n_test_rows=self.config.n_test_rows,
        )
        by_key = dict(zip(self._points, intervals, strict=True))
        return [by_key[self._make_key(settings)] for settings in several]

    def estimate_pessimism(self, measure: str) -> float | None:
        """Return how much better a real study may be than one with repeated rows.

        It is None if no rows are drawn repeatedly.

        Notes
        -----
        The loss from few public rows falls as their number grows. With half of the rows the loss
        is about twice as large, so the difference estimates it.
        """
        if self._halved is None:
            repeated = [
                key
                for key, point in self._points.items()
                if self.source.is_repeated(point.runs.n_rows)
            ]
            if not repeated:
                return None
            # The difference is clearest between runs with the smallest variance.
            main = list_measures(self.study)[0]
            clearest = min(
                repeated, key=lambda key: float(self._points[key].runs.scores(main).var())
            )
            study = self._points[clearest].plan.study
            self._halved = (
                clearest,
                RepeatedRuns(count_rows(study), self._run_trials(self._make_trials(study, _HALF))),
            )
        key, halved = self._halved
        gain = float(self._points[key].runs.scores(measure).mean() - halved.scores(measure).mean())
        return max(0.0, -gain if measure in SMALLER_IS_BETTER else gain)

    def score_baselines(self, settings: Settings) -> dict[str, dict[str, float]]:
        """Return the mean scores of the baselines, on populations of the same size.

        Each fold of the source is tested once. Baselines that are missing in a fold are left out.
        """
        study = make_varied_plan(self.study, settings).study
        n_rows, params = min(count_rows(study), _MAX_COMPARED), make_simulation_params(study)
        results = self._run(
            [
                ForecastTrial(params, n_rows, self.config.seed, fold, kind="yardsticks")
                for fold in range(self.source.n_folds)
            ]
        )
        return {
            name: {
                measure: math.fsum(result.scores[name][measure] for result in results)
                / len(results)
                for measure in list_measures(study)
            }
            for name in results[0].scores
            if all(name in result.scores for result in results)
        }

    def _make_key(self, settings: Settings) -> SettingsKey:
        declared = {"size": self.study.participation.size, "epsilon": self.study.privacy.epsilon}
        return tuple(sorted({**declared, **settings}.items()))

    def _make_trials(self, study: Study, part: float = 1.0) -> list[ForecastTrial]:
        params = make_simulation_params(study)
        return [
            ForecastTrial(params, count_rows(study), self.config.seed, repeat, part)
            for repeat in range(self.config.repeats)
        ]

    def _run_trials(self, trials: Sequence[ForecastTrial]) -> list[ForecastTrialResult]:
        # Compiled code stays in use.
        if self._engine == "numpy" and trials:
            self._engine = get_simulated(self.study).choose_engine(
                [(trial.params, trial.n_rows) for trial in trials]
            )
        return self._run([replace(trial, engine=self._engine) for trial in trials])
