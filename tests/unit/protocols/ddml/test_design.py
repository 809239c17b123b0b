"""From encoded rows to inputs: which there are, what they are called, and how large they can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shoal.domain import Categorical, Numeric, Schema, Text, as_columns
from shoal.entropy import SeededEntropy
from shoal.protocols.ddml.design import Design, Inputs

AGE = Numeric("age", 0, 100, missing=False)
HEIGHT = Numeric("height", 1, 3)
SHOE = Numeric("shoe", 30, 50, bins=[36, 42])
SEX = Categorical("sex", ["f", "m"], missing=False)
TOWN = Categorical("town", ["Aa", "Ba", "Ca"])
JOB = Categorical("job", ["a", "b", "c"], groups={"x": ["a", "c"], "y": ["b"]}, missing=False)
NOTE = Text("note", 64)
TAGS = Text("tags", 32, 1)


def dense(design: Design, columns: dict[str, Any]) -> npt.NDArray[np.float64]:
    return design.inputs(design.schema.encode(as_columns(columns))).dense()


@pytest.mark.parametrize(
    ("part", "cells", "rows", "names"),
    [
        (AGE, [0, 50, 100], [[0], [0.5], [1]], ["age"]),
        (HEIGHT, [1, 2, None], [[0, 0], [0.5, 0], [0, 1]], ["height", "height missing"]),
        (SHOE, [30, 40, 50, None], [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], ["shoe > 36", "shoe > 42", "shoe missing"]),
        (SEX, ["f", "m"], [[0], [1]], ["sex = m"]),
        (TOWN, ["Aa", "Ba", "Ca", None], [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], ["town = Ba", "town = Ca", "town missing"]),
        (JOB, ["a", "b", "c"], [[0], [1], [0]], ["job = y"]),
    ],
)
def test_a_feature_has_its_inputs_after_the_constant(part: Any, cells: list[Any], rows: list[list[float]], names: list[str]) -> None:
    design = Design(Schema([part]))
    assert design.names == ("constant", *names) and design.width == 1 + len(names)
    assert dense(design, {part.name: cells}).tolist() == [[1, *row] for row in rows]


@pytest.mark.parametrize(
    ("part", "cells", "rows"),
    [
        (AGE, [0, 50, 100], [[-0.5], [0], [0.5]]),
        (HEIGHT, [1, 2, None], [[-0.5, 0], [0, 0], [0, 1]]),
        (SEX, ["f", "m"], [[-0.5], [0.5]]),
        (TOWN, ["Aa", "Ca", None], [[-0.25, -0.25, -0.25], [-0.25, 0.75, -0.25], [-0.25, -0.25, 0.75]]),
    ],
)
def test_centred_inputs_lie_around_zero(part: Any, cells: list[Any], rows: list[list[float]]) -> None:
    assert dense(Design(Schema([part]), centred=True), {part.name: cells}).tolist() == [[1, *row] for row in rows]


def test_an_unseen_category_is_as_the_reference() -> None:
    schema = Schema([SEX])
    known, unseen = (schema.encode(as_columns({"sex": [cell]}), "clip") for cell in ("f", "x"))
    for centred in (False, True):
        design = Design(schema, centred=centred)
        assert design.inputs(known).dense().tolist() == design.inputs(unseen).dense().tolist()


def test_a_text_shares_one_unit_of_length_among_its_n_grams() -> None:
    design = Design(Schema([], texts=[NOTE]))
    rows = dense(design, {"note": ["one two", "", "three"]})
    assert design.width == 65 and design.names[1:3] == ("note #0", "note #1")
    assert np.linalg.norm(rows[:, 1:], axis=1).tolist() == pytest.approx([1, 0, 1])
    assert np.count_nonzero(rows, axis=1).tolist() == [1 + 3, 1, 1 + 1]


@pytest.mark.parametrize("pair", [("age", "height"), ("sex", "town"), ("age", "town"), ("shoe", "sex")])
@pytest.mark.parametrize("centred", [False, True])
def test_a_cross_has_all_products(pair: tuple[str, str], centred: bool) -> None:
    parts = {part.name: part for part in (AGE, HEIGHT, SHOE, SEX, TOWN)}
    schema = Schema([parts[name] for name in pair])
    columns = {"age": [70, 20, 0], "height": [1.5, None, 3], "shoe": [40, None, 31], "sex": ["m", "f", "m"], "town": ["Ba", None, "Aa"]}
    rows = dense(Design(schema, (pair,), centred), columns)
    first = Design(Schema([parts[pair[0]]]), centred=centred).width
    one, other = rows[:, 1:first], rows[:, first : first + Design(Schema([parts[pair[1]]])).width - 1]
    products = (one[:, :, None] * other[:, None, :]).reshape(3, -1)
    np.testing.assert_allclose(rows[:, 1 + one.shape[1] + other.shape[1] :], products)


def test_crosses_are_named_by_their_parts() -> None:
    design = Design(Schema([SEX, TOWN], texts=[NOTE]), (("sex", "town"), ("sex", "note")))
    assert [name for name in design.names if " x " in name][:4] == [
        "sex = m x town = Ba",
        "sex = m x town = Ca",
        "sex = m x town missing",
        "sex = m x note #0",
    ]
    both = Design(Schema([], texts=[NOTE, TAGS]), (("note", "tags"),))
    assert both.names[-1] == "note x tags #63" and len(both.names) == both.width


def test_a_cross_with_a_text_has_as_many_inputs_as_the_larger_text() -> None:
    schema = Schema([SEX, TOWN], texts=[NOTE, TAGS])
    assert [Design(schema).width_of(term) for term in [("tags", "note"), ("town", "tags"), ("note", "sex")]] == [64, 32, 64]


def test_a_cross_of_texts_depends_on_both() -> None:
    design = Design(Schema([], texts=[Text("note", 5000), Text("tags", 5000)]), (("note", "tags"),))
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
        columns[text.name] = [" ".join(f"w{i}" for i in entropy.below_many(50, int(size))) for size in entropy.below_many(9, n)]
    return schema.encode(as_columns(columns))


ALL = Schema([AGE, HEIGHT, SHOE, SEX, TOWN, JOB], texts=[NOTE, TAGS])
CROSSES = (("age", "height"), ("town", "shoe"), ("sex", "note"), ("tags", "town"), ("age", "tags"))


@pytest.mark.parametrize("centred", [False, True])
def test_no_row_is_larger_than_the_schema_says(centred: bool) -> None:
    design = Design(ALL, CROSSES, centred)
    rows = design.inputs(many_rows(ALL, 2000)).dense()
    l1, l2 = design.norms
    assert np.abs(rows).sum(axis=1).max() <= l1 + 1e-9
    assert np.linalg.norm(rows, axis=1).max() <= l2 + 1e-9
    assert np.linalg.norm(rows, axis=1).max() > 0.8 * l2


def test_no_row_of_crossed_texts_is_larger_than_the_schema_says() -> None:
    schema = Schema([], texts=[NOTE, TAGS])
    design = Design(schema, (("note", "tags"),))
    rows = design.inputs(many_rows(schema, 500)).dense()
    l1, l2 = design.norms
    assert np.abs(rows).sum(axis=1).max() <= l1 + 1e-9
    assert 0.8 * l2 < np.linalg.norm(rows, axis=1).max() <= l2 + 1e-9


def test_the_norms_are_reached_where_all_features_are_simple() -> None:
    schema = Schema([AGE, SEX, TOWN])
    for centred in (False, True):
        design = Design(schema, (("age", "sex"), ("sex", "town")), centred)
        rows = dense(design, {"age": [100], "sex": ["m"], "town": ["Ca"]})
        assert (np.abs(rows).sum(), np.linalg.norm(rows)) == pytest.approx(design.norms)


class TestInputs:
    ROWS = np.array([[1.0, 0.0, 0.5], [1.0, 0.0, 0.0], [1.0, 0.25, 1.0]])

    @pytest.fixture
    def inputs(self) -> Inputs:
        return Inputs.of_dense(self.ROWS)

    def test_zeros_are_left_out_and_come_back(self, inputs: Inputs) -> None:
        assert len(inputs) == 3 and inputs.starts.tolist() == [0, 2, 3, 6] and inputs.values.size == 6
        assert inputs.dense().tolist() == self.ROWS.tolist()

    @pytest.mark.parametrize("rows", [[2, 0], [1], [0, 0, 2], []])
    def test_some_rows_are_taken_in_any_order(self, inputs: Inputs, rows: list[int]) -> None:
        taken = inputs.take(np.array(rows, np.int64))
        assert taken.dense().tolist() == self.ROWS[rows].tolist() and taken.positions.dtype == np.int32

    def test_scores_and_gradients_are_those_of_the_full_matrix(self, inputs: Inputs) -> None:
        weights = np.array([[1.0, 2.0, 3.0], [0.5, -1.0, 0.0]])
        residuals = np.array([[1.0, 0.0], [0.5, 2.0], [-1.0, 1.0]])
        np.testing.assert_allclose(inputs.times(weights), self.ROWS @ weights.T)
        np.testing.assert_allclose(inputs.mean_outer(residuals), residuals.T @ self.ROWS / 3)

    def test_no_rows_have_no_gradient(self, inputs: Inputs) -> None:
        none = inputs.take(np.array([], np.int64))
        assert none.mean_outer(np.zeros((0, 2))).tolist() == [[0, 0, 0], [0, 0, 0]] and none.times(np.ones((2, 3))).shape == (0, 2)


def test_hashed_pairs_that_meet_are_there_once() -> None:
    schema = Schema([], texts=[Text("note", 4, 1), Text("tags", 4, 1)])
    design = Design(schema, (("note", "tags"),))
    inputs = design.inputs(many_rows(schema, 300))
    for i in range(len(inputs)):
        row = inputs.positions[inputs.starts[i] : inputs.starts[i + 1]].tolist()
        assert len(set(row)) == len(row)
