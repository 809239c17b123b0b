"""A device's rows: checks, batches, and their gradient."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from shoal.data.features import MAX_GRAMS
from shoal.data.schema import Schema, Text
from shoal.entropy import SeededEntropy
from shoal.errors import LocalProtocolError
from shoal.protocols.ddml.links import predict_means
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.ddml.peer import DeviceRows, TrainingRows
from tests.support.ddml import ILL, NUMBER, STUDIES, TWO, people, some_weights


@pytest.mark.parametrize("name", STUDIES)
def test_device_rows_accept_encoded_rows(name: str) -> None:
    params = STUDIES[name]
    columns, labels = people(params.schema, 40)
    held = TrainingRows.from_columns(params, columns, labels)
    assert len(held) == len(held.inputs) == 40
    assert held.inputs.to_dense().tolist() == params.design.make_inputs(columns).to_dense().tolist()


@pytest.mark.parametrize("name", list(STUDIES))
def test_device_rows_may_be_empty(name: str) -> None:
    params = STUDIES[name]
    columns, labels = people(params.schema, 0)
    assert len(TrainingRows.from_columns(params, columns, labels)) == 0


def test_targets_are_scaled_numbers_and_class_positions() -> None:
    columns, labels = people(NUMBER, 5)
    assert np.allclose(
        TrainingRows.from_columns(STUDIES["number"], columns, labels).targets, (labels - 100) / 200
    )
    columns, labels = people(TWO, 5)
    assert (
        TrainingRows.from_columns(STUDIES["laplace"], columns, labels).targets.tolist()
        == labels.tolist()
    )


WRONG: dict[str, tuple[str, str, Any]] = {
    "a number above its range": ("laplace", "age", np.array([1.0, 11.0])),
    "a number below its range": ("laplace", "age", np.array([1.0, -0.1])),
    "an infinite number": ("laplace", "age", np.array([1.0, np.inf])),
    "a number that may not be missing": ("laplace", "height", np.array([0.0, np.nan])),
    "a category that may not be missing": ("laplace", "town", np.array([0, -1])),
    "a category beyond the last": ("laplace", "town", np.array([0, 3])),
    "a column too short": ("laplace", "age", np.array([1.0])),
    "a column of two dimensions": ("laplace", "age", np.ones((2, 1))),
    "a number that is none": ("laplace", "age", np.array(["1", None], object)),
    "a category between two": ("laplace", "town", np.array([0.0, 0.5])),
    "a label between two": ("laplace", "ill", np.array([0.0, 0.5])),
    "buckets that are no array": ("words", "query", np.array([None, [3, 4]], object)),
    "buckets that are no integers": ("words", "query", np.array([[1.5], [3.0]], object)),
    "buckets in another order": (
        "words",
        "query",
        np.array([np.array([4, 3]), np.array([3])], object),
    ),
    "a bucket beyond the last": (
        "words",
        "query",
        np.array([np.array([3]), np.array([16])], object),
    ),
    "a negative bucket": ("words", "query", np.array([np.array([-1]), np.array([3])], object)),
    "a bucket twice": ("words", "query", np.array([np.array([3, 3]), np.array([3])], object)),
    "a label that is missing": ("laplace", "ill", np.array([0, -1])),
    "a label beyond the last": ("laplace", "ill", np.array([0, 2])),
    "a number as label that is missing": ("number", "cost", np.array([150.0, np.nan])),
    "a number as label out of range": ("number", "cost", np.array([150.0, 99.0])),
}


@pytest.mark.parametrize("fault", WRONG)
def test_device_rows_reject_other_rows_without_values(fault: str) -> None:
    study, name, column = WRONG[fault]
    params = STUDIES[study]
    columns, labels = people(params.schema, 2, seed=3)
    if name in columns:
        columns[name] = _ragged(column) if name == "query" else column
    else:
        labels = column
    with pytest.raises(LocalProtocolError) as caught:
        DeviceRows(params, columns, labels)
    assert caught.value.code == "PROTO-001"
    assert name in caught.value.what
    assert not any(digit in str(caught.value) for digit in "23456789")


def _ragged(column: Any) -> Any:
    """An array of arrays, also where they have one length."""
    ragged = np.empty(len(column), object)
    for i, grams in enumerate(column):
        ragged[i] = (
            np.array(grams) if isinstance(grams, list) and isinstance(grams[0], float) else grams
        )
    return ragged


def test_device_rows_reject_too_many_ngrams() -> None:
    schema = Schema([], label=ILL, texts=[Text("query", buckets=1000)])
    params = DDMLParams(schema, 4.0, 500)
    for n, is_taken in ((MAX_GRAMS, True), (MAX_GRAMS + 1, False)):
        columns = {"query": _ragged([np.arange(n)])}
        if is_taken:
            assert (
                DeviceRows(params, columns, np.array([0])).take(slice(None)).inputs.values.size
                == 1 + n
            )
        else:
            with pytest.raises(LocalProtocolError, match="query"):
                DeviceRows(params, columns, np.array([0]))


def test_device_rows_reject_two_dimensional_text_and_absent_column() -> None:
    columns, labels = people(STUDIES["words"].schema, 2)
    for strange in ({**columns, "query": np.zeros((2, 2), np.int64)}, {"age": columns["age"]}):
        with pytest.raises(LocalProtocolError, match="query"):
            DeviceRows(
                STUDIES["words"],
                strange,
                labels if "query" not in strange else np.zeros((2, 2), np.int64)[:, 0],
            )


def test_device_rows_reject_two_dimensional_labels() -> None:
    columns, labels = people(TWO, 2)
    with pytest.raises(LocalProtocolError):
        TrainingRows.from_columns(
            STUDIES["laplace"],
            {name: column[:, np.newaxis] for name, column in columns.items()},
            labels[:, np.newaxis],
        )


def read(held: DeviceRows, seed: int = 1) -> list[float]:
    return held.draw_batch(SeededEntropy(seed)).targets.tolist()


def test_draw_batch_returns_all_of_few_rows() -> None:
    columns, labels = people(NUMBER, 3)
    for size in (3, 4, 100):
        params = replace(STUDIES["number"], batch_size=size)
        assert (
            read(DeviceRows(params, columns, labels))
            == TrainingRows.from_columns(params, columns, labels).targets.tolist()
        )


def test_inputs_of_full_batch_are_made_once() -> None:
    columns, labels = people(NUMBER, 3)
    few, many = (
        DeviceRows(replace(STUDIES["number"], batch_size=size), columns, labels) for size in (3, 2)
    )
    assert few.draw_batch(SeededEntropy(1)) is few.draw_batch(SeededEntropy(2))
    assert many.draw_batch(SeededEntropy(1)) is not many.draw_batch(SeededEntropy(1))


def test_draw_batch_returns_uniform_subset() -> None:
    """3,000 draws of two rows of four: each of six pairs 500 times, give or take six standard
    deviations.
    """
    columns, _ = people(NUMBER, 4)
    held = DeviceRows(
        replace(STUDIES["number"], batch_size=2), columns, np.array([100.0, 150.0, 200.0, 300.0])
    )
    entropy = SeededEntropy(2)
    seen = Counter(tuple(held.draw_batch(entropy).targets.tolist()) for _ in range(3000))
    assert set(seen) == set(combinations((0.0, 0.25, 0.5, 1.0), 2))
    assert all(abs(count - 500) < 6 * np.sqrt(3000 * 5 / 36) for count in seen.values())


def test_draw_batch_keeps_inputs_and_targets_together() -> None:
    columns, labels = people(NUMBER, 30)
    params = replace(STUDIES["number"], batch_size=7)
    every = TrainingRows.from_columns(params, columns, labels)
    batch = DeviceRows(params, columns, labels).draw_batch(SeededEntropy(1))
    places = [every.targets.tolist().index(target) for target in batch.targets]
    assert len(batch) == 7
    assert batch.inputs.to_dense().tolist() == every.inputs.to_dense()[places].tolist()


def test_device_rows_and_batch_use_little_memory() -> None:
    """200 rows with 100 words in each of two texts: their crosses alone would be millions."""
    schema = Schema([], label=ILL, texts=[Text("note", 4096), Text("tags", 4096)])
    params = DDMLParams(schema, 4.0, 500, batch_size=2, crosses=(("note", "tags"),))
    column = np.empty(200, object)
    column[:] = list(
        np.sort(
            np.random.default_rng(1).permuted(np.tile(np.arange(4096), (200, 1)), axis=1)[
                :, :MAX_GRAMS
            ]
        )
    )
    tracemalloc.start()
    held = DeviceRows(params, {"note": column, "tags": column}, np.zeros(200, np.int64))
    holding = tracemalloc.get_traced_memory()[1]
    batch = held.draw_batch(SeededEntropy(1))
    reading = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert holding < 100_000 and reading < 1_000_000
    assert len(batch) == 2 and batch.inputs.values.size <= 2 * params.design.max_entries


@pytest.mark.parametrize("name", STUDIES)
def test_gradient_uses_weights_in_real_units(name: str) -> None:
    params = STUDIES[name]
    held = TrainingRows.from_columns(params, *people(params.schema, 12))
    weights = some_weights(params, size=1 << params.fraction_bits)
    dense = held.inputs.to_dense()
    predicted = predict_means(
        params.link, dense @ (weights.reshape(params.n_outputs, -1) / 2.0**params.fraction_bits).T
    )
    due = (
        np.eye(params.n_outputs)[held.targets.astype(int)]
        if params.link == "multinomial"
        else held.targets[:, np.newaxis]
    )
    assert np.allclose(held.gradient(params, weights), ((predicted - due).T @ dense / 12).ravel())


@pytest.mark.parametrize("name", STUDIES)
def test_gradient_is_finite_at_ends_of_range(name: str) -> None:
    params = STUDIES[name]
    held = TrainingRows.from_columns(params, *people(params.schema, 12))
    for end in (-(2**31) + 1, 2**31 - 1):
        assert np.isfinite(held.gradient(params, np.full(params.n_weights, end, np.int32))).all()
