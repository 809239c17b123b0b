"""One run of PFDS: holders, dropout, the release, and personal models."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.cli.hello.population import SCHEMA, make_people
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.protocols.pfds.fitting import fit_own_model, fit_released_model, fit_ridge_model
from shoal.protocols.pfds.model import from_plain
from shoal.protocols.pfds.paper.population import simulate_paper
from shoal.protocols.pfds.params import PFDSParams, PFDSRows
from shoal.protocols.pfds.personal_model import fit_personal_model
from shoal.protocols.pfds.population import simulate
from shoal.simulation.metrics import (
    ClassificationScores,
    PersonalModelScores,
    RegressionScores,
    compute_errors,
    compute_scores,
)
from shoal.simulation.pfds import (
    MAX_PERSONAL_MODELS,
    describe_params,
    make_simulation_params,
    run,
    score_baselines,
    score_personal_models,
    simulate_release,
)
from shoal.simulation.run import RunTask, Split
from shoal.study.loader import parse_study_text
from shoal.study.starters import read_starter

N = 2000
PEOPLE = make_people(N, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels, np.arange(N) % 10, 10)
LOCAL = PFDSParams(SCHEMA, 1.0, N, n_holders=10, minimum=8)
SUMS = replace(LOCAL, trust="secure-sum", max_colluders=3)
GAUSSIAN = replace(SUMS, delta=1e-6)
FEATURES = [
    Numeric("age", 0, 90, missing=False),
    Numeric("size", 0, 9, missing=False),
    Categorical("kind", ["u", "v"], missing=False),
]
RNG = np.random.default_rng(8)
COLUMNS: dict[str, Any] = {
    "age": RNG.uniform(0, 90, N),
    "size": RNG.uniform(0, 9, N),
    "kind": RNG.integers(0, 2, N),
}
ILL = (COLUMNS["age"] + 10 * RNG.normal(size=N) > 45).astype(np.int64)
TREES = PFDSParams(
    Schema(FEATURES, Categorical("ill", ["no", "yes"])),
    8.0,
    N,
    n_holders=10,
    minimum=8,
    variant="paper",
    max_depth=3,
    n_levels=2,
)
ROWS = Split(COLUMNS, ILL, COLUMNS, ILL, np.arange(N) % 10, 10)
PAINS = COLUMNS["age"] / 9
NUMBER = PFDSParams(
    Schema(FEATURES, Numeric("pain", 0, 10)), 2.0, N, n_holders=10, minimum=8, trust="secure-sum"
)
NUMBERS = Split(COLUMNS, PAINS, COLUMNS, PAINS, np.arange(N) % 10, 10)
CASES = {
    "local": (LOCAL, SPLIT),
    "sums": (SUMS, SPLIT),
    "gaussian": (GAUSSIAN, SPLIT),
    "paper": (TREES, ROWS),
    "number": (NUMBER, NUMBERS),
}
every = pytest.mark.parametrize(("params", "split"), CASES.values(), ids=list(CASES))


@pytest.mark.untraced
@every
def test_run_depends_only_on_its_task(params: PFDSParams, split: Split) -> None:
    first, again = (run(RunTask(params, 1), split) for _ in range(2))
    assert first == again
    others = [
        RunTask(params, 2),
        RunTask(params, 1, repeat=1),
        RunTask(replace(params, epsilon=0.9), 1),
        RunTask(params, 1, dropout=0.2),
    ]
    models = [first.model, *(simulate_release(task, split).model.to_plain() for task in others)]
    assert all(one != other for i, one in enumerate(models) for other in models[:i])


@every
def test_run_learns_and_counts_holders(params: PFDSParams, split: Split) -> None:
    outcome = run(RunTask(params, 1), split)
    assert (outcome.n_participants, outcome.n_rows) == (10, N)
    model = from_plain(outcome.model)
    if params.is_number:
        assert outcome.scores == compute_errors(
            model.predict(split.test_columns), split.test_labels
        )
        assert isinstance(outcome.scores, RegressionScores) and outcome.scores.r_squared > 0.5
    else:
        assert outcome.scores == compute_scores(
            model.probabilities(split.test_columns),
            model.decide(split.test_columns),
            split.test_labels,
        )
        assert isinstance(outcome.scores, ClassificationScores) and outcome.scores.auc > 0.6


class TestReleases:
    @pytest.mark.parametrize("params", [LOCAL, SUMS])
    def test_answers_equal_those_of_the_population(self, params: PFDSParams) -> None:
        task = RunTask(params, 4)
        rows = PFDSRows.from_columns(params, SPLIT.train_columns, SPLIT.train_labels, SPLIT.holders)
        learned = simulate(
            params, rows, task.entropy.spawn("digest").bytes(32), task.entropy.spawn("answers")
        )
        outcome = run(task, SPLIT)
        assert outcome.model == learned.model.to_plain() and outcome.answers == tuple(
            map(len, learned.answers)
        )

    def test_tree_answers_equal_those_of_the_population_and_the_model_is_a_regression(self) -> None:
        task = RunTask(TREES, 4)
        assert ROWS.holders is not None
        datasets = simulate_paper(
            TREES,
            ROWS.train_columns,
            ROWS.train_labels,
            ROWS.holders,
            task.entropy.spawn("answers"),
        ).datasets
        outcome = run(task, ROWS)
        assert outcome.answers == tuple(map(len, datasets)) and len(datasets) == 10
        columns = {
            name: np.concatenate([one.columns[name] for one in datasets])
            for name in TREES.schema.names
        }
        model = fit_released_model(
            TREES,
            PFDSRows.from_columns(TREES, columns, np.concatenate([one.labels for one in datasets])),
        )
        assert outcome.model == model.to_plain()

    def test_pool_releases_the_declared_number_of_rows(self) -> None:
        params = replace(LOCAL, size=777)
        task = RunTask(params, 1)
        [dataset] = simulate_release(task, SPLIT).draw_released_rows(params, task)
        assert len(dataset) == 777
        again = simulate_release(task, SPLIT).draw_released_rows(params, task)[0]
        assert (again.labels == dataset.labels).all()

    def test_trees_release_the_rows_of_each_holder(self) -> None:
        task = RunTask(TREES, 1, dropout=0.1)
        shared = simulate_release(task, ROWS)
        assert (
            shared.draw_released_rows(TREES, task) is shared.datasets
            and len(shared.datasets) == len(shared.sharers) == 9
        )


class TestDropout:
    @pytest.mark.parametrize(("params", "split"), [(LOCAL, SPLIT), (SUMS, SPLIT), (TREES, ROWS)])
    def test_absent_holder_does_not_change_the_release(
        self, params: PFDSParams, split: Split
    ) -> None:
        task = RunTask(params, 4, dropout=0.2)
        shared = simulate_release(task, split)
        is_gone = ~np.isin(shared.owners, shared.sharers)
        wrong = simulate_release(
            task,
            replace(
                split, train_labels=np.where(is_gone, 1 - split.train_labels, split.train_labels)
            ),
        )
        assert (
            wrong.model.to_plain() == shared.model.to_plain()
            and shared.n_rows == 8 * N // 10
            and len(shared.sharers) == 8
        )

    def test_noise_shares_belong_to_the_holders(self) -> None:
        task = RunTask(SUMS, 4, dropout=0.1)
        shared = simulate_release(task, SPLIT)
        rows = PFDSRows.from_columns(SUMS, SPLIT.train_columns, SPLIT.train_labels, SPLIT.holders)
        digest, entropy = task.entropy.spawn("digest").bytes(32), task.entropy.spawn("answers")
        learned = simulate(SUMS, rows, digest, entropy, n_answering=9, sharers=shared.sharers)
        assert learned.model.to_plain() == shared.model.to_plain()

    def test_dropout_below_the_minimum_prevents_sums_but_not_tables(self) -> None:
        with pytest.raises(ShoalError) as error:
            run(RunTask(SUMS, 1, dropout=0.3), SPLIT)
        assert error.value.code == "SUM-003" and "7 of 10 holders are left" in error.value.what
        assert run(RunTask(LOCAL, 1, dropout=0.3), SPLIT).n_participants == 7

    def test_absent_holders_read_and_have_personal_models(self) -> None:
        outcome = run(RunTask(LOCAL, 1, dropout=0.5), SPLIT)
        assert (
            outcome.n_participants == 5
            and outcome.personal_scores is not None
            and outcome.personal_scores.n_holders == 10
        )


class TestRows:
    def test_rows_without_holders_are_distributed(self) -> None:
        whose = simulate_release(
            RunTask(LOCAL, 1), replace(SPLIT, holders=None, n_holders=0)
        ).owners
        assert np.bincount(whose).tolist() == [N // 10] * 10 and (whose != np.arange(N) % 10).any()

    def test_number_of_holders_is_that_of_the_study(self) -> None:
        with pytest.raises(ShoalError) as error:
            run(RunTask(LOCAL, 1), replace(SPLIT, n_holders=4))
        assert (
            error.value.code == "SIM-007"
            and "names 4 holders; the study has n_holders = 10" in error.value.what
        )

    @pytest.mark.parametrize("params", [LOCAL, SUMS])
    def test_person_counts_no_more_rows_than_the_study_allows(self, params: PFDSParams) -> None:
        params = replace(params, unit="person", max_rows=2)
        outcome = run(
            RunTask(params, 1),
            replace(SPLIT, people=np.arange(N) % 100, holders=np.arange(N) // 200),
        )
        assert outcome.n_rows == 100 * 2 * 10

    def test_personal_models_use_all_rows(self) -> None:
        """The limit of rows per person applies to releases only."""
        params = replace(LOCAL, unit="person", max_rows=1, epsilon=math.inf)
        limited = run(RunTask(params, 1), replace(SPLIT, people=np.arange(N) % 10))
        free = run(RunTask(params, 1), SPLIT)
        assert limited.personal_scores is not None and free.personal_scores is not None
        assert limited.personal_scores.own == free.personal_scores.own and limited.n_rows == 10


class TestHomes:
    def test_personal_scores_are_means_over_holders(self) -> None:
        task = RunTask(LOCAL, 1)
        shared, entropy = simulate_release(task, SPLIT), task.entropy.spawn("homes")
        told = score_personal_models(LOCAL, SPLIT, shared, entropy)
        rows = PFDSRows.from_columns(LOCAL, SPLIT.train_columns, SPLIT.train_labels)
        each = []
        for holder in range(10):
            mine = rows.take(shared.owners == holder)
            models = (
                fit_personal_model(shared.model, mine, entropy.spawn(holder)),
                fit_own_model(LOCAL, mine),
            )
            each.append(
                [
                    compute_scores(
                        one.probabilities(SPLIT.test_columns),
                        one.decide(SPLIT.test_columns),
                        SPLIT.test_labels,
                    )
                    for one in models
                ]
            )
        home, own = (np.array([pair[i].accuracy for pair in each]) for i in (0, 1))
        assert isinstance(told.home, ClassificationScores) and isinstance(
            told.own, ClassificationScores
        )
        assert told.home.accuracy == pytest.approx(
            home.mean()
        ) and told.own.accuracy == pytest.approx(own.mean())
        assert told.gain == np.mean(home > own) and told.n_holders == 10

    def test_good_release_helps_nearly_all_holders(self) -> None:
        params = replace(SUMS, n_holders=60, minimum=60)
        told = run(
            RunTask(params, 1), replace(SPLIT, holders=np.arange(N) % 60, n_holders=60)
        ).personal_scores
        assert (
            isinstance(told, PersonalModelScores)
            and told.n_holders == MAX_PERSONAL_MODELS
            and told.gain > 0.8
        )
        assert (
            isinstance(told.home, ClassificationScores)
            and isinstance(told.own, ClassificationScores)
            and told.home.auc > told.own.auc + 0.02
        )

    def test_personal_models_of_trees_use_released_rows_and_own_rows(self) -> None:
        task = RunTask(TREES, 1)
        shared = simulate_release(task, ROWS)
        told = score_personal_models(
            TREES, ROWS, replace(shared, datasets=()), task.entropy.spawn("homes")
        )
        own = [
            fit_ridge_model(
                TREES,
                PFDSRows.from_columns(TREES, ROWS.train_columns, ROWS.train_labels).take(
                    shared.owners == holder
                ),
            )
            for holder in range(10)
        ]
        accuracies = [np.mean(one.decide(ROWS.test_columns) == ROWS.test_labels) for one in own]
        assert isinstance(told.home, ClassificationScores) and told.home.accuracy == pytest.approx(
            np.mean(accuracies)
        )
        assert (
            score_personal_models(TREES, ROWS, shared, task.entropy.spawn("homes")).home
            != told.home
        )

    def test_personal_models_of_numbers_gain_by_smaller_errors(self) -> None:
        told = run(RunTask(replace(NUMBER, epsilon=math.inf), 1), NUMBERS).personal_scores
        assert (
            told is not None
            and isinstance(told.home, RegressionScores)
            and isinstance(told.own, RegressionScores)
        )
        assert told.home.rmse < told.own.rmse and told.gain > 0.5


class TestYardsticks:
    def test_baselines_of_classes_are_guessing_and_no_privacy(self) -> None:
        held = score_baselines(LOCAL, SPLIT)
        assert list(held) == ["most_common", "without_privacy"]
        best = held["without_privacy"]
        model = fit_ridge_model(
            LOCAL, PFDSRows.from_columns(LOCAL, SPLIT.train_columns, SPLIT.train_labels)
        )
        assert isinstance(best, ClassificationScores) and best.accuracy == np.mean(
            model.decide(SPLIT.test_columns) == SPLIT.test_labels
        )

    def test_baselines_of_numbers_are_the_mean_and_no_privacy(self) -> None:
        held = score_baselines(NUMBER, NUMBERS)
        assert list(held) == ["mean_label", "without_privacy"]
        trivial, best = held.values()
        assert (
            isinstance(trivial, RegressionScores)
            and isinstance(best, RegressionScores)
            and best.rmse < trivial.rmse / 3
        )


def test_facts_are_those_that_apply() -> None:
    local, sums, trees = map(describe_params, (LOCAL, SUMS, TREES))
    assert (local["trust"], local["noise"], local["n_tables"], local["depth"]) == (
        "local",
        "own",
        3,
        None,
    )
    assert (sums["noise"], sums["n_honest"], sums["n_tables"], sums["labelling"]) == (
        "shares",
        5,
        None,
        None,
    )
    assert (
        trees["variant"],
        trees["depth"],
        trees["labelling"],
        trees["projection"],
        trees["n_tables"],
    ) == (
        "paper",
        3,
        "shared",
        True,
        None,
    )
    assert describe_params(replace(SUMS, epsilon=math.inf))["noise"] is None


def test_parameters_are_those_of_the_study_with_or_without_noise() -> None:
    study = parse_study_text(read_starter("pfds"))
    params = make_simulation_params(study, without_perturbation=False)
    assert (params.epsilon, params.size, params.n_holders) == (
        study.privacy.epsilon,
        study.participation.size,
        20,
    )
    assert make_simulation_params(study, without_perturbation=True) == replace(
        params, epsilon=math.inf
    )
