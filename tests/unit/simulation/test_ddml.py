"""One run of DDML: devices and their rows, links, texts, traffic and baselines."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.cli.hello.population import SCHEMA, make_people
from shoal.data.schema import Categorical, Numeric, Schema, Text
from shoal.entropy import SeededEntropy
from shoal.errors import UsageError
from shoal.protocols.ddml.model import from_plain
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.population import Traffic
from shoal.simulation.ddml import (
    assign_devices,
    describe_params,
    make_simulation_params,
    run,
    score_baselines,
)
from shoal.simulation.metrics import ClassificationScores, RegressionScores
from shoal.simulation.run import RunTask, Split, draw_participants
from shoal.study.loader import parse_study_text
from shoal.study.starters import read_starter

PEOPLE = make_people(3000, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
PARAMS = DDMLParams(SCHEMA, 12.0, 3000)
FREE: dict[str, Any] = {"epsilon": math.inf, "learning_rate": 2.0, "clip": 1.0}
"""No noise: an update moves one instance by a fifth of its gradient."""
RNG = np.random.default_rng(2)


def test_run_depends_only_on_its_task() -> None:
    split = Split(
        {name: column[:600] for name, column in SPLIT.train_columns.items()},
        SPLIT.train_labels[:600],
        SPLIT.test_columns,
        SPLIT.test_labels,
    )
    first, again = (run(RunTask(PARAMS, 1), split) for _ in range(2))
    assert first == again
    others = [
        RunTask(PARAMS, 2),
        RunTask(PARAMS, 1, repeat=1),
        RunTask(replace(PARAMS, epsilon=4.5), 1),
    ]
    traffic = [
        RunTask(PARAMS, 1, traffic=Traffic(50)),
        RunTask(PARAMS, 1, traffic=Traffic(order="given")),
    ]
    assert len({first.scores, *(run(task, split).scores for task in (*others, *traffic))}) == 6


@pytest.mark.untraced
def test_run_learns_and_each_device_sends_all_its_updates() -> None:
    outcome = run(RunTask(replace(PARAMS, n_updates=2, **FREE), 1), SPLIT)
    assert (outcome.n_participants, outcome.answers) == (3000, (6000,))
    assert isinstance(outcome.scores, ClassificationScores) and outcome.scores.auc > 0.7
    assert from_plain(outcome.model).schema == SCHEMA


def test_consecutive_rows_form_one_device() -> None:
    params = replace(PARAMS, batch_size=7)
    assert assign_devices(params, SPLIT)[:15].tolist() == [0] * 7 + [1] * 7 + [2]
    assert run(RunTask(params, 1), SPLIT).n_participants == math.ceil(3000 / 7)


def test_rows_of_a_holder_form_one_device() -> None:
    split = replace(SPLIT, holders=np.arange(3000) % 100 * 5)
    assert run(RunTask(replace(PARAMS, batch_size=7), 1), split).n_participants == 100


@pytest.mark.parametrize("holders", [None, np.arange(3000) % 750])
def test_device_drops_out_with_all_its_rows(holders: Any) -> None:
    params = replace(PARAMS, batch_size=4)
    outcome = run(RunTask(params, 1, dropout=0.25), replace(SPLIT, holders=holders))
    # Eight standard deviations of a binomial count. A device of which a row was left would count
    # too.
    assert abs(outcome.n_participants - 562.5) < 8 * math.sqrt(750 * 0.25 * 0.75)
    assert outcome.answers == (outcome.n_participants,)


def test_absent_device_does_not_change_the_model() -> None:
    """Rows that would break the model are those of the one device that drops out."""
    task = next(
        task
        for seed in range(50)
        if _stays(task := RunTask(replace(PARAMS, epsilon=math.inf), seed, dropout=0.5))
        == [False, True]
    )
    holders = np.repeat([0, 1], 1500)
    wrong = Split(
        SPLIT.train_columns,
        np.where(holders == 0, 1 - SPLIT.train_labels, SPLIT.train_labels),
        SPLIT.test_columns,
        SPLIT.test_labels,
        holders,
    )
    assert run(task, wrong) == run(task, replace(SPLIT, holders=holders))


def _stays(task: RunTask) -> list[bool]:
    try:
        return [bool(stay) for stay in draw_participants(2, task)]
    except UsageError:
        return []


def test_facts_are_those_of_the_noisy_step() -> None:
    told = describe_params(PARAMS)
    assert (told["weights"], told["n_instances"], told["merge"]) == (PARAMS.n_weights, 20, "blend")
    assert (told["learning_rate"], told["clip"]) == (PARAMS.rates.learning_rate, PARAMS.rates.clip)
    assert (
        told["mechanism"] == "k-closest"
        and describe_params(replace(PARAMS, variant="paper"))["mechanism"] == "discrete-laplace"
    )
    assert describe_params(replace(PARAMS, epsilon=math.inf))["mechanism"] is None


def test_parameters_are_those_of_the_study_with_or_without_noise() -> None:
    study = parse_study_text(read_starter("ddml"))
    params = make_simulation_params(study, without_perturbation=False)
    assert (params.epsilon, params.size) == (study.privacy.epsilon, study.participation.size)
    assert make_simulation_params(study, without_perturbation=True) == replace(
        params, epsilon=math.inf
    )


def number_split(schema: Schema, link: Any, n: int = 1000) -> tuple[DDMLParams, Split]:
    x, kind = RNG.random(n) * 4, RNG.integers(0, 2, n)
    y = np.clip(10 + 2 * x + 4 * kind + RNG.normal(0, 0.3, n), 10, 30)
    columns = {"x": x, "kind": kind}
    params = DDMLParams(schema, size=n, link=link, n_updates=5, **FREE)
    return params, Split(columns, y, columns, y)


NUMBERS = Schema(
    [Numeric("x", 0, 4, missing=False), Categorical("kind", ["a", "b"], missing=False)],
    label=Numeric("y", 10, 30, missing=False),
)


@pytest.mark.parametrize("link", ["identity", "log"])
def test_numeric_label_is_scored_in_its_own_units(link: Any) -> None:
    params, split = number_split(NUMBERS, link)
    held = score_baselines(params, split)
    trivial, free = held["mean_label"], held["without_privacy"]
    assert isinstance(trivial, RegressionScores) and isinstance(free, RegressionScores)
    assert trivial.r_squared == pytest.approx(0) and trivial.rmse == pytest.approx(
        float(np.std(split.train_labels))
    )
    scores = run(RunTask(params, 1), split).scores
    assert (
        isinstance(scores, RegressionScores)
        and max(free.rmse, scores.rmse) < (0.35 if link == "identity" else 1.4) < 0.5 * trivial.rmse
    )


def test_model_without_privacy_uses_the_studys_inputs() -> None:
    """Only a cross separates a label that is the product of two features."""
    schema = Schema(
        [Categorical("a", ["0", "1"], missing=False), Categorical("b", ["0", "1"], missing=False)],
        label=Categorical("y", ["no", "yes"], missing=False),
    )
    a, b = RNG.integers(0, 2, 400), RNG.integers(0, 2, 400)
    split = Split({"a": a, "b": b}, a ^ b, {"a": a, "b": b}, a ^ b)
    plain, crossed = (
        score_baselines(DDMLParams(schema, 1.0, 400, crosses=crosses), split)["without_privacy"]
        for crosses in ((), (("a", "b"),))
    )
    assert isinstance(plain, ClassificationScores) and isinstance(crossed, ClassificationScores)
    assert crossed.accuracy == 1 and plain.accuracy < 0.8


def test_texts_improve_the_model() -> None:
    schema = Schema(
        [], label=Categorical("y", ["no", "yes"], missing=False), texts=[Text("words", buckets=64)]
    )
    labels = RNG.integers(0, 2, 1500)
    columns = schema.encode(
        {"words": np.array([("good day" if one else "bad luck") for one in labels], object)}
    )
    split = Split(columns, labels, columns, labels)
    params = DDMLParams(schema, size=1500, **FREE)
    free, scores = (
        score_baselines(params, split)["without_privacy"],
        run(RunTask(params, 1), split).scores,
    )
    assert (
        isinstance(free, ClassificationScores)
        and isinstance(scores, ClassificationScores)
        and free.accuracy == scores.accuracy == 1
    )


def test_several_classes_give_a_multinomial_model() -> None:
    schema = replace(SCHEMA, label=Categorical("region2", ["n", "e", "s", "w"], missing=False))
    split = Split(
        PEOPLE.columns, PEOPLE.columns["region"], PEOPLE.columns, PEOPLE.columns["region"]
    )
    params = DDMLParams(schema, size=3000, link="multinomial", **FREE)
    held, scores = score_baselines(params, split), run(RunTask(params, 1), split).scores
    assert (
        isinstance(scores, ClassificationScores)
        and scores.accuracy > 0.9
        and isinstance(held["most_common"], ClassificationScores)
    )
    assert held["most_common"].accuracy < 0.3
