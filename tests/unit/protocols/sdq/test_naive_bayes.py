"""Naive Bayes from one sum of the tables of all attributes, corrected for noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.privacy.rounding import grains_down, grains_up
from shoal.protocols.anonml.model import from_plain
from shoal.protocols.sdq.naive_bayes import SDQNaiveBayesScript, read_tables
from shoal.protocols.sdq.params import SDQParams
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.script import SDQScriptState
from tests.support.sdq import make_schema, random_table

ARITIES = (2, 3, 4)


def make_script(epsilon: float = 1.0, **changes: Any) -> SDQNaiveBayesScript:
    return SDQNaiveBayesScript(
        SDQParams(make_schema(ARITIES, 2), epsilon, 1000, learner="naive-bayes", **changes)
    )


def test_naive_bayes_has_one_round_with_the_whole_budget() -> None:
    script = make_script(0.3)
    asked = script.make_round(SDQScriptState())
    assert asked is not None and (asked.question, asked.size, asked.is_choice) == (
        "tables",
        18,
        False,
    )
    assert (asked.parts[0].epsilon, asked.parts[0].n_tables) == (0.3, 3)
    assert grains_up(script.prices["tables"].epsilon) <= grains_down(0.3)
    assert script.prices["tables"].parameters["sensitivity"] == 3.0
    assert script.prices["tables"].reads == tuple(sorted(script.params.columns))
    assert script.costliest_questions == (("tables", 1),)
    after = script.advance(SDQScriptState(), (np.zeros(18, np.int64),))
    assert script.make_round(after) is None


@pytest.mark.parametrize(
    "course",
    [SDQScriptState(step=2), SDQScriptState(step=1, choices=(0,)), SDQScriptState(leaves=(True,))],
    ids=str,
)
def test_impossible_script_states_are_rejected(course: SDQScriptState) -> None:
    with pytest.raises(RemoteProtocolError) as refused:
        make_script().make_round(course)
    assert refused.value.code == "SDQ-001"


def test_each_table_counts_each_row_once() -> None:
    table, script = random_table(ARITIES, 2, 200, seed=1), make_script()
    asked = script.make_round(SDQScriptState())
    assert asked is not None
    counts = asked.parts[0].count(table).reshape(-1, 2)
    for j, start in enumerate((0, 2, 5)):
        for cell in range(ARITIES[j]):
            for label in range(2):
                assert (
                    counts[start + cell, label]
                    == ((table.cells[:, j] == cell) & (table.labels == label)).sum()
                )


def test_class_shares_give_more_weight_to_small_tables() -> None:
    params = SDQParams(make_schema((2, 8), 2), 1.0, 1000)
    # The tables disagree: 300 to 700 by the one of 2 cells, 500 to 500 by the one of 8. The first
    # weighs 4 times as much.
    sums = np.array([[150, 350]] * 2 + [[62, 62]] * 4 + [[63, 63]] * 4)
    shares, given = read_tables(params, sums.reshape(-1), math.inf)
    assert shares[0] == pytest.approx((4 * 300 + 500) / 5 / 1000, abs=1e-3)
    assert [one.shape for one in given] == [(2, 2), (8, 2)]


def test_model_without_noise_is_naive_bayes() -> None:
    table = random_table(ARITIES, 2, 5000, seed=2, n_databases=10)
    model = simulate(make_script(math.inf), table, SeededEntropy(1)).model
    columns = {f"a{j}": table.cells[:50, j] for j in range(3)}
    odds = np.array([(table.labels == c).mean() for c in range(2)])[np.newaxis].repeat(50, axis=0)
    for j in range(3):
        given = np.array(
            [
                [(table.cells[table.labels == c, j] == cell).mean() for c in range(2)]
                for cell in range(ARITIES[j])
            ]
        )
        odds = odds * given[table.cells[:50, j]]
    assert model.probabilities(columns) == pytest.approx(
        odds / odds.sum(axis=1, keepdims=True), abs=5e-3
    )
    # A cell without information scores zero, so scores are odds relative to all rows.
    assert all(model.label_shares @ np.exp(score) == pytest.approx(1) for score in model.scores)
    assert from_plain(model.to_plain()).decide(columns).tolist() == model.decide(columns).tolist()


def test_pure_noise_gives_moderate_predictions() -> None:
    model = simulate(
        make_script(1e-6), random_table(ARITIES, 2, 100, seed=3, n_databases=10), SeededEntropy(1)
    ).model
    assert all(np.isfinite(score).all() and np.abs(score).max() < 5 for score in model.scores)
    assert model.label_shares.min() > 0
