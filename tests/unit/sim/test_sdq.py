"""One run of SDQ: databases and their rows, drop-outs, people with several rows, and what a model is held against."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.protocols.anonml.model import from_plain as additive_from_plain
from shoal.protocols.sdq.model import from_plain
from shoal.protocols.sdq.params import Params, Table
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.scripts import script_of
from shoal.sim.holders import who_answers
from shoal.sim.people import SCHEMA, make_people
from shoal.sim.runs import Split, Task
from shoal.sim.scores import Scores
from shoal.sim.sdq import facts, members_of, params_for, run, yardsticks
from shoal.study.load import parse
from shoal.study.templates import study_text

N = 3000
PEOPLE = make_people(N, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
PARAMS = Params(SCHEMA, 1.0, N, n_databases=10, minimum=8, max_colluders=3)
FREE = replace(PARAMS, epsilon=math.inf)


def test_a_run_is_a_function_of_its_task() -> None:
    first, again = (run(Task(PARAMS, 1), SPLIT) for _ in range(2))
    assert first == again
    others = [Task(PARAMS, 2), Task(PARAMS, 1, repeat=1), Task(replace(PARAMS, epsilon=0.9), 1), Task(PARAMS, 1, dropout=0.2)]
    models = [first.model, *(run(task, SPLIT).model for task in others)]
    assert all(one != other for i, one in enumerate(models) for other in models[:i])


def test_a_run_learns_and_says_from_whom() -> None:
    outcome = run(Task(PARAMS, 1), SPLIT)
    assert (outcome.people, outcome.n_rows) == (10, N)
    assert isinstance(outcome.scores, Scores) and outcome.scores.auc > 0.6
    assert from_plain(outcome.model).classes == ("no", "yes")
    assert len(outcome.answers) > 1 and min(outcome.answers) >= 1


def test_naive_bayes_asks_once() -> None:
    outcome = run(Task(replace(PARAMS, learner="naive-bayes"), 1), SPLIT)
    assert len(outcome.answers) == 1 and additive_from_plain(outcome.model).classes == ("no", "yes")
    assert isinstance(outcome.scores, Scores) and outcome.scores.auc > 0.65


class TestDatabases:
    def test_are_as_many_as_the_study_says(self) -> None:
        # The last of ten has its only rows among those set aside.
        assert run(Task(PARAMS, 1), replace(SPLIT, holders=np.arange(N) % 9, n_holders=10)).people == 10
        with pytest.raises(ShoalError) as error:
            run(Task(PARAMS, 1), replace(SPLIT, holders=np.arange(N) % 4, n_holders=4))
        assert error.value.code == "SIM-007" and "names 4 databases, and the study has n_databases = 10" in error.value.what
        assert "n_databases = 4 under [sdq]" in str(error.value.fix)


class TestDropout:
    def test_below_the_minimum_there_is_no_sum(self) -> None:
        with pytest.raises(ShoalError) as error:
            run(Task(PARAMS, 1, dropout=0.3), SPLIT)
        assert error.value.code == "SUM-003"
        assert "With a dropout of 0.3, 7 of 10 databases are left; a sum of fewer than 8 is not opened." in error.value.what
        assert run(Task(PARAMS, 1, dropout=0.2), SPLIT).people == 8

    def test_two_selected_databases_cannot_be_missed(self) -> None:
        params = replace(PARAMS, variant="paper", noise="two-selected", minimum=10)
        with pytest.raises(ShoalError) as error:
            run(Task(params, 1, dropout=0.1), SPLIT)
        assert error.value.code == "SUM-003" and "nobody knows whether one of them is missing" in str(error.value.why)

    def test_whoever_is_gone_teaches_nothing(self) -> None:
        """Rows that would break the model are those of the databases that drop out."""
        task = Task(PARAMS, 4, dropout=0.2)
        holders = np.arange(N) % 10
        is_gone = ~who_answers(members_of(PARAMS), task)[holders]
        wrong = replace(SPLIT, labels=np.where(is_gone, 1 - SPLIT.labels, SPLIT.labels), holders=holders, n_holders=10)
        right = replace(SPLIT, holders=holders, n_holders=10)
        assert run(task, wrong) == run(task, right) and run(task, right).n_rows == 8 * N // 10

    def test_shares_of_noise_go_with_the_databases(self) -> None:
        """The answers are those of the protocol's population for as many databases, and the seed of the task."""
        task = Task(PARAMS, 4, dropout=0.1)
        split = replace(SPLIT, holders=np.arange(N) % 10, n_holders=10)
        stays = who_answers(members_of(PARAMS), task)[np.arange(N) % 10]
        columns = {name: column[stays] for name, column in SPLIT.asked.items()}
        table = Table.of(PARAMS, columns, SPLIT.labels[stays], (np.arange(N) % 10)[stays])
        trained = simulate(script_of(PARAMS), table, task.entropy.spawn("answers"), 9)
        assert run(task, split).model == trained.model.to_plain()


def test_nobody_counts_more_often_than_the_study_allows() -> None:
    params = replace(PARAMS, unit="person", max_rows=2)
    people = np.arange(N) % 100
    outcome = run(Task(params, 1), replace(SPLIT, people=people, holders=np.arange(N) // 300, n_holders=10))
    assert outcome.n_rows == 100 * 2 * 10


class TestYardsticks:
    def test_a_tree_is_held_against_id3(self) -> None:
        held = yardsticks(PARAMS, SPLIT)
        assert list(held) == ["most_common", "id3", "without_privacy"]
        paper = run(Task(replace(FREE, variant="paper"), 1), SPLIT).scores
        assert held["id3"] == paper == yardsticks(replace(PARAMS, variant="paper", noise="two-selected"), SPLIT)["id3"]
        assert _accuracy(held["id3"]) > _accuracy(held["most_common"]) + 0.02

    def test_naive_bayes_against_itself_without_noise(self) -> None:
        params = replace(PARAMS, learner="naive-bayes")
        held = yardsticks(params, SPLIT)
        assert list(held) == ["most_common", "naive_bayes", "without_privacy"]
        assert held["naive_bayes"] == run(Task(replace(params, epsilon=math.inf), 5), SPLIT).scores


def _accuracy(scores: Any) -> float:
    assert isinstance(scores, Scores)
    return scores.accuracy


def test_facts_are_those_that_have_a_meaning() -> None:
    told = facts(PARAMS)
    assert (told["learner"], told["depth"], told["choice"], told["noise"]) == ("tree", 8, "mpc", "all-contribute")
    assert (told["n_databases"], told["max_colluders"], told["n_honest"]) == (10, 3, 5)
    bayes, paper = facts(replace(PARAMS, learner="naive-bayes")), facts(replace(FREE, variant="paper", depth=4))
    assert (bayes["depth"], bayes["choice"]) == (None, None) and (paper["depth"], paper["choice"], paper["noise"]) == (4, None, None)


def test_parameters_are_the_studys_with_or_without_noise() -> None:
    study = parse(study_text("sdq"))
    params = params_for(study, without_perturbation=False)
    assert (params.epsilon, params.size, params.max_rows) == (study.privacy.epsilon, study.participation.size, 2)
    assert params_for(study, without_perturbation=True) == replace(params, epsilon=math.inf)
