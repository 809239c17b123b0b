"""One trial of a forecast: the model of a simulation, tested without each group in turn."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from shoal.simulation.forecast.sources import N_GROUPS, PublicRows
from shoal.simulation.forecast.trials import ForecastTrial, run_trial
from shoal.simulation.registry import make_simulation_params, run
from shoal.simulation.run import RunTask
from shoal.study.spec import Study
from tests.support.simulation import make_rows, small

NUMBER = ('name = "doubtful"\nvalues = ["no", "yes"]', 'name = "doubtful"\nrange = [0, 1]')


def of(protocol: str) -> tuple[Study, PublicRows]:
    study = small(protocol)
    return study, make_rows(study)


@pytest.mark.parametrize("protocol", ["anonml", "ddml", "sdq", "pfds"])
def test_trial_equals_a_simulation_with_the_same_seed(protocol: str) -> None:
    study, rows = of(protocol)
    params = make_simulation_params(study)
    tried = run_trial(ForecastTrial(params, 300, 5, 2), rows)
    split = rows.draw(300, 2)
    assert tried.scores == pytest.approx(asdict(run(RunTask(params, 5, 2), split).scores))
    assert tried.n_test_rows == len(split.test_labels)
    assert len(tried.jackknife_scores) == N_GROUPS and all(
        one.keys() == tried.scores.keys() for one in tried.jackknife_scores
    )
    # What is left out is a sixth of the rows, and all are left out once.
    assert np.mean([one["accuracy"] for one in tried.jackknife_scores]) == pytest.approx(
        tried.scores["accuracy"], abs=1e-3
    )
    assert len({one["accuracy"] for one in tried.jackknife_scores}) > 1


def test_numeric_label_has_errors() -> None:
    study = small("pfds", NUMBER)
    labelled = make_rows(small("pfds"))
    rows = PublicRows(labelled.columns, labelled.labels.astype(np.float64), labelled.units, 1)
    tried = run_trial(ForecastTrial(make_simulation_params(study), 300, 5, 0), rows)
    assert (
        tried.scores.keys()
        == {"rmse", "mean_absolute_error", "r_squared"}
        == tried.jackknife_scores[0].keys()
    )


def test_baselines_learn_from_the_rows_without_noise() -> None:
    study, rows = of("anonml")
    tried = run_trial(
        ForecastTrial(make_simulation_params(study), 300, 5, 0, kind="yardsticks"), rows
    )
    assert (
        tried.scores["without_privacy"]["accuracy"] > tried.scores["most_common"]["accuracy"]
        and tried.jackknife_scores == ()
    )


def test_rows_with_one_label_have_no_baselines() -> None:
    study, rows = of("anonml")
    assert (
        run_trial(
            ForecastTrial(make_simulation_params(study), 1, 5, 0, kind="yardsticks"), rows
        ).scores
        == {}
    )
