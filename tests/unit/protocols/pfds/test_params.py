"""Public parameters of a PFDS study, and encoded rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.errors import LocalProtocolError, MechanismError, SpecError
from shoal.protocols.pfds.params import GRID, PFDSParams, PFDSRows, encode_cells, encode_sides

SCHEMA = Schema(
    [
        Numeric("age", 0, 80),
        Categorical("kind", ["a", "b", "c"], groups={"x": ["a", "c"], "y": ["b"]}, missing=False),
    ],
    label=Categorical("ill", ["no", "yes"]),
)
PARAMS = PFDSParams(SCHEMA, 1.0, 1000, trust="secure-sum", n_holders=10, minimum=9, max_colluders=3)
COLUMNS = {"age": np.array([0.0, 80.0, np.nan]), "kind": np.array([1, 2, -1])}


def test_params_reject_schema_without_label() -> None:
    with pytest.raises(SpecError, match="no label"):
        PFDSParams(replace(SCHEMA, label=None), 1.0, 1000)


def test_params_reject_invalid_epsilon_and_delta() -> None:
    assert PFDSParams(SCHEMA, math.inf, 1000).is_noiseless and not PARAMS.is_noiseless
    for epsilon, delta in ((0.0, 0.0), (1.0, 1.0)):
        with pytest.raises(MechanismError):
            PFDSParams(SCHEMA, epsilon, 1000, delta=delta)
    assert PFDSParams(SCHEMA, 1.0, 1000, delta=1e-6).delta == 1e-6


@pytest.mark.parametrize(
    ("label", "is_number", "n_sides", "n_models", "n_outcomes"),
    [
        (Categorical("y", ["a", "b"]), False, 2, 1, 2),
        (Categorical("y", ["a", "b", "c"]), False, 3, 3, 3),
        (Numeric("y", 0, 8), True, 2, 1, 10),
    ],
)
def test_label_determines_sides_models_and_outcomes(
    label: object, is_number: bool, n_sides: int, n_models: int, n_outcomes: int
) -> None:
    params = replace(PARAMS, schema=replace(SCHEMA, label=label))
    assert (params.is_number, params.n_sides, params.n_models, params.n_outcomes) == (
        is_number,
        n_sides,
        n_models,
        n_outcomes,
    )


def test_cells_are_numbered_over_all_features() -> None:
    assert (PARAMS.arities, PARAMS.n_cells, PARAMS.starts.tolist(), PARAMS.columns) == (
        (9, 2),
        11,
        [0, 9, 11],
        ("age", "kind", "ill"),
    )
    # An undeclared category counts as the last cell if values must not be missing.
    assert encode_cells(PARAMS, COLUMNS).tolist() == [[0, 10], [7, 9], [8, 10]]


def test_sides_add_up_to_one_row() -> None:
    assert encode_sides(PARAMS, np.array([0, 1])).tolist() == [[256, 0], [0, 256]]
    number = replace(PARAMS, schema=replace(SCHEMA, label=Numeric("y", -4, 4)))
    sides = encode_sides(number, np.array([-4.0, -3.99, 0.0, 4.0, 9.0]))
    assert sides.tolist() == [[256, 0], [256, 0], [128, 128], [0, 256], [0, 256]]
    assert (
        sides.dtype == np.int64
        and (encode_sides(number, np.linspace(-9, 9, 99)).sum(axis=1) == GRID).all()
    )


def test_rows_reject_values_that_were_not_encoded() -> None:
    cells, sides = np.array([[0, 9]]), np.array([[GRID, 0]])
    assert len(PFDSRows(cells, sides)) == 1
    for bad in ((cells, 2 * sides), (cells, np.array([[GRID + 1, -1]])), (-cells, sides)):
        with pytest.raises(LocalProtocolError, match=r"PFDSRows\.from_columns"):
            PFDSRows(*bad)


def test_take_keeps_the_holders_of_rows() -> None:
    rows = PFDSRows.from_columns(PARAMS, COLUMNS, np.array([0, 1, 1]), np.array([4, 5, 6]))
    assert len(rows) == 3
    some = rows.take(np.array([2, 0]))
    assert (some.cells[:, 0].tolist(), some.sides[:, 1].tolist()) == ([8, 0], [256, 0])
    assert some.owners is not None and some.owners.tolist() == [6, 4]
    assert (
        PFDSRows.from_columns(PARAMS, COLUMNS, np.array([0, 1, 1])).take(np.array([0])).owners
        is None
    )


def test_n_honest_is_minimum_without_colluders() -> None:
    assert PARAMS.n_honest == 6
    assert replace(PARAMS, trust="local", max_colluders=0).n_honest == 1


def test_scope_names_the_adversary_of_each_trust() -> None:
    against = {
        "all who read the sums or the release, and up to 3 colluding holders": PARAMS,
        "all who read the sums or the release and hold none of the data": replace(
            PARAMS, max_colluders=0
        ),
        "all who read the release": replace(PARAMS, trust="local", max_colluders=0),
    }
    assert {adversary: params.scope.adversary for adversary, params in against.items()} == {
        one: one for one in against
    }
    assert str(replace(PARAMS, unit="person", max_rows=3).scope.unit) == "person"
