"""The studies of a forecast: one with some figures varied, each simulated once on the same populations, and their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

from shoal.domain import Numeric
from shoal.errors import ShoalError, UsageError
from shoal.protocols.ddml.params import Params as DDMLParams
from shoal.protocols.ddml.population import choose_engine
from shoal.sim.forecast_engine import Runner
from shoal.sim.forecast_interval import ROW_SHARES, SMALLER_IS_BETTER, Interval, Repeated, intervals
from shoal.sim.forecast_rows import Source
from shoal.sim.forecast_runs import Engine, Trial, Tried
from shoal.sim.protocols import params_for
from shoal.sim.scores import Errors, Scores
from shoal.sim.sweep import Settings, vary
from shoal.study.plan import Plan, make_plan
from shoal.study.spec import Study

MOST_ROWS = 2_000_000
"""The largest population that is simulated."""
_MOST_COMPARED = 50_000
"""Rows that the comparison without privacy learns from: from more it would hardly learn more."""
_QUICK_ROWS = 20_000
_HALF = 0.5

Key = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Wanted:
    """How a forecast is made.

    Parameters
    ----------
    level
        Chance that an interval covers the real study's score.
    repeats
        Runs of each study, a multiple of the parts that the source has.
    seed
        All randomness follows from it.
    n_unseen
        On how many rows the real study is tried; None for all that there may ever be.
    """

    level: float = 0.9
    repeats: int = 8
    seed: int = 0
    n_unseen: int | None = None


def n_rows_of(study: Study) -> int:
    """Rows of all who take part, if they are as many as declared."""
    size = study.participation.size
    return size if study.ddml is None else size * study.ddml.batch_size


def measures_of(study: Study) -> tuple[str, ...]:
    """Names of the measures of what is learned, the main one first."""
    kind = Errors if isinstance(study.label.feature(), Numeric) else Scores
    return tuple(part.name for part in fields(kind))


def varied(study: Study, settings: Settings) -> Plan:
    """The plan of the study with some figures replaced; an error where that is no study, has no price, or is too large to simulate."""
    found = make_plan(vary(study, settings))
    params_for(found.study)
    n_rows = n_rows_of(found.study)
    if n_rows > MOST_ROWS:
        raise UsageError("USAGE-001", f"A population of {n_rows:,} rows is not simulated.", fix=f"Sizes of at most {MOST_ROWS:,} rows.")
    return found


def is_possible(study: Study, settings: Settings) -> bool:
    """Whether a study with some figures replaced is one that has a price."""
    try:
        make_plan(vary(study, settings))
    except ShoalError:
        return False
    return True


def is_large(study: Study) -> bool:
    """Whether a run takes so long that it is worth while to make fewer, and several at once."""
    return n_rows_of(study) > _QUICK_ROWS


def usual_repeats(study: Study) -> int:
    """Runs of each study: more where they are quickly made."""
    return 8 if is_large(study) else 16


@dataclass(frozen=True)
class Point:
    """A study that was simulated: its plan and its runs."""

    plan: Plan
    runs: Repeated


class Points:
    """Studies that differ in a few figures, simulated on the same populations.

    Parameters
    ----------
    study
        What settings are applied to.
    source
        What populations are drawn from.
    wanted
        How the forecast is made.
    run
        Makes the runs.
    """

    def __init__(self, study: Study, source: Source, wanted: Wanted, run: Runner) -> None:
        self.study, self.source, self.wanted, self._run = study, source, wanted, run
        self._points: dict[Key, Point] = {}
        self._halved: tuple[Key, Repeated] | None = None
        self._engine: Engine = "numpy"

    def __getitem__(self, settings: Settings) -> Point:
        return self._points[self._key(settings)]

    def add(self, several: Iterable[Settings]) -> None:
        """Simulate the study with these settings, where that has not been done."""
        keys = {self._key(settings): settings for settings in several}
        plans = {key: varied(self.study, settings) for key, settings in keys.items() if key not in self._points}
        made = iter(self._tried([trial for plan in plans.values() for trial in self._trials(plan.study)]))
        for key, plan in plans.items():
            self._points[key] = Point(plan, Repeated(n_rows_of(plan.study), [next(made) for _ in range(self.wanted.repeats)]))

    def intervals(self, measure: str, several: Sequence[Settings]) -> list[Interval]:
        """The intervals of studies that were added."""
        wanted, runs = self.wanted, [point.runs for point in self._points.values()]
        # What is lost on few rows is measured once, and not for a population of another size.
        better_by = self.better_by(measure) or 0.0
        share = ROW_SHARES[self.study.trust]
        found = intervals(runs, self.source, measure, wanted.level, row_share=share, better_by=better_by, n_unseen=wanted.n_unseen)
        by_key = dict(zip(self._points, found, strict=True))
        return [by_key[self._key(settings)] for settings in several]

    def better_by(self, measure: str) -> float | None:
        """How much better a real study may be than one on rows that are drawn repeatedly; None where none are.

        Notes
        -----
        What is lost because the public rows are few falls as their number grows, so that half of them lose as much again.
        """
        if self._halved is None:
            repeated = [key for key, point in self._points.items() if self.source.is_repeated(point.runs.n_rows)]
            if not repeated:
                return None
            # Where runs differ least, the difference is seen best.
            main = measures_of(self.study)[0]
            clearest = min(repeated, key=lambda key: float(self._points[key].runs.scores(main).var()))
            study = self._points[clearest].plan.study
            self._halved = clearest, Repeated(n_rows_of(study), self._tried(self._trials(study, _HALF)))
        key, halved = self._halved
        gain = float(self._points[key].runs.scores(measure).mean() - halved.scores(measure).mean())
        return max(0.0, -gain if measure in SMALLER_IS_BETTER else gain)

    def yardsticks(self, settings: Settings) -> dict[str, dict[str, float]]:
        """What a study is held against, on as many rows, each part of the source in turn; only what is there in all parts."""
        study = varied(self.study, settings).study
        n_rows, params = min(n_rows_of(study), _MOST_COMPARED), params_for(study)
        tried = self._run([Trial(params, n_rows, self.wanted.seed, fold, kind="yardsticks") for fold in range(self.source.n_folds)])
        return {
            name: {measure: math.fsum(one.scores[name][measure] for one in tried) / len(tried) for measure in measures_of(study)}
            for name in tried[0].scores
            if all(name in one.scores for one in tried)
        }

    def _key(self, settings: Settings) -> Key:
        own = {"size": self.study.participation.size, "epsilon": self.study.privacy.epsilon}
        return tuple(sorted({**own, **settings}.items()))

    def _trials(self, study: Study, part: float = 1.0) -> list[Trial]:
        params, wanted = params_for(study), self.wanted
        return [Trial(params, n_rows_of(study), wanted.seed, repeat, part) for repeat in range(wanted.repeats)]

    def _tried(self, trials: Sequence[Trial]) -> list[Tried]:
        of_devices = [(trial.params, trial.n_rows) for trial in trials if isinstance(trial.params, DDMLParams)]
        # By figures of the runs alone, so that a seed gives the same again. Once compiled, for good.
        if self._engine == "numpy" and of_devices:
            updates = sum(n_rows // params.batch_size * params.n_updates for params, n_rows in of_devices)
            self._engine = choose_engine(updates, of_devices[0][0])
        return self._run([replace(trial, engine=self._engine) for trial in trials])
