"""Variant plus: rounds follow from public figures, any state costs B, no other is valid."""

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
from shoal.protocols.sdq.naive_bayes import back_off, estimate_class_shares
from shoal.protocols.sdq.noise import compute_deviation
from shoal.protocols.sdq.paper import MAX_COUNTS
from shoal.protocols.sdq.params import CellTable, SDQParams
from shoal.protocols.sdq.plus import SDQPlusScript, compute_max_cells, list_candidates
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.script import SDQRound, SDQScriptState
from tests.support.sdq import make_schema, parted, random_table, run, summed

ARITIES = (2, 3, 4, 5)


def make_script(
    epsilon: float = 1.0,
    arities: tuple[int, ...] = ARITIES,
    size: int = 2000,
    n_classes: int = 2,
    **changes: Any,
) -> SDQPlusScript:
    return SDQPlusScript(SDQParams(make_schema(arities, n_classes), epsilon, size, **changes))


def list_rounds(script: SDQPlusScript, pick: Any) -> list[SDQRound]:
    """Return the rounds of a run; ``pick`` chooses from a number of candidates."""
    asked: list[SDQRound] = []

    def answer(one: SDQRound) -> np.ndarray:
        asked.append(one)
        return np.array([pick(one.size)]) if one.is_choice else np.zeros(one.size, np.int64)

    run(script, answer)
    return asked


def test_max_cells_follow_from_size_and_noise() -> None:
    def cells(epsilon: float, **changes: Any) -> int:
        params = {"size": 10_000, **changes}
        return compute_max_cells(SDQParams(make_schema(ARITIES, 2), 1.0, **params), epsilon)

    assert cells(0.1) == int(10_000 / (3.4 * math.sqrt(0.5) / math.sinh(0.05)))
    assert cells(0.1) < cells(0.2) < cells(64.0) == cells(math.inf) == int(10_000 / 3.4)
    assert cells(0.1, size=20_000) == pytest.approx(2 * cells(0.1), abs=1)
    assert cells(0.1, max_colluders=5) == pytest.approx(cells(0.1) / math.sqrt(2), abs=1)
    assert cells(0.1, max_rows=2) == pytest.approx(cells(0.1) / 2, abs=1)
    assert cells(1e-6) == 2, "the smallest attribute always fits"
    assert cells(math.inf, size=10**9) == MAX_COUNTS // 2


def test_candidates_are_new_attributes_that_fit() -> None:
    params = SDQParams(make_schema((2, 1, 3, 4), 2), 1.0, 1000, depth=2)
    assert list_candidates(params, [], 100) == (0, 2, 3)
    assert list_candidates(params, [], 3) == (0, 2)
    assert list_candidates(params, [2], 8) == (0,)
    assert list_candidates(params, [2], 5) == ()
    assert list_candidates(params, [2, 0], 100) == (), "the tree is deep enough"


def test_choices_are_followed_by_one_table_with_the_rest() -> None:
    script = make_script(size=20_000)
    asked = list_rounds(script, lambda n: 0)
    *choices, table = asked
    assert [one.question for one in choices] == [f"choice/{i}" for i in range(len(choices))]
    assert all(one.is_choice for one in choices) and not table.is_choice
    assert table.question == "table"
    assert [one.size for one in choices] == [4, 3, 2], (
        "the last attribute is alone and needs no choice"
    )
    assert table.size == math.prod(ARITIES) * 2
    assert table.parts[0].epsilon == pytest.approx(1 - 3 * 0.35 / script.n_levels)


@given(
    st.floats(1e-6, 20.0),
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(10, 10**6),
    st.integers(1, 9),
    st.integers(0, 5),
    st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_no_sequence_of_rounds_costs_more_than_the_budget(
    epsilon: float, arities: list[int], size: int, depth: int, colluders: int, seed: int
) -> None:
    script = make_script(epsilon, tuple(arities), size, depth=depth, max_colluders=colluders)
    asked = list_rounds(script, np.random.default_rng(seed).integers)
    names = [one.question for one in asked]
    assert len(set(names)) == len(names) and set(names) <= set(script.prices)
    everything = sum(grains_up(event.epsilon) for event in script.prices.values())
    assert grains_down(epsilon) - len(script.prices) <= everything <= grains_down(epsilon), (
        "for all questions of all states"
    )
    for one in asked:
        assert [part.epsilon for part in one.parts] == [script.prices[one.question].epsilon]
        assert one.size <= MAX_COUNTS
    assert (
        sum(n * grains_up(script.prices[name].epsilon) for name, n in script.costliest_questions)
        == everything
    )
    assert len(asked) <= sum(n for _, n in script.costliest_questions), (
        "no sequence of rounds is longer than the declared one"
    )


def test_prices_name_columns_scope_and_mechanism() -> None:
    script = make_script(max_colluders=3)
    for question, event in script.prices.items():
        assert event.reads == tuple(sorted(script.params.columns))
        assert event.scope == script.params.scope
        assert event.mechanism == (
            "noisy-max-shares" if question.startswith("choice/") else "laplace-shares"
        )
        assert event.parameters["n_honest"] == 7


def test_number_of_choices_falls_with_cells() -> None:
    n_choices = [
        make_script(epsilon, (3,) * 8, 10_000).n_choices for epsilon in (0.001, 0.1, 1.0, 10.0)
    ]
    assert n_choices == sorted(n_choices) and n_choices[0] == 1 and n_choices[-1] > 3
    assert make_script(10.0, (3,) * 8, 10_000, depth=2).n_choices == 2


@pytest.mark.parametrize(
    "course",
    [
        SDQScriptState(step=1, choices=(9,)),
        SDQScriptState(step=1, choices=(-1,)),
        SDQScriptState(step=2, choices=(1, 1)),
        SDQScriptState(step=4, choices=(0, 1, 2, 3)),
        SDQScriptState(step=1),
        SDQScriptState(step=2, choices=(0,)),
        SDQScriptState(step=0, choices=(0,)),
        SDQScriptState(step=9, choices=(0, 1, 2)),
        SDQScriptState(leaves=(True,)),
    ],
    ids=str,
)
def test_impossible_script_states_are_rejected(course: SDQScriptState) -> None:
    script = make_script(size=20_000)
    with pytest.raises(RemoteProtocolError) as refused:
        script.make_round(course)
    assert refused.value.code == "SDQ-001"


def test_choice_of_an_attribute_with_too_many_cells_is_rejected() -> None:
    script = make_script(0.05, (2, 3, 50), 2000)
    assert script.n_cells < 50
    with pytest.raises(RemoteProtocolError):
        script.make_round(SDQScriptState(step=1, choices=(2,)))


@pytest.mark.parametrize("arities", [(4,), (1,), (1, 4, 1)])
def test_single_candidate_leaves_one_table_with_the_whole_budget(
    arities: tuple[int, ...],
) -> None:
    script = make_script(0.5, arities)
    (table,) = list_rounds(script, lambda n: 0)
    assert (table.question, table.parts[0].epsilon, table.size) == ("table", 0.5, max(arities) * 2)
    assert script.costliest_questions == (("table", 1),)


def test_script_ends_after_its_table() -> None:
    script = make_script(0.5, (4,))
    course = script.advance(SDQScriptState(), (np.zeros(8, np.int64),))
    assert course == SDQScriptState(step=1) and script.make_round(course) is None


def test_simulation_chooses_informative_attributes() -> None:
    rng = np.random.default_rng(1)
    cells = np.stack([rng.integers(0, arity, 6000) for arity in (4, 2, 3, 5)], axis=1)
    table = CellTable(cells, (cells[:, 1] + cells[:, 2]) % 2, np.arange(6000) % 10)
    script = make_script(2.0, (4, 2, 3, 5), 6000)
    trained = simulate(script, table, SeededEntropy(1))
    assert 1 in trained.model.splits and 2 in trained.model.splits
    columns = {f"a{j}": cells[:, j] for j in range(4)}
    assert (trained.model.decide(columns) == table.labels).mean() > 0.99


def test_counts_without_noise_are_exact() -> None:
    table = random_table((2, 3, 2), 3, 900, seed=4, n_databases=5)
    script = make_script(math.inf, (2, 3, 2), 900, n_classes=3)
    course, answers = run(
        script,
        lambda asked: (
            np.argmax(summed(asked, list(parted(table))), keepdims=True)
            if asked.is_choice
            else summed(asked, list(parted(table)))
        ),
    )
    tree = script.build_model(course, answers)
    assert tree.counts[0].tolist() == np.bincount(table.labels, minlength=3).tolist()
    assert tree.counts[tree.splits < 0].sum() == 900


def test_root_is_labelled_by_all_cells_and_their_noise() -> None:
    script = make_script(0.5, (4,), size=1000)
    joint = np.array([[40, 2], [10, 5], [-9, 30], [0, 3]])
    tree = script.build_model(SDQScriptState(step=1), (joint.reshape(-1),))
    noise = compute_deviation(script.params, 0.5) * 2
    shares = estimate_class_shares(joint.sum(axis=0), noise)
    assert tree.counts[0].tolist() == [41, 40]
    assert tree.chances[0] == pytest.approx(
        back_off(joint.sum(axis=0)[np.newaxis], shares[np.newaxis], noise)[0], rel=1e-12
    )
