"""Tables and weights of AnonML: estimates, errors and truths of every way in which a feature can be asked about."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.model import AdditiveModel
from shoal.protocols.anonml.paper import PaperScript
from shoal.protocols.anonml.params import Paper, Params, Plus
from shoal.protocols.anonml.plus import PlusScript
from shoal.protocols.anonml.population import collect, make_script
from shoal.protocols.anonml.questions import Agree, Cell, LabelIs, Rows
from shoal.sim.anonml import run
from shoal.sim.details import MOST_CELLS, Details
from shoal.sim.details_anonml import histograms, model_weights
from shoal.sim.people import SCHEMA, make_people
from shoal.sim.runs import Split, Task

PEOPLE = make_people(3000, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
TABLES = Plus(SCHEMA, 4.0, 3000)
BITS = Plus(SCHEMA, 0.2, 3000)
PAPER = Paper(SCHEMA, 6.0, 3000, n_partitions=2, n_subsets=2, subset_size=2)


def told(params: Params, seed: int = 1, split: Split = SPLIT) -> tuple[PlusScript | PaperScript, list[Details], Rows]:
    entropy = SeededEntropy(seed)
    script = make_script(params, entropy.spawn("digest").bytes(32))
    assert isinstance(script, PlusScript | PaperScript)
    rows = Rows(dict(split.asked), split.labels, draw_words(len(split.labels), entropy))
    tallies = collect(script, rows, entropy)
    return script, histograms(script, tallies, rows, script.learn(tallies, entropy)), rows


def kinds(script: PlusScript | PaperScript) -> set[type]:
    return {type(question) for question in script.questions(script.n_steps, script.publish(collect_nothing(script)))}


def collect_nothing(script: PlusScript | PaperScript) -> tuple[()]:
    assert script.n_steps == 0
    return ()


def test_a_table_has_the_truth_of_all_who_took_part_beside_it() -> None:
    _, tables, rows = told(TABLES)
    assert [one["feature"] for one in tables] == list(SCHEMA.names)
    for one in tables:
        estimated, true, error = (np.array(one[part]) for part in ("estimated", "true", "error"))
        assert estimated.shape == true.shape == error.shape == (len(one["cells"]), 2) and one["classes"] == ["no", "yes"]
        assert true.sum() == pytest.approx(1, abs=1e-4) and true[:, 1].sum() == pytest.approx(rows.labels.mean(), abs=1e-4)
        # Eight standard errors: nothing but a wrong table is so far off.
        assert (np.abs(estimated - true) < 8 * error).all() and (error > 0).all()
    region = next(one for one in tables if one["feature"] == "region")
    assert region["cells"] == ["north", "east", "south", "west"]
    assert region["true"][2][0] == pytest.approx(np.mean((PEOPLE.columns["region"] == 2) & (PEOPLE.labels == 0)), rel=1e-5)


def test_bits_are_a_table_of_two_sides() -> None:
    script, tables, _ = told(BITS)
    assert script.n_steps > 0 and isinstance(script, PlusScript) and script.rule.is_one_bit
    by_name = {one["feature"]: one for one in tables}
    assert len(by_name["coffee"]["cells"]) == 2 and np.array(by_name["coffee"]["estimated"]).sum() == pytest.approx(1, abs=1e-5)
    assert by_name["shifts"]["cells"] == ["no", "yes"] and len(by_name["region"]["cells"]) == 4
    yes = (PEOPLE.columns["shifts"] == 1) & (PEOPLE.labels == 1)
    assert by_name["shifts"]["true"][1][1] == pytest.approx(yes.mean(), rel=1e-5)


def test_missing_values_are_on_the_low_side() -> None:
    schema = Schema([Numeric("age", 0, 90, bins=[45])], label=Categorical("ill", ["no", "yes"], missing=False))
    age = np.where(np.arange(400) % 4 == 0, np.nan, np.linspace(0, 90, 400))
    labels = (np.arange(400) % 2).astype(np.int64)
    script, [table], _ = told(Plus(schema, 0.2, 400), split=Split({"age": age}, labels, {"age": age}, labels))
    assert kinds(script) >= {Agree, LabelIs}
    assert table["cells"] == ["<= 45 or missing", "> 45"]
    high = age > 45
    assert table["true"] == [[pytest.approx(np.mean(side & (labels == one))) for one in (0, 1)] for side in (~high, high)]
    assert np.sum(table["estimated"]) == pytest.approx(1, abs=1e-5)


def test_where_nobody_is_asked_for_the_class_alone_bits_have_no_error() -> None:
    features = [Numeric("age", 0, 90, bins=[45], missing=False), Categorical("town", ["a", "b", "c"], missing=False)]
    schema = Schema(features, label=Categorical("ill", ["no", "yes"], missing=False))
    columns = {"age": np.linspace(0, 90, 900), "town": np.arange(900) % 3}
    labels = (np.arange(900) % 2).astype(np.int64)
    script, [bits, table], _ = told(Plus(schema, 0.2, 900), split=Split(columns, labels, columns, labels))
    assert kinds(script) >= {Agree, Cell} and LabelIs not in kinds(script)
    assert bits["error"] is None and table["error"] is not None


@pytest.mark.parametrize("epsilon", [6.0, math.inf])
def test_the_papers_tables_are_summed_to_those_of_features(epsilon: float) -> None:
    _, tables, rows = told(replace(PAPER, epsilon=epsilon))
    assert 2 <= len(tables) <= len(SCHEMA.names) and len({one["feature"] for one in tables}) == len(tables)
    for one in tables:
        estimated, true, error = (np.array(one[part]) for part in ("estimated", "true", "error"))
        assert (np.abs(estimated - true) <= 8 * error).all()
        assert true[:, 1].sum() == pytest.approx(rows.labels.mean(), abs=1e-4)


def test_one_partition_without_noise_is_the_truth() -> None:
    params = replace(PAPER, epsilon=math.inf, n_partitions=1, n_subsets=3, subset_size=2)
    _, tables, _ = told(params)
    assert len(tables) == 6
    for one in tables:
        assert one["estimated"] == one["true"] and np.max(one["error"]) == 0


def test_a_feature_with_too_many_cells_is_left_out() -> None:
    towns = Categorical("town", [str(i) for i in range(MOST_CELLS + 1)], missing=False)
    schema = Schema([towns, Categorical("sex", ["f", "m"], missing=False)], label=Categorical("ill", ["no", "yes"], missing=False))
    columns = {"town": np.arange(900) % 7, "sex": np.arange(900) % 2}
    labels = (np.arange(900) % 2).astype(np.int64)
    _, tables, _ = told(Plus(schema, 4.0, 900), split=Split(columns, labels, columns, labels))
    assert [one["feature"] for one in tables] == ["sex"]


def test_a_table_that_nobody_answered_is_left_out() -> None:
    few = Split({name: column[:2] for name, column in SPLIT.asked.items()}, SPLIT.labels[:2], SPLIT.unseen, SPLIT.unseen_labels)
    assert len(told(TABLES, split=few)[1]) <= 2
    assert len(told(BITS, split=few)[1]) <= 2


def test_weights_are_log_odds_of_the_second_class() -> None:
    schema = Schema([Numeric("age", 17, 90, bins=[40], missing=False)], label=Categorical("ill", ["no", "yes"]))
    model = AdditiveModel(schema, np.array([0.5, 0.5]), (np.array([[0.2, -0.3], [-0.2, 0.5]]),))
    assert [(one["name"], one["class"], one["value"]) for one in model_weights(model)] == [
        ("age > 40", "yes", 0.8),
        ("age <= 40", "yes", -0.4),
    ]


def test_of_several_classes_each_has_its_own() -> None:
    schema = Schema([Numeric("age", 17, 90, bins=[40], missing=False)], label=Categorical("ill", ["a", "b", "c"]))
    scores = np.array([[0.1, -0.2], [0.3, -0.4], [0.5, -0.6]])
    told = model_weights(AdditiveModel(schema, np.full(3, 1 / 3), (scores,)))
    assert (told[0]["name"], told[0]["class"], told[0]["value"]) == ("age > 40", "c", -0.6) and len(told) == 6


def test_a_vote_has_no_weights() -> None:
    details = run(Task(PAPER, 1, dropout=0.25), SPLIT).details
    assert "weights" not in details
    assert details["participation"]["asked"] == 3000 == details["participation"]["answered"] + details["participation"]["dropped"]
    assert [phase["name"] for phase in details["participation"]["phases"]] == ["placing", "answers"]
