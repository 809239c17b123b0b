"""From encoded rows to inputs: their number, names and largest size."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shoal.data.schema import Categorical, Numeric, Schema, Text, as_columns
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.design_matrix import InputDesign, SparseInputs

AGE = Numeric("age", 0, 100, missing=False)
HEIGHT = Numeric("height", 1, 3)
SHOE = Numeric("shoe", 30, 50, bins=[36, 42])
SEX = Categorical("sex", ["f", "m"], missing=False)
TOWN = Categorical("town", ["Aa", "Ba", "Ca"])
JOB = Categorical("job", ["a", "b", "c"], groups={"x": ["a", "c"], "y": ["b"]}, missing=False)
NOTE = Text("note", 64)
TAGS = Text("tags", 32, 1)


def dense(design: InputDesign, columns: dict[str, Any]) -> npt.NDArray[np.float64]:
    return design.make_inputs(design.schema.encode(as_columns(columns))).to_dense()


@pytest.mark.parametrize(
    ("part", "cells", "rows", "names"),
    [
        (AGE, [0, 50, 100], [[0], [0.5], [1]], ["age"]),
        (HEIGHT, [1, 2, None], [[0, 0], [0.5, 0], [0, 1]], ["height", "height missing"]),
        (
            SHOE,
            [30, 40, 50, None],
            [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]],
            ["shoe > 36", "shoe > 42", "shoe missing"],
        ),
        (SEX, ["f", "m"], [[0], [1]], ["sex = m"]),
        (
            TOWN,
            ["Aa", "Ba", "Ca", None],
            [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]],
            ["town = Ba", "town = Ca", "town missing"],
        ),
        (JOB, ["a", "b", "c"], [[0], [1], [0]], ["job = y"]),
    ],
)
def test_design_places_features_after_constant(
    part: Any, cells: list[Any], rows: list[list[float]], names: list[str]
) -> None:
    design = InputDesign(Schema([part]))
    assert design.names == ("constant", *names) and design.width == 1 + len(names)
    assert dense(design, {part.name: cells}).tolist() == [[1, *row] for row in rows]


@pytest.mark.parametrize(
    ("part", "cells", "rows"),
    [
        (AGE, [0, 50, 100], [[-0.5], [0], [0.5]]),
        (HEIGHT, [1, 2, None], [[-0.5, 0], [0, 0], [0, 1]]),
        (SEX, ["f", "m"], [[-0.5], [0.5]]),
        (
            TOWN,
            ["Aa", "Ca", None],
            [[-0.25, -0.25, -0.25], [-0.25, 0.75, -0.25], [-0.25, -0.25, 0.75]],
        ),
    ],
)
def test_centred_inputs_lie_around_zero(
    part: Any, cells: list[Any], rows: list[list[float]]
) -> None:
    assert dense(InputDesign(Schema([part]), centred=True), {part.name: cells}).tolist() == [
        [1, *row] for row in rows
    ]


def test_unseen_category_counts_as_reference() -> None:
    schema = Schema([SEX])
    known, unseen = (schema.encode(as_columns({"sex": [cell]}), "clip") for cell in ("f", "x"))
    for centred in (False, True):
        design = InputDesign(schema, centred=centred)
        assert (
            design.make_inputs(known).to_dense().tolist()
            == design.make_inputs(unseen).to_dense().tolist()
        )


def test_ngrams_of_text_have_unit_length() -> None:
    design = InputDesign(Schema([], texts=[NOTE]))
    rows = dense(design, {"note": ["one two", "", "three"]})
    assert design.width == 65 and design.names[1:3] == ("note #0", "note #1")
    assert np.linalg.norm(rows[:, 1:], axis=1).tolist() == pytest.approx([1, 0, 1])
    assert np.count_nonzero(rows, axis=1).tolist() == [1 + 3, 1, 1 + 1]


@pytest.mark.parametrize(
    "pair", [("age", "height"), ("sex", "town"), ("age", "town"), ("shoe", "sex")]
)
@pytest.mark.parametrize("centred", [False, True])
def test_cross_contains_all_products(pair: tuple[str, str], centred: bool) -> None:
    parts = {part.name: part for part in (AGE, HEIGHT, SHOE, SEX, TOWN)}
    schema = Schema([parts[name] for name in pair])
    columns = {
        "age": [70, 20, 0],
        "height": [1.5, None, 3],
        "shoe": [40, None, 31],
        "sex": ["m", "f", "m"],
        "town": ["Ba", None, "Aa"],
    }
    rows = dense(InputDesign(schema, (pair,), centred), columns)
    first = InputDesign(Schema([parts[pair[0]]]), centred=centred).width
    one, other = (
        rows[:, 1:first],
        rows[:, first : first + InputDesign(Schema([parts[pair[1]]])).width - 1],
    )
    products = (one[:, :, None] * other[:, None, :]).reshape(3, -1)
    np.testing.assert_allclose(rows[:, 1 + one.shape[1] + other.shape[1] :], products)


def test_cross_names_combine_parts() -> None:
    design = InputDesign(Schema([SEX, TOWN], texts=[NOTE]), (("sex", "town"), ("sex", "note")))
    assert [name for name in design.names if " x " in name][:4] == [
        "sex = m x town = Ba",
        "sex = m x town = Ca",
        "sex = m x town missing",
        "sex = m x note #0",
    ]
    both = InputDesign(Schema([], texts=[NOTE, TAGS]), (("note", "tags"),))
    assert both.names[-1] == "note x tags #63" and len(both.names) == both.width


def test_cross_with_text_has_inputs_of_larger_text() -> None:
    schema = Schema([SEX, TOWN], texts=[NOTE, TAGS])
    assert [
        InputDesign(schema).count_term_inputs(term)
        for term in [("tags", "note"), ("town", "tags"), ("note", "sex")]
    ] == [64, 32, 64]


def test_cross_of_texts_depends_on_both() -> None:
    design = InputDesign(
        Schema([], texts=[Text("note", 5000), Text("tags", 5000)]), (("note", "tags"),)
    )
    rows = dense(design, {"note": ["a", "a", "b"], "tags": ["u", "v", "u"]})[:, 10_001:]
    assert np.count_nonzero(rows, axis=1).tolist() == [1, 1, 1]
    assert len({int(row.argmax()) for row in rows}) == 3


def many_rows(schema: Schema, n: int) -> dict[str, npt.NDArray[Any]]:
    """Encoded columns drawn from all that the schema allows, its extremes included."""
    entropy = SeededEntropy("rows of a design")
    columns: dict[str, list[Any]] = {}
    for feature in schema.features:
        if isinstance(feature, Categorical):
            choices: list[Any] = list(feature.values)
        else:
            choices = [feature.low, (feature.low + feature.high) / 2, feature.high]
        choices += [None] if feature.missing else []
        columns[feature.name] = [choices[i] for i in entropy.below_many(len(choices), n)]
    for text in schema.texts:
        columns[text.name] = [
            " ".join(f"w{i}" for i in entropy.below_many(50, int(size)))
            for size in entropy.below_many(9, n)
        ]
    return schema.encode(as_columns(columns))


ALL = Schema([AGE, HEIGHT, SHOE, SEX, TOWN, JOB], texts=[NOTE, TAGS])
CROSSES = (("age", "height"), ("town", "shoe"), ("sex", "note"), ("tags", "town"), ("age", "tags"))


@pytest.mark.parametrize("centred", [False, True])
def test_max_entries_and_norms_bound_every_row(centred: bool) -> None:
    design = InputDesign(ALL, CROSSES, centred)
    rows = design.make_inputs(many_rows(ALL, 2000)).to_dense()
    l1, l2 = design.norms
    assert np.abs(rows).sum(axis=1).max() <= l1 + 1e-9
    assert np.linalg.norm(rows, axis=1).max() <= l2 + 1e-9
    assert np.linalg.norm(rows, axis=1).max() > 0.8 * l2


def test_max_entries_and_norms_bound_rows_of_crossed_texts() -> None:
    schema = Schema([], texts=[NOTE, TAGS])
    design = InputDesign(schema, (("note", "tags"),))
    rows = design.make_inputs(many_rows(schema, 500)).to_dense()
    l1, l2 = design.norms
    assert np.abs(rows).sum(axis=1).max() <= l1 + 1e-9
    assert 0.8 * l2 < np.linalg.norm(rows, axis=1).max() <= l2 + 1e-9


def test_norms_are_attained_by_simple_features() -> None:
    schema = Schema([AGE, SEX, TOWN])
    for centred in (False, True):
        design = InputDesign(schema, (("age", "sex"), ("sex", "town")), centred)
        rows = dense(design, {"age": [100], "sex": ["m"], "town": ["Ca"]})
        assert (np.abs(rows).sum(), np.linalg.norm(rows)) == pytest.approx(design.norms)


class TestInputs:
    ROWS = np.array([[1.0, 0.0, 0.5], [1.0, 0.0, 0.0], [1.0, 0.25, 1.0]])

    @pytest.fixture
    def inputs(self) -> SparseInputs:
        return SparseInputs.from_dense(self.ROWS)

    def test_sparse_inputs_omit_and_restore_zeros(self, inputs: SparseInputs) -> None:
        assert (
            len(inputs) == 3 and inputs.starts.tolist() == [0, 2, 3, 6] and inputs.values.size == 6
        )
        assert inputs.to_dense().tolist() == self.ROWS.tolist()

    @pytest.mark.parametrize("rows", [[2, 0], [1], [0, 0, 2], []])
    def test_take_returns_rows_in_given_order(self, inputs: SparseInputs, rows: list[int]) -> None:
        taken = inputs.take(np.array(rows, np.int64))
        assert (
            taken.to_dense().tolist() == self.ROWS[rows].tolist()
            and taken.positions.dtype == np.int32
        )

    def test_multiply_and_mean_outer_equal_dense_matrix(self, inputs: SparseInputs) -> None:
        weights = np.array([[1.0, 2.0, 3.0], [0.5, -1.0, 0.0]])
        residuals = np.array([[1.0, 0.0], [0.5, 2.0], [-1.0, 1.0]])
        np.testing.assert_allclose(inputs.multiply(weights), self.ROWS @ weights.T)
        np.testing.assert_allclose(inputs.mean_outer(residuals), residuals.T @ self.ROWS / 3)

    def test_mean_outer_of_no_rows_is_zero(self, inputs: SparseInputs) -> None:
        none = inputs.take(np.array([], np.int64))
        assert none.mean_outer(np.zeros((0, 2))).tolist() == [
            [0, 0, 0],
            [0, 0, 0],
        ] and none.multiply(np.ones((2, 3))).shape == (0, 2)


def test_hashed_pairs_in_one_bucket_appear_once() -> None:
    schema = Schema([], texts=[Text("note", 4, 1), Text("tags", 4, 1)])
    design = InputDesign(schema, (("note", "tags"),))
    inputs = design.make_inputs(many_rows(schema, 300))
    for i in range(len(inputs)):
        row = inputs.positions[inputs.starts[i] : inputs.starts[i + 1]].tolist()
        assert len(set(row)) == len(row)
