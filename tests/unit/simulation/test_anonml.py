"""One run of AnonML: dropout, baselines, and the same result for the same seed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shoal.cli.hello.population import SCHEMA, make_people
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.protocols.anonml.params import AnonMLPaperParams, AnonMLPlusParams
from shoal.simulation.anonml import describe_params, run, score_baselines
from shoal.simulation.metrics import score_most_common, score_without_privacy
from shoal.simulation.registry import make_simulation_params
from shoal.simulation.run import RunTask, Split
from shoal.study.loader import parse_study_text
from shoal.study.starters import read_starter

PEOPLE = make_people(4000, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
PLUS = AnonMLPlusParams(SCHEMA, 4.0, 4000)
PAPER_TABLE = "[anonml]\nn_partitions = 2\nn_subsets = 1\nsubset_size = 2\n[privacy]"
PAPER_TEXT = (
    read_starter("anonml")
    .replace('variant = "plus"', 'variant = "paper"')
    .replace("[privacy]", PAPER_TABLE)
)


def test_run_depends_only_on_its_task() -> None:
    assert run(RunTask(PLUS, 1), SPLIT) == run(RunTask(PLUS, 1), SPLIT)
    others = [RunTask(PLUS, 2), RunTask(PLUS, 1, repeat=1), RunTask(replace(PLUS, epsilon=4.5), 1)]
    assert len({run(task, SPLIT).scores for task in [RunTask(PLUS, 1), *others]}) == 4


def test_run_learns_and_counts_each_person_once() -> None:
    outcome = run(RunTask(PLUS, 1), SPLIT)
    assert outcome.n_participants == sum(outcome.answers) == 4000
    assert outcome.scores.auc > 0.65 and outcome.model["kind"] == "additive"


def test_paper_subsets_differ_between_runs() -> None:
    params = AnonMLPaperParams(SCHEMA, 8.0, 4000, n_partitions=1, n_subsets=1, subset_size=3)
    models = [run(RunTask(params, 1, repeat), SPLIT).model for repeat in range(6)]
    assert (
        len(
            {tuple(model["classifiers"][0]["features"]) for model in models if model["classifiers"]}
        )
        > 1
    )


def test_people_who_drop_out_do_not_answer() -> None:
    outcome = run(RunTask(PLUS, 1, dropout=0.25), SPLIT)
    # Eight standard deviations of a binomial count.
    assert abs(outcome.n_participants - 3000) < 8 * math.sqrt(4000 * 0.25 * 0.75)
    assert sum(outcome.answers) == outcome.n_participants
    few = Split(
        {name: column[:3] for name, column in SPLIT.train_columns.items()},
        SPLIT.train_labels[:3],
        SPLIT.test_columns,
        SPLIT.test_labels,
    )
    with pytest.raises(ShoalError) as error:
        run(RunTask(PLUS, 1, dropout=1 - 1e-9), few)
    assert error.value.code == "SIM-003" and "no participant is left" in error.value.what


@pytest.mark.parametrize("variant", ["plus", "paper"])
def test_run_works_with_a_few_rows(variant: str) -> None:
    few = Split(
        {name: column[:6] for name, column in SPLIT.train_columns.items()},
        SPLIT.train_labels[:6],
        SPLIT.test_columns,
        SPLIT.test_labels,
    )
    params = (
        PLUS
        if variant == "plus"
        else AnonMLPaperParams(SCHEMA, 1.0, 6, n_partitions=2, n_subsets=1, subset_size=2)
    )
    assert 0 <= run(RunTask(params, 1), few).scores.accuracy <= 1


def test_parameters_are_those_of_the_study() -> None:
    params = make_simulation_params(parse_study_text(PAPER_TEXT))
    assert isinstance(params, AnonMLPaperParams) and (
        params.epsilon,
        params.n_partitions,
        params.subset_size,
    ) == (2.0, 2, 2)
    assert (
        make_simulation_params(parse_study_text(PAPER_TEXT), without_perturbation=True).epsilon
        == math.inf
    )


def test_plus_without_noise_is_rejected() -> None:
    with pytest.raises(ShoalError) as error:
        make_simulation_params(parse_study_text(read_starter("anonml")), without_perturbation=True)
    assert error.value.code == "SIM-002" and "plus" in error.value.what


def test_baselines_are_guessing_and_no_privacy() -> None:
    rows = SPLIT.train_columns, SPLIT.train_labels, SPLIT.test_columns, SPLIT.test_labels
    assert score_baselines(PLUS, SPLIT) == {
        "most_common": score_most_common(2, SPLIT.train_labels, SPLIT.test_labels),
        "without_privacy": score_without_privacy(SCHEMA, *rows),
    }
    assert {*describe_params(PLUS)["phases"]} == {"placing", "answers"}
