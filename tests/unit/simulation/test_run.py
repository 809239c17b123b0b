"""Splits of a table: test rows, dropout, and tables that cannot be split."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shoal.cli.hello.population import SCHEMA, make_people
from shoal.data.schema import Columns, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError
from shoal.protocols.anonml.params import AnonMLPlusParams
from shoal.simulation.run import RunTask, draw_participants, split_rows


def table(n: int, label: str | None = None) -> Columns:
    people = make_people(n, SeededEntropy(4))
    columns = {
        feature.name: np.array([feature.values[i] for i in people.columns[feature.name]], object)
        if hasattr(feature, "values")
        else people.columns[feature.name]
        for feature in SCHEMA.features
    }
    labels = ["yes" if one else "no" for one in people.labels] if label is None else [label] * n
    return {**columns, "sleeps_badly": np.array(labels, object), "row": np.arange(n)}


def test_split_sets_a_quarter_aside_and_shares_no_row() -> None:
    split = split_rows(SCHEMA, table(401), seed=1)
    assert (len(split.test_labels), len(split.train_labels)) == (100, 301)
    everyone = SCHEMA.encode(table(401))["age"]
    both = np.concatenate([split.train_columns["age"], split.test_columns["age"]])
    assert sorted(both) == sorted(everyone)


def test_split_depends_on_the_seed() -> None:
    first, again, other = (split_rows(SCHEMA, table(400), seed) for seed in (1, 1, 2))
    assert np.array_equal(first.test_columns["age"], again.test_columns["age"])
    assert not np.array_equal(first.test_columns["age"], other.test_columns["age"])


@pytest.mark.parametrize(
    ("n", "label", "what"),
    [
        (0, None, "no rows"),
        (50, "no", "All 50 rows"),
        (1, "no", "All 1 row of"),
        (5, None, "5 rows, 1 is set aside"),
        (
            2,
            None,
            "0 are set aside for testing, and one of the two parts has fewer than two different "
            "labels",
        ),
    ],
)
def test_split_rejects_tables_that_cannot_be_split(n: int, label: str | None, what: str) -> None:
    with pytest.raises(ShoalError) as error:
        split_rows(SCHEMA, table(n, label), seed=0)
    assert error.value.code == "SIM-003" and what in error.value.what


NUMBERS = Schema([Numeric("x", 0, 1000)], label=Numeric("y", 0, 10))


def test_split_of_a_numeric_label_needs_no_classes() -> None:
    columns = {"x": np.arange(40.0), "y": np.linspace(0, 10, 40)}
    split = split_rows(NUMBERS, columns, seed=1)
    assert sorted([*split.train_labels, *split.test_labels]) == sorted(columns["y"])
    with pytest.raises(ShoalError, match="SIM-003"):
        split_rows(NUMBERS, {**columns, "y": np.full(40, 5.0)}, seed=1)


def test_split_keeps_training_rows_in_the_order_of_the_table() -> None:
    split = split_rows(NUMBERS, {"x": np.arange(400.0), "y": np.arange(400) % 10}, seed=1)
    assert (
        np.all(np.diff(split.train_columns["x"]) > 0)
        and split.holders is None
        and split.people is None
    )


def test_split_keeps_the_rows_of_a_device_together() -> None:
    holders = np.array([f"d{i % 40}" for i in range(400)], object)
    columns = {"x": np.arange(400.0), "y": np.arange(400) % 7, "device": holders}
    split = split_rows(NUMBERS, columns, seed=1, holder="device", person="device")
    asked, unseen = (
        set(holders[part["x"].astype(int)]) for part in (split.train_columns, split.test_columns)
    )
    assert len(unseen) == 10 and len(asked) == 30 and not asked & unseen
    assert split.holders is not None
    pairs = set(
        zip(
            split.holders.tolist(),
            holders[split.train_columns["x"].astype(int)].tolist(),
            strict=True,
        )
    )
    assert (
        len(pairs) == 30
        and split.n_holders == 40
        and split.people is not None
        and (split.people == split.holders).all()
    )


def test_split_divides_databases_but_not_people() -> None:
    patients, sites = np.arange(400) // 5, np.array([f"h{i % 4}" for i in range(400)], object)
    split = split_rows(
        NUMBERS,
        {"x": np.arange(400.0), "y": np.arange(400) % 7, "who": patients, "site": sites},
        1,
        "site",
        "who",
    )
    asked, unseen = (part["x"].astype(int) for part in (split.train_columns, split.test_columns))
    assert (
        not set(patients[asked]) & set(patients[unseen])
        and len(unseen) == 100
        and set(sites[unseen]) == {"h0", "h1", "h2", "h3"}
    )
    assert split.holders is not None and split.people is not None and split.n_holders == 4
    assert len(set(zip(split.holders.tolist(), sites[asked].tolist(), strict=True))) == 4
    assert len(set(zip(split.people.tolist(), patients[asked].tolist(), strict=True))) == 60


def test_split_counts_a_database_without_training_rows() -> None:
    sites = np.array(["z" if i == 399 else f"h{i % 3}" for i in range(400)], object)
    columns = {"x": np.arange(400.0), "y": np.arange(400) % 7, "site": sites}
    assert {split_rows(NUMBERS, columns, seed, "site").n_holders for seed in range(4)} == {4}


@pytest.mark.parametrize("key", ["holder", "person"])
@pytest.mark.parametrize(("cell", "code"), [(None, "DATA-005"), ("d", "DATA-001")])
def test_split_rejects_an_unknown_holder(cell: str | None, code: str, key: str) -> None:
    columns = {
        "x": np.arange(9.0),
        "y": np.arange(9) % 2,
        "device": np.array([*"abcdefgh", cell], object),
    }
    with pytest.raises(ShoalError) as error:
        split_rows(NUMBERS, columns, seed=1, **{key: "device" if cell is None else "phone"})
    assert error.value.code == code


def test_draw_participants_keeps_a_share_by_the_task() -> None:
    task = RunTask(AnonMLPlusParams(SCHEMA, 1.0, 10), seed=1, dropout=0.25)
    stays = draw_participants(4000, task)
    # Eight standard deviations of a binomial count.
    assert abs(stays.sum() - 3000) < 8 * math.sqrt(4000 * 0.25 * 0.75)
    assert np.array_equal(stays, draw_participants(4000, task))
    assert draw_participants(7, RunTask(task.params, seed=1)).all()
    with pytest.raises(ShoalError) as error:
        draw_participants(3, RunTask(task.params, seed=1, dropout=1 - 1e-9))
    assert error.value.code == "SIM-003" and "no participant" in error.value.what
