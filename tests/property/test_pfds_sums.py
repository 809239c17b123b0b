"""Secure sums of PFDS whatever is opened, and whatever a holder is asked to count with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hostile import hostile
from pfds_sums import LABELS, params_of, rows_of
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array
from shoal.privacy.events import Relation
from shoal.protocols.pfds.model import from_plain
from shoal.protocols.pfds.scoring import LEAST_REACH, LONGEST_REACH, MOST, ONE
from shoal.protocols.pfds.spending import query_of
from shoal.protocols.pfds.sums import Answers, Course, SumScript

STUDIES = {
    f"{label}, {name}": SumScript(params_of(LABELS[label], **figures))
    for label in LABELS
    for name, figures in (
        ("pure", {}),
        ("delta", {"delta": 1e-6, "size": 100_000}),
        ("little", {"epsilon": 0.1}),
        ("bare", {"epsilon": math.inf}),
    )
}
SCRIPTS = st.sampled_from(sorted(STUDIES)).map(STUDIES.__getitem__)
LOW, HIGH = -(1 << 63), (1 << 63) - 1
numbers = st.sampled_from([LOW, HIGH, 0, 1, -1]) | st.integers(-(10**7), 10**7) | st.integers(LOW, HIGH)


@hostile(60)
@given(st.data(), SCRIPTS)
def test_any_answers_lead_to_a_course_and_a_model(data: st.DataObject, script: SumScript) -> None:
    course, answers = script.start, Answers()
    while question := script.question(course):
        answer = data.draw(arrays(np.int64, script.size(question), elements=numbers, fill=numbers))
        answers = (*answers, answer)
        course = script.advance(course, answers)
        script.check(course)
    assert course.step == len(script.questions)
    # What a file of a model may hold is finite and in bounds.
    from_plain(script.model(answers).to_plain())


def courses(script: SumScript) -> st.SearchStrategy[Course]:
    """Anything that can be sent."""
    n = script.params.n_cells
    some = st.integers(-MOST * ONE, MOST * ONE) | st.integers(-4 * ONE, 4 * ONE)
    weights = arrays(np.int64, n, elements=some, fill=some) | arrays(np.int64, st.integers(0, 40), elements=numbers, fill=numbers)
    reaches = st.integers(LEAST_REACH, LONGEST_REACH) | st.integers(LEAST_REACH, 8 * ONE) | numbers
    return st.builds(
        Course,
        step=st.integers(0, 9) | numbers,
        weights=weights.map(Array.of),
        intercept=some | numbers,
        direction=weights.map(Array.of),
        reaches=st.tuples(reaches, reaches),
    )


@hostile(150)
@given(st.data(), SCRIPTS, st.integers(0, 100))
def test_one_row_adds_no_more_than_its_price_says(data: st.DataObject, script: SumScript, seed: int) -> None:
    course = data.draw(courses(script))
    rows = rows_of(script.params, 12, seed)
    try:
        question = script.question(course)
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            script.count(course, rows)
        return
    if question is None:
        return
    query: Any = query_of(script.params, question)
    whole = script.count(course, rows)
    assert whole.shape == (script.size(question),)
    change = whole - script.count(course, rows.take(np.arange(12) != seed % 12))
    assert change.any() or question.startswith("residuals")
    assert np.abs(change).sum() <= query.l1(Relation.ADD_REMOVE)
    assert (change**2).sum() <= query.l2_squared(Relation.ADD_REMOVE)
    if not question.startswith("residuals"):
        assert np.abs(change).sum() == query.l1(Relation.ADD_REMOVE)
    # The price is that of the question, whichever course it came with.
    assert (question in script.prices) != script.params.is_bare
