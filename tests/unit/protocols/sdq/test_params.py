"""The public figures of an SDQ study: cells, shares of noise, committees, and against whom a figure holds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.domain import Categorical, Numeric, Schema
from shoal.errors import MechanismError, SpecError
from shoal.protocols.sdq.params import MAX_COMMITTEE, Params, Table, cells_of, committee_size, default_choice, with_bins

SCHEMA = Schema([Numeric("age", 0, 80), Categorical("kind", ["a", "b"], missing=False)], label=Categorical("ill", ["no", "yes"]))
PARAMS = Params(SCHEMA, 1.0, 1000, n_databases=10, minimum=9, max_colluders=3)


def test_a_label_is_a_category() -> None:
    for label in (None, Numeric("height", 0, 3)):
        with pytest.raises(SpecError, match="predicts a category"):
            Params(replace(SCHEMA, label=label), 1.0, 1000)


def test_an_epsilon_is_one_or_infinite() -> None:
    assert Params(SCHEMA, math.inf, 1000).is_bare and not PARAMS.is_bare
    with pytest.raises(MechanismError):
        Params(SCHEMA, 0.0, 1000)


def test_numbers_get_equal_widths_that_differ() -> None:
    assert with_bins(SCHEMA.features[0]).bins == (10, 20, 30, 40, 50, 60, 70)
    assert with_bins(Numeric("age", 0, 80, bins=[5])).bins == (5,)
    assert len(with_bins(Numeric("large", 1e16, 1e16 + 2)).bins or ()) == 1
    assert (PARAMS.arities, PARAMS.n_classes, PARAMS.columns) == ((9, 2), 2, ("age", "kind", "ill"))


def test_shares_are_made_for_those_that_are_sure_to_be_honest() -> None:
    assert PARAMS.n_honest == 6
    assert replace(PARAMS, trust="local", variant="paper", max_colluders=0).n_honest == 1


def test_a_figure_says_against_whom_it_holds() -> None:
    against = {
        "the miner and up to 3 colluding databases": PARAMS,
        "the miner and everyone who holds none of the databases": replace(PARAMS, max_colluders=0),
        "the miner, if no database tells it anything": replace(PARAMS, variant="paper", noise="two-selected"),
        "the miner and all other databases": replace(PARAMS, variant="paper", trust="local", max_colluders=0),
    }
    assert {adversary: params.scope.adversary for adversary, params in against.items()} == {one: one for one in against}


def test_colluders_are_a_minority_of_a_committee() -> None:
    assert [committee_size(c) for c in range(4)] == [3, 3, 5, 7]
    assert all(2 * c < committee_size(c) for c in range(100))
    assert [default_choice(10, 4), default_choice(10, 5), default_choice(100, 10), default_choice(100, 11)] == [
        "mpc",
        "sums",
        "mpc",
        "sums",
    ]
    assert committee_size(10) == MAX_COMMITTEE


def test_rows_become_cells() -> None:
    columns = SCHEMA.encode({"age": np.array([5.0, 80.0, np.nan]), "kind": np.array(["b", "a", "a"], object)})
    table = Table.of(PARAMS, columns, np.array([0, 1, 1]))
    assert table.cells.tolist() == [[0, 1], [7, 0], [8, 0]] and len(table) == 3 and table.whose is None
    # A category that nobody declared is taken for the last one.
    strange = PARAMS.schema.encode({"age": np.array([5.0]), "kind": np.array(["c"], object)}, outside="clip")
    assert cells_of(PARAMS.schema, strange).tolist() == [[0, 1]]
