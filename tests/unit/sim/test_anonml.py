"""One run: rows set aside, people who drop out, and the same result for the same seed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.domain import Columns
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.protocols.anonml.params import Paper, Plus
from shoal.sim.anonml import Split, Task, params_for, run, split_rows
from shoal.sim.people import SCHEMA, make_people
from shoal.study.load import parse
from shoal.study.templates import study_text

PEOPLE = make_people(4000, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
PLUS = Plus(SCHEMA, 4.0, 4000)
PAPER_TABLE = "[anonml]\nn_partitions = 2\nn_subsets = 1\nsubset_size = 2\n[privacy]"
PAPER_TEXT = study_text("anonml").replace('variant = "plus"', 'variant = "paper"').replace("[privacy]", PAPER_TABLE)


def table(n: int, label: str | None = None) -> Columns:
    people = make_people(n, SeededEntropy(4))
    columns = {
        feature.name: np.array([feature.values[i] for i in people.columns[feature.name]], object)
        if hasattr(feature, "values")
        else people.columns[feature.name]
        for feature in SCHEMA.features
    }
    labels = ["yes" if one else "no" for one in people.labels] if label is None else [label] * n
    return {**columns, "sleeps_badly": np.array(labels, object), "row": np.arange(n)}


def test_a_quarter_is_set_aside_and_no_row_is_on_both_sides() -> None:
    split = split_rows(SCHEMA, table(401), seed=1)
    assert (len(split.unseen_labels), len(split.labels)) == (100, 301)
    everyone = SCHEMA.encode(table(401))["age"]
    both = np.concatenate([split.asked["age"], split.unseen["age"]])
    assert sorted(both) == sorted(everyone)


def test_the_seed_draws_the_split() -> None:
    first, again, other = (split_rows(SCHEMA, table(400), seed) for seed in (1, 1, 2))
    assert np.array_equal(first.unseen["age"], again.unseen["age"])
    assert not np.array_equal(first.unseen["age"], other.unseen["age"])


@pytest.mark.parametrize(
    ("n", "label", "what"),
    [
        (0, None, "no rows"),
        (50, "no", "All 50 rows"),
        (1, "no", "All 1 row of"),
        (5, None, "5 rows, 1 is set aside"),
        (2, None, "0 are set aside for testing, and one of the two parts has fewer than two classes"),
    ],
)
def test_what_cannot_be_split_is_refused(n: int, label: str | None, what: str) -> None:
    with pytest.raises(ShoalError) as error:
        split_rows(SCHEMA, table(n, label), seed=0)
    assert error.value.code == "SIM-003" and what in error.value.what


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


def test_what_is_not_simulated_is_refused() -> None:
    for protocol in ("ddml", "sdq", "pfds"):
        with pytest.raises(ShoalError) as error:
            params_for(parse(study_text(protocol)))
        assert error.value.code == "SIM-002" and protocol in error.value.what
    with pytest.raises(ShoalError) as error:
        params_for(parse(study_text("anonml")), without_perturbation=True)
    assert error.value.code == "SIM-002" and "plus" in error.value.what
