"""Free counts: what may be asked, what is counted, what it costs, how it reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from shoal.domain import Categorical, Numeric, Schema
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Record
from shoal.messages.codec import dump, load
from shoal.protocols.sdq import queries as module
from shoal.protocols.sdq.params import Params, Table
from shoal.protocols.sdq.queries import (
    Condition,
    Count,
    Counted,
    Free,
    FreeQuery,
    Histogram,
    Marginals,
    Query,
    free_price,
    query_round,
    read,
)

SCHEMA = Schema(
    [Numeric("age", 0, 90, bins=[30, 60]), Categorical("sex", ["f", "m"], missing=False), Numeric("weight", 0, 8)],
    label=Categorical("ill", ["no", "yes"]),
)
PARAMS = Params(SCHEMA, 1.0, 1000, n_databases=10, minimum=10, max_colluders=5, max_rows=3, unit="person")
FREE = Free(("age", "sex", "ill"), n_queries=2, epsilon_release=0.5)
TABLE = Table(np.array([[0, 1, 2], [0, 1, 3], [2, 0, 8], [3, 1, 0], [3, 1, 5]]), np.array([0, 1, 1, 0, 0]))


def counts(query: Query, free: Free = FREE) -> list[int]:
    [part] = query_round(PARAMS, free, query, 0).parts
    answer = part.count(TABLE)
    assert answer.shape == (part.size,)
    return answer.tolist()  # type: ignore[no-any-return]


def test_rows_are_counted_by_the_names_of_their_cells() -> None:
    assert counts(Count()) == [5]
    assert counts(Count.of(SCHEMA, {"sex": "m"})) == [4]
    assert counts(Count.of(SCHEMA, {"age": ["<= 30", "missing"], "sex": "m", "ill": ["no"]})) == [3]
    assert counts(Count.of(SCHEMA, {"age": "30 to 60"})) == [0]
    assert Count.of(SCHEMA, {"age": ["> 60", "<= 30", "> 60"]}).where == (Condition(feature="age", cells=(0, 2)),)


def test_tables_are_joint_or_each_by_itself() -> None:
    assert np.reshape(counts(Histogram(features=("age", "sex"))), (4, 2)).tolist() == [[0, 2], [0, 0], [1, 0], [0, 2]]
    assert np.reshape(counts(Histogram(features=("ill", "sex"))), (2, 2)).tolist() == [[0, 3], [1, 1]]
    assert counts(Marginals(features=("ill", "age"))) == [3, 2, 2, 0, 1, 2]


def test_an_equal_width_is_a_cell_too() -> None:
    everything = Free(SCHEMA.names, 1, 0.5)
    assert counts(Histogram(features=("weight",)), everything) == [1, 0, 1, 1, 0, 1, 0, 0, 1]


def test_a_query_is_a_round_of_its_own_at_the_same_price() -> None:
    for query, n_tables in ((Count(), 1), (Histogram(features=("age", "ill")), 1), (Marginals(features=("age", "ill", "sex")), 3)):
        first, second = (query_round(PARAMS, FREE, query, number) for number in range(2))
        assert (first.question, second.question) == ("query/0", "query/1")
        assert [(part.epsilon, part.n_tables) for part in first.parts] == [(0.5, n_tables)]
        assert not first.is_choice
    price = free_price(PARAMS, FREE)
    assert (price.epsilon, price.reads, price.scope) == (0.5, ("age", "ill", "sex"), PARAMS.scope)
    assert price.parameters["sensitivity"] == 3


REFUSED: dict[str, tuple[Query, int]] = {
    "one too many": (Count(), 2),
    "one before the first": (Count(), -1),
    "a feature that is not listed": (Histogram(features=("weight",)), 0),
    "a feature that is not there": (Marginals(features=("height",)), 0),
    "a condition on what is not listed": (Count(where=(Condition(feature="weight", cells=(0,)),)), 0),
    "a feature twice": (Histogram(features=("sex", "sex")), 0),
    "a condition twice": (Count(where=(Condition(feature="sex", cells=(0,)), Condition(feature="sex", cells=(1,)))), 0),
    "no features": (Histogram(features=()), 0),
    "no marginals": (Marginals(features=()), 0),
    "no cells": (Count(where=(Condition(feature="sex", cells=()),)), 0),
    "a cell beyond the last": (Count(where=(Condition(feature="age", cells=(1, 4)),)), 0),
    "a cell before the first": (Count(where=(Condition(feature="ill", cells=(-1,)),)), 0),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_the_study_does_not_allow_is_refused(fault: str) -> None:
    query, number = REFUSED[fault]
    with pytest.raises(RemoteProtocolError) as caught:
        query_round(PARAMS, FREE, query, number)
    assert caught.value.code == "SDQ-002"


def test_a_table_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CELLS", 8)
    assert len(counts(Histogram(features=("age", "sex")))) == 8
    with pytest.raises(RemoteProtocolError, match="too large"):
        counts(Histogram(features=("age", "sex", "ill")))
    assert len(counts(Marginals(features=("age", "sex", "ill")))) == 8


def test_names_that_nobody_gave_are_refused() -> None:
    with pytest.raises(SpecError, match="no such cell") as caught:
        Count.of(SCHEMA, {"age": "about forty"})
    assert caught.value.fix is not None and "30 to 60" in caught.value.fix and "about forty" not in str(caught.value)
    with pytest.raises(SpecError, match="neither a feature nor the label"):
        Count.of(SCHEMA, {"height": "tall"})
    with pytest.raises(SpecError) as caught:
        Count.of(SCHEMA, {"height": "tall"})
    assert str(caught.value.fix) == "Choose of: age, sex, weight, ill"
    long = Schema([Categorical("x", [str(i) for i in range(100)])], label=SCHEMA.label)
    with pytest.raises(SpecError, match="no such cell") as caught:
        Count.of(long, {"x": "y"})
    assert str(caught.value).endswith("11, ...")


@pytest.mark.parametrize("cells", [3, None, [], [3], [None], [["f"]], np.array([["f"]]), b"f"])
def test_cells_of_another_kind_are_refused(cells: Any) -> None:
    with pytest.raises(SpecError, match="sex has no such cell") as caught:
        Count.of(SCHEMA, {"sex": cells})
    assert caught.value.fix == "Choose of: f, m"


def test_cells_may_be_given_in_any_collection() -> None:
    assert all(Count.of(SCHEMA, {"sex": cells}).where[0].cells == (0, 1) for cells in ({"m", "f"}, np.array(["f", "m"]), iter("fm")))


@pytest.mark.parametrize("where", ["sex", ["sex"], None, {3: "f"}, {("sex",): "f"}])
def test_conditions_of_another_kind_are_refused(where: Any) -> None:
    with pytest.raises(SpecError) as caught:
        Count.of(SCHEMA, where)
    assert caught.value.code == "SDQ-002" and caught.value.fix


class Asked(Record):
    query: FreeQuery | None = None


@pytest.mark.parametrize("query", [Count(), Count.of(SCHEMA, {"age": "> 60"}), Histogram(features=("a", "b")), Marginals(features=("a",))])
def test_a_query_travels(query: Query) -> None:
    assert load(dump(Asked(query=query)), Asked) == Asked(query=query)


@pytest.mark.parametrize("what", [{}, {"kind": "sum"}, {"kind": "histogram", "where": ()}, {"kind": "count", "where": ("age",)}])
def test_what_is_no_query_does_not(what: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        TypeAdapter(FreeQuery).validate_python(what)


def test_sums_are_read_in_words() -> None:
    [one] = read(PARAMS, FREE, Count(), np.array([17]))
    assert (one.features, one.rows()) == ((), [((), 17)])
    assert str(one).splitlines()[1:] == ["   17"]
    [joint] = read(PARAMS, FREE, Histogram(features=("ill", "sex")), np.array([5, -1, 12, 3]))
    assert joint.to_dict()["counts"][2] == {"cells": ["yes", "f"], "count": 12}
    assert (
        str(joint) == f"ill  sex  count (noise {joint.deviation:.2g})\nno   f        5\nno   m       -1\nyes  f       12\nyes  m        3"
    )
    ages, sexes = read(PARAMS, FREE, Marginals(features=("age", "sex")), np.array([5, -1, 12, 3, 8, 9]))
    assert ages.rows() == [(("<= 30",), 5), (("30 to 60",), -1), (("> 60",), 12), (("missing",), 3)]
    assert sexes.counts.tolist() == [8, 9]


def test_the_noise_is_that_of_the_sum() -> None:
    """Shares for 5 honest databases from 10: twice the variance; a person has 3 rows; two marginals."""
    for query, sensitivity in ((Count(), 3), (Marginals(features=("age", "sex")), 6)):
        size = query_round(PARAMS, FREE, query, 0).size
        expected = 2 * 0.5 / np.sinh(0.5 / sensitivity / 2) ** 2
        assert read(PARAMS, FREE, query, np.zeros(size, np.int64))[0].deviation ** 2 == pytest.approx(expected)


def test_names_cannot_steer_a_terminal() -> None:
    table = Counted(("a",), (("x\x1b[2Jy", "z"),), np.array([1, 2]), 1.0)
    assert "\x1b" not in str(table)
