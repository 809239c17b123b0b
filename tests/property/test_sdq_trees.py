"""SDQ's trees for any rows, answers and script states."""

from __future__ import annotations

import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import RemoteProtocolError
from shoal.protocols.sdq.counting import compute_local_scores
from shoal.protocols.sdq.model import DecisionTree, from_plain
from shoal.protocols.sdq.paper import MAX_COUNTS, SDQPaperScript
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams
from shoal.protocols.sdq.script import SDQRound, SDQScriptState
from tests.support.hostile import hostile, read_with_garbage
from tests.support.sdq import CentralID3, make_schema, parted, run, summed

shapes = st.tuples(
    st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), st.integers(2, 4)
)
tables = shapes.flatmap(
    lambda shape: st.tuples(
        st.just(shape),
        st.lists(
            st.tuples(
                *(st.integers(0, arity - 1) for arity in shape[0]),
                st.integers(0, shape[1] - 1),
                st.integers(0, 3),
            ),
            max_size=30,
        ),
    )
)


def make_table(n_attributes: int, rows: list[tuple[int, ...]]) -> CellTable:
    array = np.array(rows, np.int64).reshape(len(rows), n_attributes + 2)
    return CellTable(array[:, :-2], array[:, -2], array[:, -1])


def build_named_script(
    shape: tuple[tuple[int, ...], int], epsilon: float, depth: int
) -> SDQPaperScript:
    return SDQPaperScript(
        SDQParams(make_schema(*shape), epsilon, 100, variant="paper", depth=depth)
    )


def predict_all(tree: DecisionTree, arities: tuple[int, ...]) -> list[int]:
    """Return the prediction for every combination of cells."""
    grid = np.indices(arities).reshape(len(arities), -1)
    columns = {
        name: column.astype(float) if arity == 1 else column
        for name, column, arity in zip(tree.schema.names, grid, arities, strict=True)
    }
    return tree.decide(columns).tolist()


@hostile(150)
@given(tables, st.integers(1, 5))
def test_noiseless_sdq_tree_is_central_id3(
    case: tuple[tuple[tuple[int, ...], int], list[tuple[int, ...]]], depth: int
) -> None:
    shape, rows = case
    table = make_table(len(shape[0]), rows)
    databases = list(parted(table)) or [table]
    script = build_named_script(shape, math.inf, depth)
    tree = script.build_model(*run(script, lambda asked: summed(asked, databases)))
    oracle = CentralID3(table, *shape, min(depth, len(shape[0])))
    assert predict_all(tree, shape[0]) == [oracle.predict(cells) for cells in np.ndindex(shape[0])]


@hostile(100)
@given(
    shapes,
    st.integers(1, 4),
    st.sampled_from([math.inf, 0.1, 5.0]),
    st.integers(0, 2**32),
    st.sampled_from([1, 30, 10**6, 2**50]),
)
def test_any_answers_give_a_tree(
    shape: tuple[tuple[int, ...], int], depth: int, epsilon: float, seed: int, size: int
) -> None:
    script = build_named_script(shape, epsilon, depth)
    rng = np.random.default_rng(seed)
    asked_for: list[str] = []

    def answer(asked: SDQRound) -> Ints:
        assert 0 < asked.size <= MAX_COUNTS
        asked_for.append(asked.question)
        return rng.integers(-size, size, asked.size, endpoint=True)

    state, answers = run(script, answer)
    assert len(set(asked_for)) == len(asked_for) == state.step <= 2 * (depth + 1)
    if not script.params.is_noiseless:
        assert script.prices.keys() >= set(asked_for)
    tree = script.build_model(state, answers)
    assert np.allclose(tree.chances.sum(axis=1), 1)
    assert (
        from_plain(json.loads(json.dumps(tree.to_plain(), allow_nan=False))).to_plain()
        == tree.to_plain()
    )
    assert set(predict_all(tree, shape[0])) <= set(range(shape[1]))
    assert len(tree.to_text().splitlines()) == len(tree) + (not script.params.is_noiseless)


@hostile(100)
@given(tables, st.integers(0, 2**32), st.data())
def test_one_more_row_changes_round_by_at_most_its_price(
    case: tuple[tuple[tuple[int, ...], int], list[tuple[int, ...]]], seed: int, data: st.DataObject
) -> None:
    (arities, n_classes), rows = case
    row = (
        *(data.draw(st.integers(0, arity - 1)) for arity in arities),
        data.draw(st.integers(0, n_classes - 1)),
        0,
    )
    fewer, more = make_table(len(arities), rows), make_table(len(arities), [*rows, row])
    rng = np.random.default_rng(seed)

    def answer(asked: SDQRound) -> Ints:
        moved = [
            np.abs(part.count(more) - part.count(fewer)).sum() / part.n_tables
            for part in asked.parts
        ]
        assert sum(moved) <= 1
        assert asked.question != "sizes/0" or moved == [1]
        return rng.integers(-50, 200, asked.size)

    run(build_named_script((arities, n_classes), 1.0, 3), answer)


@hostile(100)
@given(tables, st.data())
def test_one_more_row_raises_every_score_by_zero_or_one(
    case: tuple[tuple[tuple[int, ...], int], list[tuple[int, ...]]], data: st.DataObject
) -> None:
    (arities, n_classes), rows = case
    order = data.draw(st.permutations(range(len(arities))))
    n_chosen = data.draw(st.integers(0, len(arities) - 1))
    row = (
        *(data.draw(st.integers(0, arity - 1)) for arity in arities),
        data.draw(st.integers(0, n_classes - 1)),
        data.draw(st.integers(0, 3)),
    )
    fewer, more = (
        compute_local_scores(
            make_table(len(arities), some), order[:n_chosen], order[n_chosen:], arities, n_classes
        )
        for some in (rows, [*rows, row])
    )
    assert set((more - fewer).tolist()) <= {0, 1}


script_states = st.builds(
    SDQScriptState,
    step=st.integers(-1, 9) | st.integers(),
    choices=st.lists(st.integers(-1, 2) | st.integers(-3, 5), max_size=14).map(tuple),
    leaves=st.lists(st.booleans(), max_size=8).map(tuple),
)


@hostile(400)
@given(script_states)
def test_script_state_is_rejected_or_has_a_price(state: SDQScriptState) -> None:
    script = build_named_script(((2, 3, 2), 2), 1.0, 2)
    try:
        asked = script.make_round(state)
    except RemoteProtocolError as error:
        assert error.code == "SDQ-001"
        return
    assert asked is None or (asked.question in script.prices and 0 < asked.size <= MAX_COUNTS)


LEARNED = [[20, 9], [12, 1], [8, 8], [0, 0], [3, 3], [5, 5]]
PLAIN = DecisionTree(
    make_schema((3, 2), 2),
    np.array([0, -1, 1, -1, -1, -1]),
    np.array([1, -1, 4, -1, -1, -1]),
    np.array(LEARNED, float),
    np.full((6, 2), 0.5),
).to_plain()


@hostile(200)
@given(st.data())
def test_tree_file_with_garbage_is_rejected_or_valid(data: st.DataObject) -> None:
    tree = read_with_garbage(PLAIN, from_plain, data)
    if tree is not None:
        assert set(
            predict_all(tree, tuple(feature.n_bins or 0 for feature in tree.schema.features))
        ) <= set(range(len(tree.classes)))
        assert tree.to_text() and tree.to_svg()
