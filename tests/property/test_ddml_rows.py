"""The size of an encoded row: within the schema's bounds for any texts and values."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.schema import Categorical, Numeric, Schema, Text, as_columns
from shoal.protocols.ddml import design_matrix as module
from shoal.protocols.ddml.design_matrix import InputDesign

FEATURES = (Numeric("age", 0, 100), Categorical("town", ["a", "b", "c"]))
PAIRS = st.sampled_from(
    [("note", "tags"), ("tags", "note"), ("note", "town"), ("age", "tags"), ("town", "age")]
)
BUCKETS = st.sampled_from([2, 3, 16, 300, 5000])
WORDS = st.one_of(
    st.text(max_size=30),
    st.builds(
        lambda start, n: " ".join(f"w{i}" for i in range(start, start + n)),
        st.integers(0, 500),
        st.integers(0, 400),
    ),
)
ROWS = st.lists(
    st.tuples(WORDS, WORDS, st.none() | st.floats(0, 100), st.sampled_from(["a", "b", "c", None])),
    min_size=1,
    max_size=6,
)


@st.composite
def designs(draw: st.DrawFn) -> InputDesign:
    texts = [Text(name, draw(BUCKETS), draw(st.integers(1, 3))) for name in ("note", "tags")]
    crosses = draw(st.lists(PAIRS, max_size=3, unique_by=frozenset))
    return InputDesign(Schema(FEATURES, texts=texts), tuple(crosses), draw(st.booleans()))


@given(designs(), ROWS)
def test_row_norm_and_entries_are_within_schema_bounds(
    design: InputDesign, rows: list[tuple[object, ...]]
) -> None:
    columns = design.schema.encode(
        as_columns(
            dict(
                zip(
                    ("note", "tags", "age", "town"), map(list, zip(*rows, strict=True)), strict=True
                )
            )
        )
    )
    inputs = design.make_inputs(columns)
    l1, l2 = design.norms
    sizes = np.diff(inputs.starts)
    assert len(inputs) == len(rows) and sizes.max() <= design.max_entries
    for start, size in zip(inputs.starts, sizes, strict=False):
        positions, values = (
            inputs.positions[start : start + size],
            inputs.values[start : start + size],
        )
        assert np.abs(values).sum() <= l1 * (1 + 1e-12)
        assert np.linalg.norm(values) <= l2 * (1 + 1e-12)
        assert np.unique(positions).size == size and positions.max() < design.width


@given(designs(), ROWS, st.integers(1, 3000))
def test_rows_are_equal_alone_together_and_in_blocks(
    design: InputDesign, rows: list[tuple[object, ...]], block: int
) -> None:
    columns = design.schema.encode(
        as_columns(
            dict(
                zip(
                    ("note", "tags", "age", "town"), map(list, zip(*rows, strict=True)), strict=True
                )
            )
        )
    )
    whole = design.make_inputs(columns)
    kept, module._BLOCK = module._BLOCK, block
    try:
        parts = design.make_inputs(columns)
    finally:
        module._BLOCK = kept
    alone = [
        design.make_inputs({name: column[i : i + 1] for name, column in columns.items()})
        for i in range(len(rows))
    ]
    for i, one in enumerate(alone):
        for other in (whole, parts):
            taken = other.take(np.array([i]))
            assert (
                one.positions.tolist() == taken.positions.tolist()
                and one.values.tolist() == taken.values.tolist()
            )
