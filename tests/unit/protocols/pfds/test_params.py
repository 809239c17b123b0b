"""The public figures of a PFDS study, and rows in its coding."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.domain import Categorical, Numeric, Schema
from shoal.errors import LocalProtocolError, MechanismError, SpecError
from shoal.protocols.pfds.params import GRID, Params, Rows, cells_of, sides_of

SCHEMA = Schema(
    [Numeric("age", 0, 80), Categorical("kind", ["a", "b", "c"], groups={"x": ["a", "c"], "y": ["b"]}, missing=False)],
    label=Categorical("ill", ["no", "yes"]),
)
PARAMS = Params(SCHEMA, 1.0, 1000, trust="secure-sum", n_holders=10, minimum=9, max_colluders=3)
COLUMNS = {"age": np.array([0.0, 80.0, np.nan]), "kind": np.array([1, 2, -1])}


def test_a_label_is_needed() -> None:
    with pytest.raises(SpecError, match="no label"):
        Params(replace(SCHEMA, label=None), 1.0, 1000)


def test_a_budget_is_one_that_noise_can_be_made_for() -> None:
    assert Params(SCHEMA, math.inf, 1000).is_bare and not PARAMS.is_bare
    for epsilon, delta in ((0.0, 0.0), (1.0, 1.0)):
        with pytest.raises(MechanismError):
            Params(SCHEMA, epsilon, 1000, delta=delta)
    assert Params(SCHEMA, 1.0, 1000, delta=1e-6).delta == 1e-6


@pytest.mark.parametrize(
    ("label", "is_number", "n_sides", "n_models", "n_outcomes"),
    [
        (Categorical("y", ["a", "b"]), False, 2, 1, 2),
        (Categorical("y", ["a", "b", "c"]), False, 3, 3, 3),
        (Numeric("y", 0, 8), True, 2, 1, 10),
    ],
)
def test_a_label_has_sides_and_models(label: object, is_number: bool, n_sides: int, n_models: int, n_outcomes: int) -> None:
    params = replace(PARAMS, schema=replace(SCHEMA, label=label))
    assert (params.is_number, params.n_sides, params.n_models, params.n_outcomes) == (is_number, n_sides, n_models, n_outcomes)


def test_cells_of_all_features_are_counted_through() -> None:
    assert (PARAMS.arities, PARAMS.n_cells, PARAMS.starts.tolist(), PARAMS.columns) == ((9, 2), 11, [0, 9, 11], ("age", "kind", "ill"))
    # A category that nobody declared, where none may be missing, is taken for the last cell.
    assert cells_of(PARAMS, COLUMNS).tolist() == [[0, 10], [7, 9], [8, 10]]


def test_sides_add_up_to_a_row() -> None:
    assert sides_of(PARAMS, np.array([0, 1])).tolist() == [[256, 0], [0, 256]]
    number = replace(PARAMS, schema=replace(SCHEMA, label=Numeric("y", -4, 4)))
    sides = sides_of(number, np.array([-4.0, -3.99, 0.0, 4.0, 9.0]))
    assert sides.tolist() == [[256, 0], [256, 0], [128, 128], [0, 256], [0, 256]]
    assert sides.dtype == np.int64 and (sides_of(number, np.linspace(-9, 9, 99)).sum(axis=1) == GRID).all()


def test_rows_that_were_not_encoded_are_refused() -> None:
    cells, sides = np.array([[0, 9]]), np.array([[GRID, 0]])
    assert len(Rows(cells, sides)) == 1
    for bad in ((cells, 2 * sides), (cells, np.array([[GRID + 1, -1]])), (-cells, sides)):
        with pytest.raises(LocalProtocolError, match=r"Rows\.of"):
            Rows(*bad)


def test_rows_are_taken_with_their_holders() -> None:
    rows = Rows.of(PARAMS, COLUMNS, np.array([0, 1, 1]), np.array([4, 5, 6]))
    assert len(rows) == 3
    some = rows.take(np.array([2, 0]))
    assert (some.cells[:, 0].tolist(), some.sides[:, 1].tolist()) == ([8, 0], [256, 0])
    assert some.whose is not None and some.whose.tolist() == [6, 4]
    assert Rows.of(PARAMS, COLUMNS, np.array([0, 1, 1])).take(np.array([0])).whose is None


def test_shares_are_made_for_those_that_are_sure_to_be_honest() -> None:
    assert PARAMS.n_honest == 6
    assert replace(PARAMS, trust="local", max_colluders=0).n_honest == 1


def test_a_figure_says_against_whom_it_holds() -> None:
    against = {
        "all who read the sums or the release, and up to 3 colluding holders": PARAMS,
        "all who read the sums or the release and hold none of the data": replace(PARAMS, max_colluders=0),
        "all who read the release": replace(PARAMS, trust="local", max_colluders=0),
    }
    assert {adversary: params.scope.adversary for adversary, params in against.items()} == {one: one for one in against}
    assert str(replace(PARAMS, unit="person", max_rows=3).scope.unit) == "person"
