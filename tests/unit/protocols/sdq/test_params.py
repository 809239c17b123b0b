"""Public parameters of an SDQ study: cells, noise shares, committees, adversaries."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.errors import MechanismError, SpecError
from shoal.protocols.sdq.params import (
    MAX_COMMITTEE,
    CellTable,
    SDQParams,
    add_bins,
    compute_committee_size,
    compute_default_choice,
    encode_cells,
)

SCHEMA = Schema(
    [Numeric("age", 0, 80), Categorical("kind", ["a", "b"], missing=False)],
    label=Categorical("ill", ["no", "yes"]),
)
PARAMS = SDQParams(SCHEMA, 1.0, 1000, n_databases=10, minimum=9, max_colluders=3)


def test_params_reject_labels_that_are_not_categories() -> None:
    for label in (None, Numeric("height", 0, 3)):
        with pytest.raises(SpecError, match="predicts a category"):
            SDQParams(replace(SCHEMA, label=label), 1.0, 1000)


def test_epsilon_is_positive_or_infinite() -> None:
    assert SDQParams(SCHEMA, math.inf, 1000).is_noiseless and not PARAMS.is_noiseless
    with pytest.raises(MechanismError):
        SDQParams(SCHEMA, 0.0, 1000)


def test_add_bins_cuts_numbers_into_equal_widths() -> None:
    assert add_bins(SCHEMA.features[0]).bins == (10, 20, 30, 40, 50, 60, 70)
    assert add_bins(Numeric("age", 0, 80, bins=[5])).bins == (5,)
    assert len(add_bins(Numeric("large", 1e16, 1e16 + 2)).bins or ()) == 1
    assert (PARAMS.arities, PARAMS.n_classes, PARAMS.columns) == ((9, 2), 2, ("age", "kind", "ill"))


def test_n_honest_is_minimum_without_colluders() -> None:
    assert PARAMS.n_honest == 6
    assert replace(PARAMS, trust="local", variant="paper", max_colluders=0).n_honest == 1


def test_scope_names_the_adversary_of_each_variant() -> None:
    against = {
        "the miner and up to 3 colluding databases": PARAMS,
        "the miner and everyone who holds none of the databases": replace(PARAMS, max_colluders=0),
        "the miner, if no database tells it anything": replace(
            PARAMS, variant="paper", noise="two-selected"
        ),
        "the miner and all other databases": replace(
            PARAMS, variant="paper", trust="local", max_colluders=0
        ),
    }
    assert {adversary: params.scope.adversary for adversary, params in against.items()} == {
        one: one for one in against
    }


def test_colluders_are_a_minority_of_the_committee() -> None:
    assert [compute_committee_size(c) for c in range(4)] == [3, 3, 5, 7]
    assert all(2 * c < compute_committee_size(c) for c in range(100))
    assert [
        compute_default_choice(10, 4),
        compute_default_choice(10, 5),
        compute_default_choice(100, 10),
        compute_default_choice(100, 11),
    ] == [
        "mpc",
        "sums",
        "mpc",
        "sums",
    ]
    assert compute_committee_size(10) == MAX_COMMITTEE


def test_cell_table_encodes_rows_as_cells() -> None:
    columns = SCHEMA.encode(
        {"age": np.array([5.0, 80.0, np.nan]), "kind": np.array(["b", "a", "a"], object)}
    )
    table = CellTable.from_columns(PARAMS, columns, np.array([0, 1, 1]))
    assert (
        table.cells.tolist() == [[0, 1], [7, 0], [8, 0]]
        and len(table) == 3
        and table.owners is None
    )
    # An undeclared category counts as the last one.
    strange = PARAMS.schema.encode(
        {"age": np.array([5.0]), "kind": np.array(["c"], object)}, outside="clip"
    )
    assert encode_cells(PARAMS.schema, strange).tolist() == [[0, 1]]
