"""Variant plus with choice by sums: ranking by noisy tables; naive Bayes with large noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.privacy.rounding import grains_down, grains_up
from shoal.protocols.sdq.naive_bayes import SDQNaiveBayesScript
from shoal.protocols.sdq.params import CellTable, SDQParams
from shoal.protocols.sdq.plus import SDQRankedScript, compute_information
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.script import SDQScriptState
from tests.support.sdq import make_schema, random_table, run

ARITIES = (2, 3, 4)


def make_script(
    epsilon: float = 1.0, arities: tuple[int, ...] = ARITIES, size: int = 5000, **changes: Any
) -> SDQRankedScript:
    return SDQRankedScript(
        SDQParams(make_schema(arities, 2), epsilon, size, choice="sums", **changes)
    )


def test_compute_information_is_that_of_the_joint_table() -> None:
    joint = np.array([[0.3, 0.1], [0.1, 0.2], [0.1, 0.2]])
    shares = joint.sum(axis=0)
    expected = (joint * np.log(joint / np.outer(joint.sum(axis=1), shares))).sum()
    assert compute_information(shares, joint / shares) == pytest.approx(expected)
    assert compute_information(shares, np.array([[0.25, 0.25], [0.75, 0.75]])) == pytest.approx(0)


def test_joint_table_is_asked_only_if_it_has_enough_rows() -> None:
    assert [make_script(epsilon).has_table for epsilon in (0.01, 0.1, 1.0, math.inf)] == [
        False,
        False,
        True,
        True,
    ]
    assert not make_script(1.0, size=300).has_table
    assert not make_script(1.0, (2,) * 60).has_table, "many tables share the budget"
    assert not make_script(0.25, max_colluders=9).has_table and make_script(0.25).has_table
    assert set(make_script(0.01).prices) == {"tables"} and set(make_script(1.0).prices) == {
        "tables",
        "table",
    }


@given(
    st.floats(1e-6, 20.0),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(10, 10**6),
    st.integers(1, 9),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_no_sequence_of_rounds_costs_more_than_the_budget(
    epsilon: float, arities: list[int], size: int, depth: int, seed: int
) -> None:
    script, rng = (
        make_script(epsilon, tuple(arities), size, depth=depth),
        np.random.default_rng(seed),
    )
    asked = []
    course, answers = run(
        script, lambda one: (asked.append(one), rng.integers(-100, 900, one.size))[1]
    )
    assert (
        [one.question for one in asked]
        == list(script.prices)
        == [name for name, _ in script.costliest_questions]
    )
    spent = sum(grains_up(event.epsilon) for event in script.prices.values())
    assert grains_down(epsilon) - 2 <= spent <= grains_down(epsilon)
    for one in asked:
        assert [part.epsilon for part in one.parts] == [script.prices[one.question].epsilon]
    assert len(course.choices) <= depth
    tree = script.build_model(course, answers)
    assert tree.chances.sum(axis=1) == pytest.approx(1)
    assert math.prod(arities[j] for j in course.choices) <= max(script.n_cells, 1)


@pytest.mark.parametrize(
    "course",
    [
        SDQScriptState(step=0, choices=(0,)),
        SDQScriptState(step=1, choices=(0, 0, 1)),
        SDQScriptState(step=1, choices=(7,)),
        SDQScriptState(step=1, choices=(0, 1)),
        SDQScriptState(step=1),
        SDQScriptState(step=3, choices=(0, 1, 2)),
        SDQScriptState(step=1, choices=(0, 1, 2), leaves=(True,)),
    ],
    ids=str,
)
def test_impossible_script_states_are_rejected(course: SDQScriptState) -> None:
    script = make_script()
    assert script.make_round(SDQScriptState(step=1, choices=(2, 0, 1))) is not None
    with pytest.raises(RemoteProtocolError) as refused:
        script.make_round(course)
    assert refused.value.code == "SDQ-001"


def test_second_round_is_rejected_if_there_is_only_one() -> None:
    script = make_script(0.01)
    assert script.make_round(SDQScriptState(step=1, choices=(0, 1, 2))) is None
    with pytest.raises(RemoteProtocolError):
        script.make_round(SDQScriptState(step=2, choices=(0, 1, 2)))


def test_attributes_are_ranked_by_information() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 8000)
    blurred = [
        np.where(rng.random(8000) < p, labels, rng.integers(0, 2, 8000))
        for p in (0.2, 0.8, 0.0, 0.5)
    ]
    table = CellTable(np.stack(blurred, axis=1), labels, np.arange(8000) % 10)
    script = make_script(20.0, (2,) * 4, 8000)
    assert simulate(script, table, SeededEntropy(1)).course.choices == (1, 3, 0, 2)


def test_joint_table_learns_an_exclusive_or() -> None:
    rng = np.random.default_rng(2)
    cells = rng.integers(0, 2, (8000, 3))
    table = CellTable(cells, (cells[:, 0] ^ cells[:, 1]).astype(np.int64), np.arange(8000) % 10)
    tree = simulate(make_script(5.0, (2,) * 3, 8000), table, SeededEntropy(1)).model
    assert (tree.decide({f"a{j}": cells[:, j] for j in range(3)}) == table.labels).all()


def test_large_noise_gives_naive_bayes() -> None:
    table = random_table(ARITIES, 2, 3000, seed=5, n_databases=10)
    script = make_script(0.05, size=3000)
    bayes = SDQNaiveBayesScript(
        SDQParams(make_schema(ARITIES, 2), 0.05, 3000, learner="naive-bayes")
    )
    columns = {f"a{j}": table.cells[:, j] for j in range(3)}
    tree, model = (simulate(one, table, SeededEntropy(7)).model for one in (script, bayes))
    assert np.isnan(tree.counts).all()
    assert tree.probabilities(columns) == pytest.approx(model.probabilities(columns))
