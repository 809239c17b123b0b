"""One run of DDML: devices and their rows, links and texts, traffic, and what a model is held against."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.domain import Categorical, Numeric, Schema, Text
from shoal.entropy import SeededEntropy
from shoal.errors import UsageError
from shoal.protocols.ddml.model import from_plain
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.population import Traffic
from shoal.sim.ddml import facts, params_for, run, whose_rows, yardsticks
from shoal.sim.people import SCHEMA, make_people
from shoal.sim.runs import Split, Task, who_stays
from shoal.sim.scores import Errors, Scores
from shoal.study.load import parse
from shoal.study.templates import study_text

PEOPLE = make_people(3000, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
PARAMS = Params(SCHEMA, 12.0, 3000)
FREE: dict[str, Any] = {"epsilon": math.inf, "learning_rate": 2.0, "clip": 1.0}
"""No noise: an update moves one instance by a fifth of its gradient."""
RNG = np.random.default_rng(2)


def test_a_run_is_a_function_of_its_task() -> None:
    split = Split({name: column[:600] for name, column in SPLIT.asked.items()}, SPLIT.labels[:600], SPLIT.unseen, SPLIT.unseen_labels)
    first, again = (run(Task(PARAMS, 1), split) for _ in range(2))
    assert first == again
    others = [Task(PARAMS, 2), Task(PARAMS, 1, repeat=1), Task(replace(PARAMS, epsilon=4.5), 1)]
    traffic = [Task(PARAMS, 1, traffic=Traffic(50)), Task(PARAMS, 1, traffic=Traffic(order="given"))]
    assert len({first.scores, *(run(task, split).scores for task in (*others, *traffic))}) == 6


@pytest.mark.untraced
def test_a_run_learns_and_every_device_sends_all_its_updates() -> None:
    outcome = run(Task(replace(PARAMS, n_updates=2, **FREE), 1), SPLIT)
    assert (outcome.people, outcome.answers) == (3000, (6000,))
    assert isinstance(outcome.scores, Scores) and outcome.scores.auc > 0.7
    assert from_plain(outcome.model).schema == SCHEMA


def test_consecutive_rows_are_one_device() -> None:
    params = replace(PARAMS, batch_size=7)
    assert whose_rows(params, SPLIT)[:15].tolist() == [0] * 7 + [1] * 7 + [2]
    assert run(Task(params, 1), SPLIT).people == math.ceil(3000 / 7)


def test_rows_of_a_holder_are_one_device() -> None:
    split = replace(SPLIT, holders=np.arange(3000) % 100 * 5)
    assert run(Task(replace(PARAMS, batch_size=7), 1), split).people == 100


@pytest.mark.parametrize("holders", [None, np.arange(3000) % 750])
def test_devices_drop_out_as_a_whole(holders: Any) -> None:
    params = replace(PARAMS, batch_size=4)
    outcome = run(Task(params, 1, dropout=0.25), replace(SPLIT, holders=holders))
    # Eight standard deviations of a binomial count. A device of which a row was left would count too.
    assert abs(outcome.people - 562.5) < 8 * math.sqrt(750 * 0.25 * 0.75)
    assert outcome.answers == (outcome.people,)


def test_a_device_that_is_gone_teaches_nothing() -> None:
    """Rows that would break the model are those of the one device that drops out."""
    task = next(task for seed in range(50) if _stays(task := Task(replace(PARAMS, epsilon=math.inf), seed, dropout=0.5)) == [False, True])
    holders = np.repeat([0, 1], 1500)
    wrong = Split(SPLIT.asked, np.where(holders == 0, 1 - SPLIT.labels, SPLIT.labels), SPLIT.unseen, SPLIT.unseen_labels, holders)
    assert run(task, wrong) == run(task, replace(SPLIT, holders=holders))


def _stays(task: Task) -> list[bool]:
    try:
        return [bool(stay) for stay in who_stays(2, task)]
    except UsageError:
        return []


def test_facts_are_those_of_the_step_that_is_taken() -> None:
    told = facts(PARAMS)
    assert (told["weights"], told["n_instances"], told["merge"]) == (PARAMS.n_weights, 20, "blend")
    assert (told["learning_rate"], told["clip"]) == (PARAMS.rates.learning_rate, PARAMS.rates.clip)
    assert told["mechanism"] == "k-closest" and facts(replace(PARAMS, variant="paper"))["mechanism"] == "discrete-laplace"
    assert facts(replace(PARAMS, epsilon=math.inf))["mechanism"] is None


def test_parameters_are_the_studys_with_or_without_noise() -> None:
    study = parse(study_text("ddml"))
    params = params_for(study, without_perturbation=False)
    assert (params.epsilon, params.size) == (study.privacy.epsilon, study.participation.size)
    assert params_for(study, without_perturbation=True) == replace(params, epsilon=math.inf)


def number_split(schema: Schema, link: Any, n: int = 1000) -> tuple[Params, Split]:
    x, kind = RNG.random(n) * 4, RNG.integers(0, 2, n)
    y = np.clip(10 + 2 * x + 4 * kind + RNG.normal(0, 0.3, n), 10, 30)
    columns = {"x": x, "kind": kind}
    params = Params(schema, size=n, link=link, n_updates=5, **FREE)
    return params, Split(columns, y, columns, y)


NUMBERS = Schema(
    [Numeric("x", 0, 4, missing=False), Categorical("kind", ["a", "b"], missing=False)], label=Numeric("y", 10, 30, missing=False)
)


@pytest.mark.parametrize("link", ["identity", "log"])
def test_a_number_is_scored_in_its_own_units(link: Any) -> None:
    params, split = number_split(NUMBERS, link)
    held = yardsticks(params, split)
    trivial, free = held["mean_label"], held["without_privacy"]
    assert isinstance(trivial, Errors) and isinstance(free, Errors)
    assert trivial.r_squared == pytest.approx(0) and trivial.rmse == pytest.approx(float(np.std(split.labels)))
    scores = run(Task(params, 1), split).scores
    assert isinstance(scores, Errors) and max(free.rmse, scores.rmse) < (0.35 if link == "identity" else 1.4) < 0.5 * trivial.rmse


def test_without_privacy_the_inputs_are_the_studys() -> None:
    """A label that is the product of two features is told apart by a cross alone."""
    schema = Schema(
        [Categorical("a", ["0", "1"], missing=False), Categorical("b", ["0", "1"], missing=False)],
        label=Categorical("y", ["no", "yes"], missing=False),
    )
    a, b = RNG.integers(0, 2, 400), RNG.integers(0, 2, 400)
    split = Split({"a": a, "b": b}, a ^ b, {"a": a, "b": b}, a ^ b)
    plain, crossed = (yardsticks(Params(schema, 1.0, 400, crosses=crosses), split)["without_privacy"] for crosses in ((), (("a", "b"),)))
    assert isinstance(plain, Scores) and isinstance(crossed, Scores)
    assert crossed.accuracy == 1 and plain.accuracy < 0.8


def test_texts_are_learned_from() -> None:
    schema = Schema([], label=Categorical("y", ["no", "yes"], missing=False), texts=[Text("words", buckets=64)])
    labels = RNG.integers(0, 2, 1500)
    columns = schema.encode({"words": np.array([("good day" if one else "bad luck") for one in labels], object)})
    split = Split(columns, labels, columns, labels)
    params = Params(schema, size=1500, **FREE)
    free, scores = yardsticks(params, split)["without_privacy"], run(Task(params, 1), split).scores
    assert isinstance(free, Scores) and isinstance(scores, Scores) and free.accuracy == scores.accuracy == 1


def test_several_classes_have_a_multinomial_model() -> None:
    schema = replace(SCHEMA, label=Categorical("region2", ["n", "e", "s", "w"], missing=False))
    split = Split(PEOPLE.columns, PEOPLE.columns["region"], PEOPLE.columns, PEOPLE.columns["region"])
    params = Params(schema, size=3000, link="multinomial", **FREE)
    held, scores = yardsticks(params, split), run(Task(params, 1), split).scores
    assert isinstance(scores, Scores) and scores.accuracy > 0.9 and isinstance(held["most_common"], Scores)
    assert held["most_common"].accuracy < 0.3
