"""A device's rows: what is refused, which are read, and their gradient."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ddml_cases import NUMBER, STUDIES, TWO, people, some_weights
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.protocols.ddml.links import means
from shoal.protocols.ddml.rows import Rows


@pytest.mark.parametrize("name", STUDIES)
def test_rows_as_the_schema_encodes_them_are_taken(name: str) -> None:
    params = STUDIES[name]
    columns, labels = people(params.schema, 40)
    held = Rows.of(params, columns, labels)
    assert len(held) == len(held.inputs) == 40
    assert held.inputs.dense().tolist() == params.design.inputs(columns).dense().tolist()


@pytest.mark.parametrize("name", list(STUDIES))
def test_a_device_may_have_no_rows(name: str) -> None:
    params = STUDIES[name]
    columns, labels = people(params.schema, 0)
    assert len(Rows.of(params, columns, labels)) == 0


def test_a_number_is_scaled_and_a_class_is_its_position() -> None:
    columns, labels = people(NUMBER, 5)
    assert np.allclose(Rows.of(STUDIES["number"], columns, labels).targets, (labels - 100) / 200)
    columns, labels = people(TWO, 5)
    assert Rows.of(STUDIES["laplace"], columns, labels).targets.tolist() == labels.tolist()


WRONG: dict[str, tuple[str, str, Any]] = {
    "a number above its range": ("laplace", "age", np.array([1.0, 11.0])),
    "a number below its range": ("laplace", "age", np.array([1.0, -0.1])),
    "an infinite number": ("laplace", "age", np.array([1.0, np.inf])),
    "a number that may not be missing": ("laplace", "height", np.array([0.0, np.nan])),
    "a category that may not be missing": ("laplace", "town", np.array([0, -1])),
    "a category beyond the last": ("laplace", "town", np.array([0, 3])),
    "a column too short": ("laplace", "age", np.array([1.0])),
    "a column of two dimensions": ("laplace", "age", np.ones((2, 1))),
    "a bucket beyond the last": ("words", "query", np.array([np.array([3]), np.array([16])], object)),
    "a negative bucket": ("words", "query", np.array([np.array([-1]), np.array([3])], object)),
    "a bucket twice": ("words", "query", np.array([np.array([3, 3]), np.array([3])], object)),
    "a label that is missing": ("laplace", "ill", np.array([0, -1])),
    "a label beyond the last": ("laplace", "ill", np.array([0, 2])),
    "a number as label that is missing": ("number", "cost", np.array([150.0, np.nan])),
    "a number as label out of range": ("number", "cost", np.array([150.0, 99.0])),
}


@pytest.mark.parametrize("fault", WRONG)
def test_other_rows_are_refused_without_saying_what_they_hold(fault: str) -> None:
    study, name, column = WRONG[fault]
    params = STUDIES[study]
    columns, labels = people(params.schema, 2, seed=3)
    if name in columns:
        columns[name] = column if column.dtype != object else _ragged(column)
    else:
        labels = column
    with pytest.raises(LocalProtocolError) as caught:
        Rows.of(params, columns, labels)
    assert caught.value.code == "PROTO-001"
    assert name in caught.value.what
    assert not any(digit in str(caught.value) for digit in "23456789")


def _ragged(column: Any) -> Any:
    """An array of arrays, also where they have one length."""
    ragged = np.empty(len(column), object)
    for i, grams in enumerate(column):
        ragged[i] = np.asarray(grams, np.int64)
    return ragged


def test_labels_of_two_dimensions_are_refused() -> None:
    columns, labels = people(TWO, 2)
    with pytest.raises(LocalProtocolError):
        Rows.of(STUDIES["laplace"], {name: column[:, np.newaxis] for name, column in columns.items()}, labels[:, np.newaxis])


def test_all_rows_are_read_where_they_are_few() -> None:
    held = Rows.of(STUDIES["laplace"], *people(TWO, 3))
    for size in (3, 4):
        assert held.batch(size, SeededEntropy(1)) is held


def test_of_more_rows_every_subset_is_read_as_often_as_any_other() -> None:
    """6,000 draws of two rows of four: each of six pairs 1,000 times, give or take six standard deviations."""
    columns, labels = people(TWO, 4)
    held = Rows.of(STUDIES["laplace"], columns, labels)
    marked = Rows(held.inputs, np.arange(4.0))
    entropy = SeededEntropy(2)
    seen = Counter(tuple(marked.batch(2, entropy).targets.tolist()) for _ in range(6000))
    assert set(seen) == {(float(i), float(j)) for i in range(4) for j in range(i + 1, 4)}
    assert all(abs(count - 1000) < 6 * np.sqrt(6000 * 5 / 36) for count in seen.values())


def test_the_rows_of_a_batch_keep_their_inputs_and_targets_together() -> None:
    columns, labels = people(NUMBER, 30)
    held = Rows.of(STUDIES["number"], columns, labels)
    batch = held.batch(7, SeededEntropy(1))
    places = [held.targets.tolist().index(target) for target in batch.targets]
    assert len(batch) == 7
    assert batch.inputs.dense().tolist() == held.inputs.dense()[places].tolist()


@pytest.mark.parametrize("name", STUDIES)
def test_the_gradient_is_that_of_the_drawn_weights_in_real_units(name: str) -> None:
    params = STUDIES[name]
    held = Rows.of(params, *people(params.schema, 12))
    weights = some_weights(params, size=1 << params.fraction_bits)
    dense = held.inputs.dense()
    predicted = means(params.link, dense @ (weights.reshape(params.n_outputs, -1) / 2.0**params.fraction_bits).T)
    due = np.eye(params.n_outputs)[held.targets.astype(int)] if params.link == "multinomial" else held.targets[:, np.newaxis]
    assert np.allclose(held.gradient(params, weights), ((predicted - due).T @ dense / 12).ravel())


@pytest.mark.parametrize("name", STUDIES)
def test_the_gradient_is_finite_at_the_ends_of_the_range(name: str) -> None:
    params = STUDIES[name]
    held = Rows.of(params, *people(params.schema, 12))
    for end in (-(2**31) + 1, 2**31 - 1):
        assert np.isfinite(held.gradient(params, np.full(params.n_weights, end, np.int32))).all()
