"""One trial of a forecast: draw a population, learn from it, test on other rows.

`shoal.simulation.forecast.engine` runs trials here or in processes. A trial is a function of its
fields and of the source, so that a seed gives the same result with any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from shoal.simulation.forecast.sources import N_GROUPS, PopulationSource, assign_groups
from shoal.simulation.metrics import (
    ClassificationScores,
    Ints,
    RegressionScores,
    compute_errors,
    compute_scores,
)
from shoal.simulation.protocol import Engine
from shoal.simulation.registry import find_simulated, score_baselines
from shoal.simulation.run import ProtocolParams, RunTask, Split

Measures = dict[str, float]


@dataclass(frozen=True)
class ForecastTrial:
    """The definition of one trial.

    Parameters
    ----------
    n_rows
        Rows of the population.
    seed, repeat
        Source of all randomness; the rows depend on the size and the repeat alone.
    part
        Share of the source that the population is drawn from.
    kind
        ``"study"`` runs the protocol, ``"yardsticks"`` the models without privacy.
    engine
        Code that simulates DDML: the faster one over all trials of the forecast.
    """

    params: ProtocolParams
    n_rows: int
    seed: int
    repeat: int
    part: float = 1.0
    kind: Literal["study", "yardsticks"] = "study"
    engine: Engine = "numpy"


@dataclass(frozen=True)
class ForecastTrialResult:
    """The result of a trial.

    Parameters
    ----------
    scores
        Measure -> value; for baselines, name -> measure -> value.
    jackknife_scores
        The scores without each group of test rows; empty for baselines.
    n_test_rows
        Number of test rows.
    """

    scores: dict[str, Any]
    jackknife_scores: tuple[Measures, ...]
    n_test_rows: int


def run_trial(trial: ForecastTrial, source: PopulationSource) -> ForecastTrialResult:
    """Run one trial."""
    split = source.draw(trial.n_rows, trial.repeat, trial.part)
    n_test_rows = len(split.test_labels)
    if trial.kind == "yardsticks":
        return ForecastTrialResult(_score_baselines(trial.params, split), (), n_test_rows)
    task = RunTask(trial.params, trial.seed, trial.repeat)
    model = find_simulated(trial.params).learn_model(task, split, trial.engine)
    score = _make_scorer(model, split)
    group = assign_groups(n_test_rows)
    return ForecastTrialResult(
        score(np.arange(n_test_rows)),
        tuple(score(np.flatnonzero(group != one)) for one in range(N_GROUPS)),
        n_test_rows,
    )


def _score_baselines(params: ProtocolParams, split: Split) -> dict[str, Measures]:
    """Return the scores of the baselines; empty if all drawn rows have the same label.

    Models without privacy cannot learn from one label.
    """
    if len(np.unique(split.train_labels)) < 2:
        return {}
    return {name: asdict(scores) for name, scores in score_baselines(params, split).items()}


def _make_scorer(model: Any, split: Split) -> Callable[[Ints], Measures]:
    """Return a function that scores the model on some of the test rows."""
    labels = split.test_labels
    if labels.dtype.kind == "f":
        predicted: npt.NDArray[np.float64] = np.asarray(
            model.predict(split.test_columns), np.float64
        )
        return lambda rows: _convert_to_floats(compute_errors(predicted[rows], labels[rows]))
    chances, decisions = model.probabilities(split.test_columns), model.decide(split.test_columns)
    return lambda rows: _convert_to_floats(
        compute_scores(chances[rows], decisions[rows], labels[rows])
    )


def _convert_to_floats(scores: ClassificationScores | RegressionScores) -> Measures:
    return {name: float(value) for name, value in asdict(scores).items()}
