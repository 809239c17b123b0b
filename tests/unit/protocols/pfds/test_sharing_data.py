"""Labelled data as it travels: as many rows as fit, every value one of the schema, and what is not is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pfds_sharing import STUDIES, logged, same_rows
from pfds_trees import SCHEMA, params_of
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array
from shoal.messages.codec import encode
from shoal.protocols.pfds import sharing_data
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.messages import Data, PassedOn, floats_in
from shoal.protocols.pfds.params import Params
from shoal.protocols.pfds.sharing_data import MAX_ROWS, data_of, dataset_of, most_rows, synthesise, thinned
from shoal.protocols.pfds.synthesis import Unlabelled
from shoal.protocols.pfds.tree import PrivateTree

STUDY = bytes(32)
PARAMS = params_of()
ROWS = Dataset(
    {
        "age": np.array([0.0, 99.5, 100.0]),
        "ward": np.array([0, 1, 2]),
        "city": np.array([-1, 0, 3]),
        "weight": np.array([2.0, 3.0, 6.0]),
    },
    np.array([0, 1, 1]),
)


def data(**changes: Any) -> Data:
    return data_of(PARAMS, STUDY, ROWS).replace(**changes)


def with_column(place: int, column: Array) -> Data:
    columns = list(data().columns)
    columns[place] = column
    return data(columns=tuple(columns))


def refusal(params: Params, message: Data) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        dataset_of(params, message)
    return caught.value.code


def test_rows_come_back_as_a_schema_encodes_them() -> None:
    again = dataset_of(PARAMS, data())
    assert same_rows(again, ROWS)
    assert again.columns["city"].dtype == np.int64 and again.columns["age"].dtype == np.float64
    assert [column.element for column in data().columns] == ["int64", "int16", "int16", "int64"]
    assert (
        len(dataset_of(PARAMS, data_of(PARAMS, STUDY, Dataset({name: ROWS.columns[name][:0] for name in ROWS.columns}, ROWS.labels[:0]))))
        == 0
    )


@pytest.mark.parametrize("name", STUDIES)
def test_what_honest_holders_share_is_let_through(name: str) -> None:
    _, _, published = logged(name)
    params = STUDIES[name]
    for dataset in published.datasets.values():
        assert same_rows(dataset_of(params, data_of(params, STUDY, dataset)), dataset)


def ints(*values: int, kind: type = np.int16) -> Array:
    return Array.of(np.array(values, kind))


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (data(n_rows=2), "MSG-005"),
        (data(n_rows=most_rows(PARAMS) + 1), "PFDS-102"),
        (data(columns=data().columns[:3]), "PFDS-102"),
        (data(columns=(*data().columns, ints(0, 0, 0))), "PFDS-102"),
        (with_column(0, floats_in(np.array([0.0, 50.0, 100.5]))), "PFDS-102"),
        (with_column(0, floats_in(np.array([-0.5, 50.0, 100.0]))), "PFDS-102"),
        (with_column(0, floats_in(np.array([np.nan, 50.0, 100.0]))), "MSG-005"),
        (with_column(0, ints(0, 1, 2)), "MSG-005"),
        (with_column(1, ints(0, 1, 3)), "PFDS-102"),
        (with_column(1, ints(0, 1, -1)), "PFDS-102"),
        (with_column(1, ints(0, 1, 2, kind=np.int64)), "MSG-005"),
        (with_column(2, ints(0, 1, -2)), "PFDS-102"),
        (with_column(2, ints(0, 1, 4)), "PFDS-102"),
        (data(labels=ints(0, 1, 2)), "PFDS-102"),
        (data(labels=ints(0, 1, -1)), "PFDS-102"),
        (data(labels=ints(0, 1)), "MSG-005"),
    ],
)
def test_what_cannot_be_a_holders_data_is_refused(message: Data, code: str) -> None:
    assert refusal(PARAMS, message) == code


def test_a_number_is_kept_in_its_range_however_its_buckets_are_rounded() -> None:
    schema = Schema(SCHEMA.features, label=Numeric("cost", -1e16, 1))
    params = params_of(schema)
    rows = Dataset(ROWS.columns, np.array([-1e16, 0.0, 2.0]))
    assert dataset_of(params, data_of(params, STUDY, rows)).labels.tolist() == [-1e16, 0.0, 1.0]
    assert refusal(params, data_of(params, STUDY, rows).replace(labels=floats_in(rows.labels))) == "PFDS-102"


def test_as_many_rows_are_allowed_as_a_message_holds() -> None:
    numbers = [Numeric(f"n{i}", 0, 1) for i in range(14)]
    wide = replace(params_of(Schema(numbers, label=Numeric("cost", 0, 1))), size=10**6)
    assert 130_000 < most_rows(wide) < MAX_ROWS == most_rows(replace(PARAMS, size=10**6))
    assert most_rows(PARAMS) == PARAMS.size
    many = params_of(Schema([Categorical(f"c{i}", ["a", "b"]) for i in range(3_000)], label=Categorical("ill", ["no", "yes"])))
    many = replace(many, size=10**6)
    for params in (wide, many):
        n = most_rows(params)
        columns = {one.name: np.zeros(n) for one in params.schema.features}
        message = data_of(params, STUDY, Dataset(columns, np.zeros(n)))
        size = len(encode(PassedOn(study=STUDY, holder="x" * 200, shared=message)))
        assert PassedOn.max_bytes - 200_000 < size <= PassedOn.max_bytes


def test_more_rows_are_thinned_to_any_of_them_alike() -> None:
    rows = Unlabelled(np.arange(400.0).reshape(200, 2), np.arange(200))
    assert thinned(rows, 200, SeededEntropy(1)) is rows
    hits = np.zeros(200)
    for seed in range(200):
        kept = thinned(rows, 50, SeededEntropy(seed))
        assert len(kept) == 50 and (np.diff(kept.leaves) > 0).all() and np.array_equal(kept.values, rows.values[kept.leaves])
        hits[kept.leaves] += 1
    assert hits.sum() == 10_000 and 20 <= hits.min() <= hits.max() <= 85, "each is kept in a quarter of 200 choices"


def test_data_of_more_rows_than_a_message_holds_is_made_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing_data, "MAX_ROWS", 30)
    params = params_of(max_depth=1, projection=False)
    tree = PrivateTree.of(params, [], np.array([[20, 100]], np.int32))
    made = synthesise(params, tree, [], [tree], SeededEntropy(1))
    assert len(made) == 30 and set(made.labels.tolist()) == {1}
    assert len(dataset_of(params, data_of(params, STUDY, made))) == 30


@pytest.mark.parametrize(("labelling", "label"), [("own", 1), ("shared", 0)])
def test_the_trees_that_are_to_label_do(labelling: str, label: int) -> None:
    params = params_of(max_depth=1, projection=False, labelling=labelling)
    own = PrivateTree.of(params, [], np.array([[20, 100]], np.int32))
    other = PrivateTree.of(params, [], np.array([[9, 1]], np.int32))
    assert set(synthesise(params, own, [], [own, other, other], SeededEntropy(1)).labels.tolist()) == {label}
