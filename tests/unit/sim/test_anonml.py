"""One run of AnonML: people who drop out, and the same result for the same seed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.protocols.anonml.params import Paper, Plus
from shoal.sim.anonml import facts, run, yardsticks
from shoal.sim.people import SCHEMA, make_people
from shoal.sim.protocols import params_for
from shoal.sim.runs import Split, Task
from shoal.sim.scores import most_common, without_privacy
from shoal.study.load import parse
from shoal.study.templates import study_text

PEOPLE = make_people(4000, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
PLUS = Plus(SCHEMA, 4.0, 4000)
PAPER_TABLE = "[anonml]\nn_partitions = 2\nn_subsets = 1\nsubset_size = 2\n[privacy]"
PAPER_TEXT = study_text("anonml").replace('variant = "plus"', 'variant = "paper"').replace("[privacy]", PAPER_TABLE)


def test_a_run_is_a_function_of_its_task() -> None:
    assert run(Task(PLUS, 1), SPLIT) == run(Task(PLUS, 1), SPLIT)
    others = [Task(PLUS, 2), Task(PLUS, 1, repeat=1), Task(replace(PLUS, epsilon=4.5), 1)]
    assert len({run(task, SPLIT).scores for task in [Task(PLUS, 1), *others]}) == 4


def test_a_run_learns_and_counts_everyone_once() -> None:
    outcome = run(Task(PLUS, 1), SPLIT)
    assert outcome.people == sum(outcome.answers) == 4000
    assert outcome.scores.auc > 0.65 and outcome.model["kind"] == "additive"


def test_the_papers_subsets_differ_between_runs() -> None:
    params = Paper(SCHEMA, 8.0, 4000, n_partitions=1, n_subsets=1, subset_size=3)
    models = [run(Task(params, 1, repeat), SPLIT).model for repeat in range(6)]
    assert len({tuple(model["classifiers"][0]["features"]) for model in models if model["classifiers"]}) > 1


def test_who_drops_out_does_not_answer() -> None:
    outcome = run(Task(PLUS, 1, dropout=0.25), SPLIT)
    # Eight standard deviations of a binomial count.
    assert abs(outcome.people - 3000) < 8 * math.sqrt(4000 * 0.25 * 0.75)
    assert sum(outcome.answers) == outcome.people
    few = Split({name: column[:3] for name, column in SPLIT.asked.items()}, SPLIT.labels[:3], SPLIT.unseen, SPLIT.unseen_labels)
    with pytest.raises(ShoalError) as error:
        run(Task(PLUS, 1, dropout=1 - 1e-9), few)
    assert error.value.code == "SIM-003" and "nobody" in error.value.what


@pytest.mark.parametrize("variant", ["plus", "paper"])
def test_a_handful_of_rows_is_enough_to_run(variant: str) -> None:
    few = Split({name: column[:6] for name, column in SPLIT.asked.items()}, SPLIT.labels[:6], SPLIT.unseen, SPLIT.unseen_labels)
    params = PLUS if variant == "plus" else Paper(SCHEMA, 1.0, 6, n_partitions=2, n_subsets=1, subset_size=2)
    assert 0 <= run(Task(params, 1), few).scores.accuracy <= 1


def test_parameters_are_the_studys() -> None:
    params = params_for(parse(PAPER_TEXT))
    assert isinstance(params, Paper) and (params.epsilon, params.n_partitions, params.subset_size) == (2.0, 2, 2)
    assert params_for(parse(PAPER_TEXT), without_perturbation=True).epsilon == math.inf


def test_plus_is_not_simulated_without_noise() -> None:
    with pytest.raises(ShoalError) as error:
        params_for(parse(study_text("anonml")), without_perturbation=True)
    assert error.value.code == "SIM-002" and "plus" in error.value.what


def test_a_run_is_held_against_guessing_and_against_no_privacy() -> None:
    rows = SPLIT.asked, SPLIT.labels, SPLIT.unseen, SPLIT.unseen_labels
    assert yardsticks(PLUS, SPLIT) == {
        "most_common": most_common(2, SPLIT.labels, SPLIT.unseen_labels),
        "without_privacy": without_privacy(SCHEMA, *rows),
    }
    assert {*facts(PLUS)["phases"]} == {"placing", "answers"}
