"""Histograms of SDQ: those that the miner has seen, and their rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.cli.hello.population import SCHEMA, make_people
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.protocols.sdq.params import CellTable, SDQParams
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.script import SDQScriptState
from shoal.protocols.sdq.variants import make_sdq_script
from shoal.simulation.run import RunTask, Split
from shoal.simulation.sdq import list_questions, make_histograms, run

N = 2000
PEOPLE = make_people(N, SeededEntropy(3))
SPLIT = Split(PEOPLE.columns, PEOPLE.labels, PEOPLE.columns, PEOPLE.labels)
TREE = SDQParams(SCHEMA, 4.0, N, minimum=8, max_colluders=3)
PAPER = replace(TREE, variant="paper", depth=3, epsilon=20.0)
STUDIES = {
    "tree": TREE,
    "bayes": replace(TREE, learner="naive-bayes"),
    "ranked": replace(TREE, choice="sums"),
    "ranked without a table": replace(TREE, choice="sums", epsilon=0.03),
    "paper": PAPER,
    "two-selected": replace(PAPER, noise="two-selected", minimum=10),
    "local": replace(PAPER, trust="local", max_colluders=0),
}


@pytest.mark.parametrize("epsilon", [None, math.inf])
@pytest.mark.parametrize("name", STUDIES)
def test_histograms_are_those_of_the_counted_rows(name: str, epsilon: float | None) -> None:
    params = STUDIES[name] if epsilon is None else replace(STUDIES[name], epsilon=epsilon)
    script, table = (
        make_sdq_script(params),
        CellTable.from_columns(params, PEOPLE.columns, PEOPLE.labels, np.arange(N) % 10),
    )
    trained = simulate(script, table, SeededEntropy(5))
    told = make_histograms(script, trained, table, 10)
    names = [one["feature"] for one in told]
    if name == "tree":
        assert names == [SCHEMA.names[trained.model.splits[0]]]
    elif name == "ranked without a table" and epsilon is None:
        assert len(names) < len(SCHEMA.names), "noise has drowned some"
    else:
        assert names == list(SCHEMA.names)
    for one in told:
        cells = params.schema[one["feature"]].cut(PEOPLE.columns[one["feature"]])
        expected = [
            [np.mean((cells == cell) & (PEOPLE.labels == label)) for label in (0, 1)]
            for cell in range(len(one["cells"]))
        ]
        assert np.array(one["true"]) == pytest.approx(np.array(expected), abs=1e-6)
        off = np.abs(np.array(one["estimated"]) - one["true"])
        assert (off <= 12 * np.array(one["error"])).all(), (
            "twelve standard errors of noise with exponential tails"
        )
        assert np.sum(one["estimated"]) == pytest.approx(1, abs=1e-4) and (
            np.max(one["error"]) == 0
        ) == (epsilon == math.inf)


@pytest.mark.parametrize("name", STUDIES)
def test_questions_are_those_of_the_rounds(name: str) -> None:
    params = STUDIES[name]
    script, table = (
        make_sdq_script(params),
        CellTable.from_columns(params, PEOPLE.columns, PEOPLE.labels, np.arange(N) % 10),
    )
    trained = simulate(script, table, SeededEntropy(5))
    course, asked = SDQScriptState(), []
    for i in range(len(trained.answers)):
        now = script.make_round(course)
        assert now is not None
        asked.append(now.question)
        course = script.advance(course, trained.answers[: i + 1])
    assert list_questions(script, len(trained.answers)) == asked


def test_tree_with_one_leaf_has_no_histogram() -> None:
    schema = Schema([Categorical("wind", ["weak", "strong"], missing=False)], label=SCHEMA.label)
    params = replace(PAPER, schema=schema, epsilon=0.01)
    table = CellTable(np.zeros((50, 1), np.int64), np.arange(50) % 2, np.arange(50) % 10)
    script = make_sdq_script(params)
    trained = simulate(script, table, SeededEntropy(1))
    assert trained.course.choices == (-1,) and make_histograms(script, trained, table, 10) == []


def test_tree_without_attributes_has_no_histogram() -> None:
    schema = Schema([Numeric("age", 0, 90, bins=[], missing=False)], label=SCHEMA.label)
    params = replace(TREE, schema=schema)
    script, table = (
        make_sdq_script(params),
        CellTable(np.zeros((50, 1), np.int64), np.arange(50) % 2, np.arange(50) % 10),
    )
    trained = simulate(script, table, SeededEntropy(1))
    assert trained.model.splits[0] < 0 and make_histograms(script, trained, table, 10) == []


def test_details_count_respondents_and_answers() -> None:
    details = run(RunTask(TREE, 1, dropout=0.2), SPLIT).details
    told = details["participation"]
    assert (told["asked"], told["answered"], told["dropped"]) == (10, 8, 2)
    assert told["phases"][-1] == {"name": "table", "n": 8} and told["phases"][0] == {
        "name": "choice/0",
        "n": 8,
    }
    assert "weights" not in details and details["calibration"]["of"] == "yes"
    bayes = run(RunTask(STUDIES["bayes"], 1), SPLIT).details
    assert {one["class"] for one in bayes["weights"]} == {"yes"} and len(bayes["histograms"]) == 6
