"""One run of PFDS: who shares, who drops out, what the release is worth, and what holders make of it at home."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.protocols.pfds.fitting import own_model, released_model, ridge_model
from shoal.protocols.pfds.home import at_home
from shoal.protocols.pfds.model import from_plain
from shoal.protocols.pfds.paper_population import simulate_paper
from shoal.protocols.pfds.params import Params, Rows
from shoal.protocols.pfds.population import simulate
from shoal.sim.people import SCHEMA, make_people
from shoal.sim.pfds import MOST_HOMES, facts, homes, params_for, run, share, yardsticks
from shoal.sim.runs import Split, Task
from shoal.sim.scores import AtHome, Errors, Scores, errors_of, scores_of
from shoal.study.load import parse
from shoal.study.templates import study_text

N = 2000
PEOPLE = make_people(N, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels, np.arange(N) % 10, 10)
LOCAL = Params(SCHEMA, 1.0, N, n_holders=10, minimum=8)
SUMS = replace(LOCAL, trust="secure-sum", max_colluders=3)
GAUSSIAN = replace(SUMS, delta=1e-6)
FEATURES = [Numeric("age", 0, 90, missing=False), Numeric("size", 0, 9, missing=False), Categorical("kind", ["u", "v"], missing=False)]
RNG = np.random.default_rng(8)
COLUMNS: dict[str, Any] = {"age": RNG.uniform(0, 90, N), "size": RNG.uniform(0, 9, N), "kind": RNG.integers(0, 2, N)}
ILL = (COLUMNS["age"] + 10 * RNG.normal(size=N) > 45).astype(np.int64)
TREES = Params(
    Schema(FEATURES, Categorical("ill", ["no", "yes"])), 8.0, N, n_holders=10, minimum=8, variant="paper", max_depth=3, n_levels=2
)
ROWS = Split(COLUMNS, ILL, COLUMNS, ILL, np.arange(N) % 10, 10)
PAINS = COLUMNS["age"] / 9
NUMBER = Params(Schema(FEATURES, Numeric("pain", 0, 10)), 2.0, N, n_holders=10, minimum=8, trust="secure-sum")
NUMBERS = Split(COLUMNS, PAINS, COLUMNS, PAINS, np.arange(N) % 10, 10)
CASES = {"local": (LOCAL, SPLIT), "sums": (SUMS, SPLIT), "gaussian": (GAUSSIAN, SPLIT), "paper": (TREES, ROWS), "number": (NUMBER, NUMBERS)}
every = pytest.mark.parametrize(("params", "split"), CASES.values(), ids=list(CASES))


@pytest.mark.untraced
@every
def test_a_run_is_a_function_of_its_task(params: Params, split: Split) -> None:
    first, again = (run(Task(params, 1), split) for _ in range(2))
    assert first == again
    others = [Task(params, 2), Task(params, 1, repeat=1), Task(replace(params, epsilon=0.9), 1), Task(params, 1, dropout=0.2)]
    models = [first.model, *(share(task, split).model.to_plain() for task in others)]
    assert all(one != other for i, one in enumerate(models) for other in models[:i])


@every
def test_a_run_learns_and_says_from_whom(params: Params, split: Split) -> None:
    outcome = run(Task(params, 1), split)
    assert (outcome.people, outcome.n_rows) == (10, N)
    model = from_plain(outcome.model)
    if params.is_number:
        assert outcome.scores == errors_of(model.predict(split.unseen), split.unseen_labels)
        assert isinstance(outcome.scores, Errors) and outcome.scores.r_squared > 0.5
    else:
        assert outcome.scores == scores_of(model.probabilities(split.unseen), model.decide(split.unseen), split.unseen_labels)
        assert isinstance(outcome.scores, Scores) and outcome.scores.auc > 0.6


class TestReleases:
    @pytest.mark.parametrize("params", [LOCAL, SUMS])
    def test_are_those_of_the_protocols_population(self, params: Params) -> None:
        task = Task(params, 4)
        rows = Rows.of(params, SPLIT.asked, SPLIT.labels, SPLIT.holders)
        learned = simulate(params, rows, task.entropy.spawn("digest").bytes(32), task.entropy.spawn("answers"))
        outcome = run(task, SPLIT)
        assert outcome.model == learned.model.to_plain() and outcome.answers == tuple(map(len, learned.answers))

    def test_of_trees_too_and_a_regression_on_all_rows_is_the_model(self) -> None:
        task = Task(TREES, 4)
        assert ROWS.holders is not None
        datasets = simulate_paper(TREES, ROWS.asked, ROWS.labels, ROWS.holders, task.entropy.spawn("answers")).datasets
        outcome = run(task, ROWS)
        assert outcome.answers == tuple(map(len, datasets)) and len(datasets) == 10
        columns = {name: np.concatenate([one.columns[name] for one in datasets]) for name in TREES.schema.names}
        model = released_model(TREES, Rows.of(TREES, columns, np.concatenate([one.labels for one in datasets])))
        assert outcome.model == model.to_plain()

    def test_the_pool_releases_as_many_rows_as_were_declared(self) -> None:
        params = replace(LOCAL, size=777)
        task = Task(params, 1)
        [dataset] = share(task, SPLIT).released(params, task)
        assert len(dataset) == 777
        again = share(task, SPLIT).released(params, task)[0]
        assert (again.labels == dataset.labels).all()

    def test_trees_release_what_each_has_made(self) -> None:
        task = Task(TREES, 1, dropout=0.1)
        shared = share(task, ROWS)
        assert shared.released(TREES, task) is shared.datasets and len(shared.datasets) == len(shared.sharers) == 9


class TestDropout:
    @pytest.mark.parametrize(("params", "split"), [(LOCAL, SPLIT), (SUMS, SPLIT), (TREES, ROWS)])
    def test_whoever_is_gone_teaches_nothing(self, params: Params, split: Split) -> None:
        task = Task(params, 4, dropout=0.2)
        shared = share(task, split)
        is_gone = ~np.isin(shared.whose, shared.sharers)
        wrong = share(task, replace(split, labels=np.where(is_gone, 1 - split.labels, split.labels)))
        assert wrong.model.to_plain() == shared.model.to_plain() and shared.n_rows == 8 * N // 10 and len(shared.sharers) == 8

    def test_shares_of_noise_go_with_the_holders(self) -> None:
        task = Task(SUMS, 4, dropout=0.1)
        shared = share(task, SPLIT)
        rows = Rows.of(SUMS, SPLIT.asked, SPLIT.labels, SPLIT.holders)
        digest, entropy = task.entropy.spawn("digest").bytes(32), task.entropy.spawn("answers")
        learned = simulate(SUMS, rows, digest, entropy, n_answering=9, sharers=shared.sharers)
        assert learned.model.to_plain() == shared.model.to_plain()

    def test_below_the_minimum_there_is_no_sum_but_tables(self) -> None:
        with pytest.raises(ShoalError) as error:
            run(Task(SUMS, 1, dropout=0.3), SPLIT)
        assert error.value.code == "SUM-003" and "7 of 10 holders are left" in error.value.what
        assert run(Task(LOCAL, 1, dropout=0.3), SPLIT).people == 7

    def test_those_who_are_gone_read_and_have_home_models(self) -> None:
        outcome = run(Task(LOCAL, 1, dropout=0.5), SPLIT)
        assert outcome.people == 5 and outcome.at_home is not None and outcome.at_home.n_holders == 10


class TestRows:
    def test_are_dealt_where_nobody_says_whose_they_are(self) -> None:
        whose = share(Task(LOCAL, 1), replace(SPLIT, holders=None, n_holders=0)).whose
        assert np.bincount(whose).tolist() == [N // 10] * 10 and (whose != np.arange(N) % 10).any()

    def test_holders_are_as_many_as_the_study_says(self) -> None:
        with pytest.raises(ShoalError) as error:
            run(Task(LOCAL, 1), replace(SPLIT, n_holders=4))
        assert error.value.code == "SIM-007" and "names 4 holders, and the study has n_holders = 10" in error.value.what

    @pytest.mark.parametrize("params", [LOCAL, SUMS])
    def test_nobody_counts_more_often_than_the_study_allows(self, params: Params) -> None:
        params = replace(params, unit="person", max_rows=2)
        outcome = run(Task(params, 1), replace(SPLIT, people=np.arange(N) % 100, holders=np.arange(N) // 200))
        assert outcome.n_rows == 100 * 2 * 10

    def test_at_home_all_rows_are_used(self) -> None:
        """The limit of rows per person is for what is released."""
        params = replace(LOCAL, unit="person", max_rows=1, epsilon=math.inf)
        limited = run(Task(params, 1), replace(SPLIT, people=np.arange(N) % 10))
        free = run(Task(params, 1), SPLIT)
        assert limited.at_home is not None and free.at_home is not None
        assert limited.at_home.own == free.at_home.own and limited.n_rows == 10


class TestHomes:
    def test_are_means_over_holders(self) -> None:
        task = Task(LOCAL, 1)
        shared, entropy = share(task, SPLIT), task.entropy.spawn("homes")
        told = homes(LOCAL, SPLIT, shared, entropy)
        rows = Rows.of(LOCAL, SPLIT.asked, SPLIT.labels)
        each = []
        for holder in range(10):
            mine = rows.take(shared.whose == holder)
            models = at_home(shared.model, mine, entropy.spawn(holder)), own_model(LOCAL, mine)
            each.append([scores_of(one.probabilities(SPLIT.unseen), one.decide(SPLIT.unseen), SPLIT.unseen_labels) for one in models])
        home, own = (np.array([pair[i].accuracy for pair in each]) for i in (0, 1))
        assert isinstance(told.home, Scores) and isinstance(told.own, Scores)
        assert told.home.accuracy == pytest.approx(home.mean()) and told.own.accuracy == pytest.approx(own.mean())
        assert told.gain == np.mean(home > own) and told.n_holders == 10

    def test_with_a_good_release_nearly_all_gain(self) -> None:
        params = replace(SUMS, n_holders=60, minimum=60)
        told = run(Task(params, 1), replace(SPLIT, holders=np.arange(N) % 60, n_holders=60)).at_home
        assert isinstance(told, AtHome) and told.n_holders == MOST_HOMES and told.gain > 0.8
        assert isinstance(told.home, Scores) and isinstance(told.own, Scores) and told.home.auc > told.own.auc + 0.02

    def test_of_trees_learn_from_all_rows_and_their_own(self) -> None:
        task = Task(TREES, 1)
        shared = share(task, ROWS)
        told = homes(TREES, ROWS, replace(shared, datasets=()), task.entropy.spawn("homes"))
        own = [ridge_model(TREES, Rows.of(TREES, ROWS.asked, ROWS.labels).take(shared.whose == holder)) for holder in range(10)]
        accuracies = [np.mean(one.decide(ROWS.unseen) == ROWS.unseen_labels) for one in own]
        assert isinstance(told.home, Scores) and told.home.accuracy == pytest.approx(np.mean(accuracies))
        assert homes(TREES, ROWS, shared, task.entropy.spawn("homes")).home != told.home

    def test_of_numbers_gain_by_smaller_errors(self) -> None:
        told = run(Task(replace(NUMBER, epsilon=math.inf), 1), NUMBERS).at_home
        assert told is not None and isinstance(told.home, Errors) and isinstance(told.own, Errors)
        assert told.home.rmse < told.own.rmse and told.gain > 0.5


class TestYardsticks:
    def test_of_classes(self) -> None:
        held = yardsticks(LOCAL, SPLIT)
        assert list(held) == ["most_common", "without_privacy"]
        best = held["without_privacy"]
        model = ridge_model(LOCAL, Rows.of(LOCAL, SPLIT.asked, SPLIT.labels))
        assert isinstance(best, Scores) and best.accuracy == np.mean(model.decide(SPLIT.unseen) == SPLIT.unseen_labels)

    def test_of_numbers(self) -> None:
        held = yardsticks(NUMBER, NUMBERS)
        assert list(held) == ["mean_label", "without_privacy"]
        trivial, best = held.values()
        assert isinstance(trivial, Errors) and isinstance(best, Errors) and best.rmse < trivial.rmse / 3


def test_facts_are_those_that_have_a_meaning() -> None:
    local, sums, trees = map(facts, (LOCAL, SUMS, TREES))
    assert (local["trust"], local["noise"], local["n_tables"], local["depth"]) == ("local", "own", 3, None)
    assert (sums["noise"], sums["n_honest"], sums["n_tables"], sums["labelling"]) == ("shares", 5, None, None)
    assert (trees["variant"], trees["depth"], trees["labelling"], trees["projection"], trees["n_tables"]) == (
        "paper",
        3,
        "shared",
        True,
        None,
    )
    assert facts(replace(SUMS, epsilon=math.inf))["noise"] is None


def test_parameters_are_the_studys_with_or_without_noise() -> None:
    study = parse(study_text("pfds"))
    params = params_for(study, without_perturbation=False)
    assert (params.epsilon, params.size, params.n_holders) == (study.privacy.epsilon, study.participation.size, 20)
    assert params_for(study, without_perturbation=True) == replace(params, epsilon=math.inf)
