"""One run of SDQ: databases, dropout, people with several rows, and baselines."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.cli.hello.population import SCHEMA, make_people
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.protocols.anonml.model import from_plain as additive_from_plain
from shoal.protocols.sdq.model import from_plain
from shoal.protocols.sdq.params import CellTable, SDQParams
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.variants import make_sdq_script
from shoal.simulation.holders import draw_respondents
from shoal.simulation.metrics import ClassificationScores
from shoal.simulation.run import RunTask, Split
from shoal.simulation.sdq import (
    describe_params,
    make_members,
    make_simulation_params,
    run,
    score_baselines,
)
from shoal.study.loader import parse_study_text
from shoal.study.starters import read_starter

N = 3000
PEOPLE = make_people(N, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
PARAMS = SDQParams(SCHEMA, 1.0, N, n_databases=10, minimum=8, max_colluders=3)
FREE = replace(PARAMS, epsilon=math.inf)


def test_run_depends_only_on_its_task() -> None:
    first, again = (run(RunTask(PARAMS, 1), SPLIT) for _ in range(2))
    assert first == again
    others = [
        RunTask(PARAMS, 2),
        RunTask(PARAMS, 1, repeat=1),
        RunTask(replace(PARAMS, epsilon=0.9), 1),
        RunTask(PARAMS, 1, dropout=0.2),
    ]
    models = [first.model, *(run(task, SPLIT).model for task in others)]
    assert all(one != other for i, one in enumerate(models) for other in models[:i])


def test_run_learns_and_counts_databases() -> None:
    outcome = run(RunTask(PARAMS, 1), SPLIT)
    assert (outcome.n_participants, outcome.n_rows) == (10, N)
    assert isinstance(outcome.scores, ClassificationScores) and outcome.scores.auc > 0.6
    assert from_plain(outcome.model).classes == ("no", "yes")
    assert len(outcome.answers) > 1 and min(outcome.answers) >= 1


def test_naive_bayes_has_one_round() -> None:
    outcome = run(RunTask(replace(PARAMS, learner="naive-bayes"), 1), SPLIT)
    assert len(outcome.answers) == 1 and additive_from_plain(outcome.model).classes == ("no", "yes")
    assert isinstance(outcome.scores, ClassificationScores) and outcome.scores.auc > 0.65


class TestDatabases:
    def test_number_of_databases_is_that_of_the_study(self) -> None:
        # The last of ten has its only rows among those set aside.
        assert (
            run(
                RunTask(PARAMS, 1), replace(SPLIT, holders=np.arange(N) % 9, n_holders=10)
            ).n_participants
            == 10
        )
        with pytest.raises(ShoalError) as error:
            run(RunTask(PARAMS, 1), replace(SPLIT, holders=np.arange(N) % 4, n_holders=4))
        assert (
            error.value.code == "SIM-007"
            and "names 4 databases; the study has n_databases = 10" in error.value.what
        )
        assert "n_databases = 4 under [sdq]" in str(error.value.fix)


class TestDropout:
    def test_dropout_below_the_minimum_is_rejected(self) -> None:
        with pytest.raises(ShoalError) as error:
            run(RunTask(PARAMS, 1, dropout=0.3), SPLIT)
        assert error.value.code == "SUM-003"
        assert (
            "With a dropout of 0.3, 7 of 10 databases are left; a sum of fewer than 8 is not "
            "opened." in error.value.what
        )
        assert run(RunTask(PARAMS, 1, dropout=0.2), SPLIT).n_participants == 8

    def test_dropout_of_two_selected_databases_is_rejected(self) -> None:
        params = replace(PARAMS, variant="paper", noise="two-selected", minimum=10)
        with pytest.raises(ShoalError) as error:
            run(RunTask(params, 1, dropout=0.1), SPLIT)
        assert (
            error.value.code == "SUM-003"
            and "no party knows whether one of them is gone" in str(error.value.why)
        )

    def test_absent_database_does_not_change_the_model(self) -> None:
        """Rows that would break the model are those of the databases that drop out."""
        task = RunTask(PARAMS, 4, dropout=0.2)
        holders = np.arange(N) % 10
        is_gone = ~draw_respondents(make_members(PARAMS), task)[holders]
        wrong = replace(
            SPLIT,
            train_labels=np.where(is_gone, 1 - SPLIT.train_labels, SPLIT.train_labels),
            holders=holders,
            n_holders=10,
        )
        right = replace(SPLIT, holders=holders, n_holders=10)
        assert run(task, wrong) == run(task, right) and run(task, right).n_rows == 8 * N // 10

    def test_noise_shares_belong_to_the_databases(self) -> None:
        """The answers are those of the population for the same databases and seed."""
        task = RunTask(PARAMS, 4, dropout=0.1)
        split = replace(SPLIT, holders=np.arange(N) % 10, n_holders=10)
        stays = draw_respondents(make_members(PARAMS), task)[np.arange(N) % 10]
        columns = {name: column[stays] for name, column in SPLIT.train_columns.items()}
        table = CellTable.from_columns(
            PARAMS, columns, SPLIT.train_labels[stays], (np.arange(N) % 10)[stays]
        )
        trained = simulate(make_sdq_script(PARAMS), table, task.entropy.spawn("answers"), 9)
        assert run(task, split).model == trained.model.to_plain()


def test_person_counts_no_more_rows_than_the_study_allows() -> None:
    params = replace(PARAMS, unit="person", max_rows=2)
    people = np.arange(N) % 100
    outcome = run(
        RunTask(params, 1), replace(SPLIT, people=people, holders=np.arange(N) // 300, n_holders=10)
    )
    assert outcome.n_rows == 100 * 2 * 10


class TestYardsticks:
    def test_baseline_of_a_tree_is_id3(self) -> None:
        held = score_baselines(PARAMS, SPLIT)
        assert list(held) == ["most_common", "id3", "without_privacy"]
        paper = run(RunTask(replace(FREE, variant="paper"), 1), SPLIT).scores
        assert (
            held["id3"]
            == paper
            == score_baselines(replace(PARAMS, variant="paper", noise="two-selected"), SPLIT)["id3"]
        )
        assert _accuracy(held["id3"]) > _accuracy(held["most_common"]) + 0.02

    def test_baseline_of_naive_bayes_is_naive_bayes_without_noise(self) -> None:
        params = replace(PARAMS, learner="naive-bayes")
        held = score_baselines(params, SPLIT)
        assert list(held) == ["most_common", "naive_bayes", "without_privacy"]
        assert (
            held["naive_bayes"] == run(RunTask(replace(params, epsilon=math.inf), 5), SPLIT).scores
        )


def _accuracy(scores: Any) -> float:
    assert isinstance(scores, ClassificationScores)
    return scores.accuracy


def test_facts_are_those_that_apply() -> None:
    told = describe_params(PARAMS)
    assert (told["learner"], told["depth"], told["choice"], told["noise"]) == (
        "tree",
        8,
        "mpc",
        "all-contribute",
    )
    assert (told["n_databases"], told["max_colluders"], told["n_honest"]) == (10, 3, 5)
    bayes, paper = (
        describe_params(replace(PARAMS, learner="naive-bayes")),
        describe_params(replace(FREE, variant="paper", depth=4)),
    )
    assert (bayes["depth"], bayes["choice"]) == (None, None) and (
        paper["depth"],
        paper["choice"],
        paper["noise"],
    ) == (4, None, None)


def test_parameters_are_those_of_the_study_with_or_without_noise() -> None:
    study = parse_study_text(read_starter("sdq"))
    params = make_simulation_params(study, without_perturbation=False)
    assert (params.epsilon, params.size, params.max_rows) == (
        study.privacy.epsilon,
        study.participation.size,
        2,
    )
    assert make_simulation_params(study, without_perturbation=True) == replace(
        params, epsilon=math.inf
    )
