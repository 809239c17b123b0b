"""Encoded synthetic data: size limits, values of the schema, and rejected data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array
from shoal.messages.codec import encode
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.messages import ForwardedPiece, SyntheticData, encode_floats
from shoal.protocols.pfds.paper import synthesis
from shoal.protocols.pfds.paper.synthesis import (
    MAX_ROWS,
    UnlabelledRows,
    compute_max_rows,
    decode_dataset,
    encode_dataset,
    synthesise,
    thin_rows,
)
from shoal.protocols.pfds.paper.tree import PrivateTree
from shoal.protocols.pfds.params import PFDSParams
from tests.support.pfds_paper import SCHEMA, STUDIES, logged, make_params, same_rows

STUDY = bytes(32)
PARAMS = make_params()
ROWS = Dataset(
    {
        "age": np.array([0.0, 99.5, 100.0]),
        "ward": np.array([0, 1, 2]),
        "city": np.array([-1, 0, 3]),
        "weight": np.array([2.0, 3.0, 6.0]),
    },
    np.array([0, 1, 1]),
)


def make_data(**changes: Any) -> SyntheticData:
    return encode_dataset(PARAMS, STUDY, ROWS).replace(**changes)


def replace_column(place: int, column: Array) -> SyntheticData:
    columns = list(make_data().columns)
    columns[place] = column
    return make_data(columns=tuple(columns))


def catch_code(params: PFDSParams, message: SyntheticData) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_dataset(params, message)
    return caught.value.code


def test_decode_dataset_inverts_encode_dataset() -> None:
    again = decode_dataset(PARAMS, make_data())
    assert same_rows(again, ROWS)
    assert again.columns["city"].dtype == np.int64 and again.columns["age"].dtype == np.float64
    assert [column.element for column in make_data().columns] == [
        "int64",
        "int16",
        "int16",
        "int64",
    ]
    assert (
        len(
            decode_dataset(
                PARAMS,
                encode_dataset(
                    PARAMS,
                    STUDY,
                    Dataset(
                        {name: ROWS.columns[name][:0] for name in ROWS.columns}, ROWS.labels[:0]
                    ),
                ),
            )
        )
        == 0
    )


@pytest.mark.parametrize("name", STUDIES)
def test_data_of_honest_holders_is_accepted(name: str) -> None:
    _, _, published = logged(name)
    params = STUDIES[name]
    for dataset in published.datasets.values():
        assert same_rows(decode_dataset(params, encode_dataset(params, STUDY, dataset)), dataset)


def make_ints(*values: int, kind: type = np.int16) -> Array:
    return Array.from_values(np.array(values, kind))


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (make_data(n_rows=2), "MSG-005"),
        (make_data(n_rows=compute_max_rows(PARAMS) + 1), "PFDS-102"),
        (make_data(columns=make_data().columns[:3]), "PFDS-102"),
        (make_data(columns=(*make_data().columns, make_ints(0, 0, 0))), "PFDS-102"),
        (replace_column(0, encode_floats(np.array([0.0, 50.0, 100.5]))), "PFDS-102"),
        (replace_column(0, encode_floats(np.array([-0.5, 50.0, 100.0]))), "PFDS-102"),
        (replace_column(0, encode_floats(np.array([np.nan, 50.0, 100.0]))), "MSG-005"),
        (replace_column(0, make_ints(0, 1, 2)), "MSG-005"),
        (replace_column(1, make_ints(0, 1, 3)), "PFDS-102"),
        (replace_column(1, make_ints(0, 1, -1)), "PFDS-102"),
        (replace_column(1, make_ints(0, 1, 2, kind=np.int64)), "MSG-005"),
        (replace_column(2, make_ints(0, 1, -2)), "PFDS-102"),
        (replace_column(2, make_ints(0, 1, 4)), "PFDS-102"),
        (make_data(labels=make_ints(0, 1, 2)), "PFDS-102"),
        (make_data(labels=make_ints(0, 1, -1)), "PFDS-102"),
        (make_data(labels=make_ints(0, 1)), "MSG-005"),
    ],
)
def test_impossible_data_is_rejected(message: SyntheticData, code: str) -> None:
    assert catch_code(PARAMS, message) == code


def test_encode_dataset_clips_numbers_to_their_range() -> None:
    schema = Schema(SCHEMA.features, label=Numeric("cost", -1e16, 1))
    params = make_params(schema)
    rows = Dataset(ROWS.columns, np.array([-1e16, 0.0, 2.0]))
    assert decode_dataset(params, encode_dataset(params, STUDY, rows)).labels.tolist() == [
        -1e16,
        0.0,
        1.0,
    ]
    assert (
        catch_code(
            params, encode_dataset(params, STUDY, rows).replace(labels=encode_floats(rows.labels))
        )
        == "PFDS-102"
    )


def test_max_rows_fill_a_message() -> None:
    numbers = [Numeric(f"n{i}", 0, 1) for i in range(14)]
    wide = replace(make_params(Schema(numbers, label=Numeric("cost", 0, 1))), size=10**6)
    assert (
        130_000 < compute_max_rows(wide) < MAX_ROWS == compute_max_rows(replace(PARAMS, size=10**6))
    )
    assert compute_max_rows(PARAMS) == PARAMS.size
    many = make_params(
        Schema(
            [Categorical(f"c{i}", ["a", "b"]) for i in range(3_000)],
            label=Categorical("ill", ["no", "yes"]),
        )
    )
    many = replace(many, size=10**6)
    for params in (wide, many):
        n = compute_max_rows(params)
        columns = {one.name: np.zeros(n) for one in params.schema.features}
        message = encode_dataset(params, STUDY, Dataset(columns, np.zeros(n)))
        size = len(encode(ForwardedPiece(study=STUDY, holder="x" * 200, shared=message)))
        assert ForwardedPiece.max_bytes - 200_000 < size <= ForwardedPiece.max_bytes


def test_thin_rows_keeps_a_uniform_ordered_sample() -> None:
    rows = UnlabelledRows(np.arange(400.0).reshape(200, 2), np.arange(200))
    assert thin_rows(rows, 200, SeededEntropy(1)) is rows
    hits = np.zeros(200)
    for seed in range(200):
        kept = thin_rows(rows, 50, SeededEntropy(seed))
        assert (
            len(kept) == 50
            and (np.diff(kept.leaves) > 0).all()
            and np.array_equal(kept.values, rows.values[kept.leaves])
        )
        hits[kept.leaves] += 1
    assert hits.sum() == 10_000 and 20 <= hits.min() <= hits.max() <= 85, (
        "each row is kept in about a quarter of 200 draws"
    )


def test_synthesise_thins_data_to_the_size_of_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(synthesis, "MAX_ROWS", 30)
    params = make_params(max_depth=1, projection=False)
    tree = PrivateTree.from_counts(params, [], np.array([[20, 100]], np.int32))
    made = synthesise(params, tree, [], [tree], SeededEntropy(1))
    assert len(made) == 30 and set(made.labels.tolist()) == {1}
    assert len(decode_dataset(params, encode_dataset(params, STUDY, made))) == 30


@pytest.mark.parametrize(("labelling", "label"), [("own", 1), ("shared", 0)])
def test_labelling_selects_the_trees_that_label(labelling: str, label: int) -> None:
    params = make_params(max_depth=1, projection=False, labelling=labelling)
    own = PrivateTree.from_counts(params, [], np.array([[20, 100]], np.int32))
    other = PrivateTree.from_counts(params, [], np.array([[9, 1]], np.int32))
    assert set(
        synthesise(params, own, [], [own, other, other], SeededEntropy(1)).labels.tolist()
    ) == {label}
