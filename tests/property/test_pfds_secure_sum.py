"""Secure sums of PFDS for any opened answers and any script state."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array
from shoal.privacy.events import Relation
from shoal.protocols.pfds.messages import PFDSScriptState
from shoal.protocols.pfds.model import from_plain
from shoal.protocols.pfds.refinement import MAX_REACH, MAX_WEIGHT, MIN_REACH, ONE
from shoal.protocols.pfds.script import Answers, SecureSumScript, make_query
from tests.support.hostile import hostile
from tests.support.pfds import LABELS, make_params, make_rows

STUDIES = {
    f"{label}, {name}": SecureSumScript(make_params(LABELS[label], **figures))
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
numbers = (
    st.sampled_from([LOW, HIGH, 0, 1, -1]) | st.integers(-(10**7), 10**7) | st.integers(LOW, HIGH)
)


@hostile(60)
@given(st.data(), SCRIPTS)
def test_any_answers_lead_to_script_states_and_a_model(
    data: st.DataObject, script: SecureSumScript
) -> None:
    state, answers = script.initial_state, Answers()
    while question := script.find_question(state):
        answer = data.draw(
            arrays(np.int64, script.compute_size(question), elements=numbers, fill=numbers)
        )
        answers = (*answers, answer)
        state = script.advance(state, answers)
        script.check_state(state)
    assert state.step == len(script.questions)
    # Values that a model file may contain are finite and in bounds.
    from_plain(script.build_model(answers).to_plain())


def script_states(script: SecureSumScript) -> st.SearchStrategy[PFDSScriptState]:
    """Generate any script state that can be sent."""
    n = script.params.n_cells
    some = st.integers(-MAX_WEIGHT * ONE, MAX_WEIGHT * ONE) | st.integers(-4 * ONE, 4 * ONE)
    weights = arrays(np.int64, n, elements=some, fill=some) | arrays(
        np.int64, st.integers(0, 40), elements=numbers, fill=numbers
    )
    reaches = st.integers(MIN_REACH, MAX_REACH) | st.integers(MIN_REACH, 8 * ONE) | numbers
    return st.builds(
        PFDSScriptState,
        step=st.integers(0, 9) | numbers,
        weights=weights.map(Array.from_values),
        intercept=some | numbers,
        direction=weights.map(Array.from_values),
        reaches=st.tuples(reaches, reaches),
    )


@hostile(150)
@given(st.data(), SCRIPTS, st.integers(0, 100))
def test_one_row_adds_at_most_its_priced_amount(
    data: st.DataObject, script: SecureSumScript, seed: int
) -> None:
    state = data.draw(script_states(script))
    rows = make_rows(script.params, 12, seed)
    try:
        question = script.find_question(state)
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            script.count(state, rows)
        return
    if question is None:
        return
    query: Any = make_query(script.params, question)
    whole = script.count(state, rows)
    assert whole.shape == (script.compute_size(question),)
    change = whole - script.count(state, rows.take(np.arange(12) != seed % 12))
    assert change.any() or question.startswith("residuals")
    assert np.abs(change).sum() <= query.l1(Relation.ADD_REMOVE)
    assert (change**2).sum() <= query.l2_squared(Relation.ADD_REMOVE)
    if not question.startswith("residuals"):
        assert np.abs(change).sum() == query.l1(Relation.ADD_REMOVE)
    # The price is that of the question, for any script state.
    assert (question in script.prices) != script.params.is_noiseless
