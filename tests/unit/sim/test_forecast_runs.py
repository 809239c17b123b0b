"""One run of a forecast: the same model as a simulation's, tried on the same rows, and once without each group of them."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from forecast_cases import rows_of, small
from shoal.sim.forecast_rows import N_GROUPS, PublicRows
from shoal.sim.forecast_runs import Trial, try_once
from shoal.sim.protocols import params_for, run
from shoal.sim.runs import Task
from shoal.study.spec import Study

NUMBER = ('name = "doubtful"\nvalues = ["no", "yes"]', 'name = "doubtful"\nrange = [0, 1]')


def of(protocol: str) -> tuple[Study, PublicRows]:
    study = small(protocol)
    return study, rows_of(study)


@pytest.mark.parametrize("protocol", ["anonml", "ddml", "sdq", "pfds"])
def test_a_run_is_that_of_a_simulation_with_the_same_seed(protocol: str) -> None:
    study, rows = of(protocol)
    params = params_for(study)
    tried = try_once(Trial(params, 300, 5, 2), rows)
    split = rows.draw(300, 2)
    assert tried.scores == pytest.approx(asdict(run(Task(params, 5, 2), split).scores))
    assert tried.n_unseen == len(split.unseen_labels)
    assert len(tried.without) == N_GROUPS and all(one.keys() == tried.scores.keys() for one in tried.without)
    # What is left out is a sixth of the rows, and all are left out once.
    assert np.mean([one["accuracy"] for one in tried.without]) == pytest.approx(tried.scores["accuracy"], abs=1e-3)
    assert len({one["accuracy"] for one in tried.without}) > 1


def test_a_number_has_errors() -> None:
    study = small("pfds", NUMBER)
    labelled = rows_of(small("pfds"))
    rows = PublicRows(labelled.columns, labelled.labels.astype(np.float64), labelled.units, 1)
    tried = try_once(Trial(params_for(study), 300, 5, 0), rows)
    assert tried.scores.keys() == {"rmse", "mean_absolute_error", "r_squared"} == tried.without[0].keys()


def test_yardsticks_learn_from_the_rows_themselves() -> None:
    study, rows = of("anonml")
    tried = try_once(Trial(params_for(study), 300, 5, 0, kind="yardsticks"), rows)
    assert tried.scores["without_privacy"]["accuracy"] > tried.scores["most_common"]["accuracy"] and tried.without == ()


def test_there_are_no_yardsticks_where_all_have_the_same_label() -> None:
    study, rows = of("anonml")
    assert try_once(Trial(params_for(study), 1, 5, 0, kind="yardsticks"), rows).scores == {}
