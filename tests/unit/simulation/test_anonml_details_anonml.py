"""Histograms and weights of AnonML: estimates, errors and true counts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.cli.hello.population import SCHEMA, make_people
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.additive_model import AdditiveModel
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.paper import AnonMLPaperScript
from shoal.protocols.anonml.params import AnonMLPaperParams, AnonMLParams, AnonMLPlusParams
from shoal.protocols.anonml.plus import AnonMLPlusScript
from shoal.protocols.anonml.population import collect_tallies
from shoal.protocols.anonml.questions import (
    AgreementQuestion,
    AssignedRows,
    CellQuestion,
    LabelQuestion,
)
from shoal.protocols.anonml.variants import make_script
from shoal.simulation.anonml import list_model_weights, make_histograms, run
from shoal.simulation.diagnostics import MAX_CELLS, Details
from shoal.simulation.run import RunTask, Split

PEOPLE = make_people(3000, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
TABLES = AnonMLPlusParams(SCHEMA, 4.0, 3000)
BITS = AnonMLPlusParams(SCHEMA, 0.2, 3000)
PAPER = AnonMLPaperParams(SCHEMA, 6.0, 3000, n_partitions=2, n_subsets=2, subset_size=2)


def told(
    params: AnonMLParams, seed: int = 1, split: Split = SPLIT
) -> tuple[AnonMLPlusScript | AnonMLPaperScript, list[Details], AssignedRows]:
    entropy = SeededEntropy(seed)
    script = make_script(params, entropy.spawn("digest").bytes(32))
    assert isinstance(script, AnonMLPlusScript | AnonMLPaperScript)
    rows = AssignedRows(
        dict(split.train_columns), split.train_labels, draw_words(len(split.train_labels), entropy)
    )
    tallies = collect_tallies(script, rows, entropy)
    return script, make_histograms(script, tallies, rows, script.learn(tallies, entropy)), rows


def kinds(script: AnonMLPlusScript | AnonMLPaperScript) -> set[type]:
    return {
        type(question)
        for question in script.questions(script.n_steps, script.publish(collect_nothing(script)))
    }


def collect_nothing(script: AnonMLPlusScript | AnonMLPaperScript) -> tuple[()]:
    assert script.n_steps == 0
    return ()


def test_histogram_has_the_true_counts_of_all_participants() -> None:
    _, tables, rows = told(TABLES)
    assert [one["feature"] for one in tables] == list(SCHEMA.names)
    for one in tables:
        estimated, true, error = (np.array(one[part]) for part in ("estimated", "true", "error"))
        assert estimated.shape == true.shape == error.shape == (len(one["cells"]), 2) and one[
            "classes"
        ] == ["no", "yes"]
        assert true.sum() == pytest.approx(1, abs=1e-4) and true[:, 1].sum() == pytest.approx(
            rows.labels.mean(), abs=1e-4
        )
        # Eight standard errors: nothing but a wrong table is so far off.
        assert (np.abs(estimated - true) < 8 * error).all() and (error > 0).all()
    region = next(one for one in tables if one["feature"] == "region")
    assert region["cells"] == ["north", "east", "south", "west"]
    assert region["true"][2][0] == pytest.approx(
        np.mean((PEOPLE.columns["region"] == 2) & (PEOPLE.labels == 0)), rel=1e-5
    )


def test_bit_questions_give_a_histogram_of_two_sides() -> None:
    script, tables, _ = told(BITS)
    assert script.n_steps > 0 and isinstance(script, AnonMLPlusScript) and script.rule.is_one_bit
    by_name = {one["feature"]: one for one in tables}
    assert len(by_name["coffee"]["cells"]) == 2 and np.array(
        by_name["coffee"]["estimated"]
    ).sum() == pytest.approx(1, abs=1e-5)
    assert by_name["shifts"]["cells"] == ["no", "yes"] and len(by_name["region"]["cells"]) == 4
    yes = (PEOPLE.columns["shifts"] == 1) & (PEOPLE.labels == 1)
    assert by_name["shifts"]["true"][1][1] == pytest.approx(yes.mean(), rel=1e-5)


def test_missing_values_count_on_the_low_side() -> None:
    schema = Schema(
        [Numeric("age", 0, 90, bins=[45])], label=Categorical("ill", ["no", "yes"], missing=False)
    )
    age = np.where(np.arange(400) % 4 == 0, np.nan, np.linspace(0, 90, 400))
    labels = (np.arange(400) % 2).astype(np.int64)
    script, [table], _ = told(
        AnonMLPlusParams(schema, 0.2, 400), split=Split({"age": age}, labels, {"age": age}, labels)
    )
    assert kinds(script) >= {AgreementQuestion, LabelQuestion}
    assert table["cells"] == ["<= 45 or missing", "> 45"]
    high = age > 45
    assert table["true"] == [
        [pytest.approx(np.mean(side & (labels == one))) for one in (0, 1)] for side in (~high, high)
    ]
    assert np.sum(table["estimated"]) == pytest.approx(1, abs=1e-5)


def test_bit_questions_without_a_class_question_have_no_error() -> None:
    features = [
        Numeric("age", 0, 90, bins=[45], missing=False),
        Categorical("town", ["a", "b", "c"], missing=False),
    ]
    schema = Schema(features, label=Categorical("ill", ["no", "yes"], missing=False))
    columns = {"age": np.linspace(0, 90, 900), "town": np.arange(900) % 3}
    labels = (np.arange(900) % 2).astype(np.int64)
    script, [bits, table], _ = told(
        AnonMLPlusParams(schema, 0.2, 900), split=Split(columns, labels, columns, labels)
    )
    assert kinds(script) >= {AgreementQuestion, CellQuestion} and LabelQuestion not in kinds(script)
    assert bits["error"] is None and table["error"] is not None


@pytest.mark.parametrize("epsilon", [6.0, math.inf])
def test_paper_tables_are_summed_to_tables_of_features(epsilon: float) -> None:
    _, tables, rows = told(replace(PAPER, epsilon=epsilon))
    assert 2 <= len(tables) <= len(SCHEMA.names) and len({one["feature"] for one in tables}) == len(
        tables
    )
    for one in tables:
        estimated, true, error = (np.array(one[part]) for part in ("estimated", "true", "error"))
        assert (np.abs(estimated - true) <= 8 * error).all()
        assert true[:, 1].sum() == pytest.approx(rows.labels.mean(), abs=1e-4)


def test_one_partition_without_noise_gives_the_true_counts() -> None:
    params = replace(PAPER, epsilon=math.inf, n_partitions=1, n_subsets=3, subset_size=2)
    _, tables, _ = told(params)
    assert len(tables) == 6
    for one in tables:
        assert one["estimated"] == one["true"] and np.max(one["error"]) == 0


def test_feature_with_too_many_cells_is_left_out() -> None:
    towns = Categorical("town", [str(i) for i in range(MAX_CELLS + 1)], missing=False)
    schema = Schema(
        [towns, Categorical("sex", ["f", "m"], missing=False)],
        label=Categorical("ill", ["no", "yes"], missing=False),
    )
    columns = {"town": np.arange(900) % 7, "sex": np.arange(900) % 2}
    labels = (np.arange(900) % 2).astype(np.int64)
    _, tables, _ = told(
        AnonMLPlusParams(schema, 4.0, 900), split=Split(columns, labels, columns, labels)
    )
    assert [one["feature"] for one in tables] == ["sex"]


def test_table_without_answers_is_left_out() -> None:
    few = Split(
        {name: column[:2] for name, column in SPLIT.train_columns.items()},
        SPLIT.train_labels[:2],
        SPLIT.test_columns,
        SPLIT.test_labels,
    )
    assert len(told(TABLES, split=few)[1]) <= 2
    assert len(told(BITS, split=few)[1]) <= 2


def test_weights_are_log_odds_of_the_second_class() -> None:
    schema = Schema(
        [Numeric("age", 17, 90, bins=[40], missing=False)], label=Categorical("ill", ["no", "yes"])
    )
    model = AdditiveModel(schema, np.array([0.5, 0.5]), (np.array([[0.2, -0.3], [-0.2, 0.5]]),))
    assert [(one["name"], one["class"], one["value"]) for one in list_model_weights(model)] == [
        ("age > 40", "yes", 0.8),
        ("age <= 40", "yes", -0.4),
    ]


def test_weights_of_several_classes_are_given_for_each_class() -> None:
    schema = Schema(
        [Numeric("age", 17, 90, bins=[40], missing=False)],
        label=Categorical("ill", ["a", "b", "c"]),
    )
    scores = np.array([[0.1, -0.2], [0.3, -0.4], [0.5, -0.6]])
    told = list_model_weights(AdditiveModel(schema, np.full(3, 1 / 3), (scores,)))
    assert (told[0]["name"], told[0]["class"], told[0]["value"]) == ("age > 40", "c", -0.6) and len(
        told
    ) == 6


def test_ensemble_has_no_weights() -> None:
    details = run(RunTask(PAPER, 1, dropout=0.25), SPLIT).details
    assert "weights" not in details
    assert (
        details["participation"]["asked"]
        == 3000
        == details["participation"]["answered"] + details["participation"]["dropped"]
    )
    assert [phase["name"] for phase in details["participation"]["phases"]] == ["placing", "answers"]
