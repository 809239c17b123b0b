"""The improved learner by sums alone: it ranks by noisy tables, and where noise is large it is naive Bayes as a tree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sdq_trees import random_table, run, schema_of
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.privacy.rounding import grains_down, grains_up
from shoal.protocols.sdq.bayes import BayesScript
from shoal.protocols.sdq.params import Params, Table
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.ranked import RankedScript, information
from shoal.protocols.sdq.script import Course

ARITIES = (2, 3, 4)


def a_script(epsilon: float = 1.0, arities: tuple[int, ...] = ARITIES, size: int = 5000, **changes: Any) -> RankedScript:
    return RankedScript(Params(schema_of(arities, 2), epsilon, size, choice="sums", **changes))


def test_information_is_that_of_the_joint_table() -> None:
    joint = np.array([[0.3, 0.1], [0.1, 0.2], [0.1, 0.2]])
    shares = joint.sum(axis=0)
    expected = (joint * np.log(joint / np.outer(joint.sum(axis=1), shares))).sum()
    assert information(shares, joint / shares) == pytest.approx(expected)
    assert information(shares, np.array([[0.25, 0.25], [0.75, 0.75]])) == pytest.approx(0)


def test_a_joint_table_is_asked_for_where_it_pays() -> None:
    assert [a_script(epsilon).has_table for epsilon in (0.01, 0.1, 1.0, math.inf)] == [False, False, True, True]
    assert not a_script(1.0, size=300).has_table
    assert not a_script(1.0, (2,) * 60).has_table, "many tables share the budget"
    assert not a_script(0.25, max_colluders=9).has_table and a_script(0.25).has_table
    assert set(a_script(0.01).prices) == {"tables"} and set(a_script(1.0).prices) == {"tables", "table"}


@given(
    st.floats(1e-6, 20.0),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(10, 10**6),
    st.integers(1, 9),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_no_course_costs_more_than_the_budget(epsilon: float, arities: list[int], size: int, depth: int, seed: int) -> None:
    script, rng = a_script(epsilon, tuple(arities), size, depth=depth), np.random.default_rng(seed)
    asked = []
    course, answers = run(script, lambda one: (asked.append(one), rng.integers(-100, 900, one.size))[1])
    assert [one.question for one in asked] == list(script.prices) == [name for name, _ in script.dearest]
    spent = sum(grains_up(event.epsilon) for event in script.prices.values())
    assert grains_down(epsilon) - 2 <= spent <= grains_down(epsilon)
    for one in asked:
        assert [part.epsilon for part in one.parts] == [script.prices[one.question].epsilon]
    assert len(course.choices) <= depth
    tree = script.model(course, answers)
    assert tree.chances.sum(axis=1) == pytest.approx(1)
    assert math.prod(arities[j] for j in course.choices) <= max(script.n_cells, 1)


@pytest.mark.parametrize(
    "course",
    [
        Course(step=0, choices=(0,)),
        Course(step=1, choices=(0, 0, 1)),
        Course(step=1, choices=(7,)),
        Course(step=1, choices=(0, 1)),
        Course(step=1),
        Course(step=3, choices=(0, 1, 2)),
        Course(step=1, choices=(0, 1, 2), leaves=(True,)),
    ],
    ids=str,
)
def test_courses_that_no_answers_lead_to_are_refused(course: Course) -> None:
    script = a_script()
    assert script.round(Course(step=1, choices=(2, 0, 1))) is not None
    with pytest.raises(RemoteProtocolError) as refused:
        script.round(course)
    assert refused.value.code == "SDQ-001"


def test_a_second_round_is_refused_where_there_is_one() -> None:
    script = a_script(0.01)
    assert script.round(Course(step=1, choices=(0, 1, 2))) is None
    with pytest.raises(RemoteProtocolError):
        script.round(Course(step=2, choices=(0, 1, 2)))


def test_attributes_come_in_order_of_what_they_tell() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 8000)
    blurred = [np.where(rng.random(8000) < p, labels, rng.integers(0, 2, 8000)) for p in (0.2, 0.8, 0.0, 0.5)]
    table = Table(np.stack(blurred, axis=1), labels, np.arange(8000) % 10)
    script = a_script(20.0, (2,) * 4, 8000)
    assert simulate(script, table, SeededEntropy(1)).course.choices == (1, 3, 0, 2)


def test_joint_cells_tell_what_single_attributes_do_not() -> None:
    rng = np.random.default_rng(2)
    cells = rng.integers(0, 2, (8000, 3))
    table = Table(cells, (cells[:, 0] ^ cells[:, 1]).astype(np.int64), np.arange(8000) % 10)
    tree = simulate(a_script(5.0, (2,) * 3, 8000), table, SeededEntropy(1)).model
    assert (tree.decide({f"a{j}": cells[:, j] for j in range(3)}) == table.labels).all()


def test_where_noise_is_large_it_is_naive_bayes() -> None:
    table = random_table(ARITIES, 2, 3000, seed=5, n_databases=10)
    script = a_script(0.05, size=3000)
    bayes = BayesScript(Params(schema_of(ARITIES, 2), 0.05, 3000, learner="naive-bayes"))
    columns = {f"a{j}": table.cells[:, j] for j in range(3)}
    tree, model = (simulate(one, table, SeededEntropy(7)).model for one in (script, bayes))
    assert np.isnan(tree.counts).all()
    assert tree.probabilities(columns) == pytest.approx(model.probabilities(columns))
