"""Free counts: allowed queries, counts, prices, and tables of results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Record
from shoal.messages.codec import dump, load
from shoal.protocols.sdq import queries as module
from shoal.protocols.sdq.params import CellTable, SDQParams
from shoal.protocols.sdq.queries import (
    CountQuery,
    FreeQuery,
    HistogramQuery,
    MarginalsQuery,
    NoisyTable,
    QueryCondition,
    QueryRules,
    SDQQuery,
    make_query_round,
    price_query,
    read_query_tables,
)

SCHEMA = Schema(
    [
        Numeric("age", 0, 90, bins=[30, 60]),
        Categorical("sex", ["f", "m"], missing=False),
        Numeric("weight", 0, 8),
    ],
    label=Categorical("ill", ["no", "yes"]),
)
PARAMS = SDQParams(
    SCHEMA, 1.0, 1000, n_databases=10, minimum=10, max_colluders=5, max_rows=3, unit="person"
)
FREE = QueryRules(("age", "sex", "ill"), n_queries=2, epsilon_release=0.5)
TABLE = CellTable(
    np.array([[0, 1, 2], [0, 1, 3], [2, 0, 8], [3, 1, 0], [3, 1, 5]]), np.array([0, 1, 1, 0, 0])
)


def count_query(query: SDQQuery, free: QueryRules = FREE) -> list[int]:
    [part] = make_query_round(PARAMS, free, query, 0).parts
    answer = part.count(TABLE)
    assert answer.shape == (part.size,)
    return answer.tolist()  # type: ignore[no-any-return]


def test_count_query_selects_rows_by_names_of_cells() -> None:
    assert count_query(CountQuery()) == [5]
    assert count_query(CountQuery.from_names(SCHEMA, {"sex": "m"})) == [4]
    assert count_query(
        CountQuery.from_names(SCHEMA, {"age": ["<= 30", "missing"], "sex": "m", "ill": ["no"]})
    ) == [3]
    assert count_query(CountQuery.from_names(SCHEMA, {"age": "30 to 60"})) == [0]
    assert CountQuery.from_names(SCHEMA, {"age": ["> 60", "<= 30", "> 60"]}).where == (
        QueryCondition(feature="age", cells=(0, 2)),
    )


def test_histogram_is_joint_and_marginals_are_separate() -> None:
    assert np.reshape(count_query(HistogramQuery(features=("age", "sex"))), (4, 2)).tolist() == [
        [0, 2],
        [0, 0],
        [1, 0],
        [0, 2],
    ]
    assert np.reshape(count_query(HistogramQuery(features=("ill", "sex"))), (2, 2)).tolist() == [
        [0, 3],
        [1, 1],
    ]
    assert count_query(MarginalsQuery(features=("ill", "age"))) == [3, 2, 2, 0, 1, 2]


def test_histogram_of_a_number_without_bins_uses_equal_widths() -> None:
    everything = QueryRules(SCHEMA.names, 1, 0.5)
    assert count_query(HistogramQuery(features=("weight",)), everything) == [
        1,
        0,
        1,
        1,
        0,
        1,
        0,
        0,
        1,
    ]


def test_query_is_a_separate_round_at_a_fixed_price() -> None:
    for query, n_tables in (
        (CountQuery(), 1),
        (HistogramQuery(features=("age", "ill")), 1),
        (MarginalsQuery(features=("age", "ill", "sex")), 3),
    ):
        first, second = (make_query_round(PARAMS, FREE, query, number) for number in range(2))
        assert (first.question, second.question) == ("query/0", "query/1")
        assert [(part.epsilon, part.n_tables) for part in first.parts] == [(0.5, n_tables)]
        assert not first.is_choice
    price = price_query(PARAMS, FREE)
    assert (price.epsilon, price.reads, price.scope) == (0.5, ("age", "ill", "sex"), PARAMS.scope)
    assert price.parameters["sensitivity"] == 3


REFUSED: dict[str, tuple[SDQQuery, int]] = {
    "one too many": (CountQuery(), 2),
    "one before the first": (CountQuery(), -1),
    "a feature that is not listed": (HistogramQuery(features=("weight",)), 0),
    "a feature that is not there": (MarginalsQuery(features=("height",)), 0),
    "a condition on what is not listed": (
        CountQuery(where=(QueryCondition(feature="weight", cells=(0,)),)),
        0,
    ),
    "a feature twice": (HistogramQuery(features=("sex", "sex")), 0),
    "a condition twice": (
        CountQuery(
            where=(
                QueryCondition(feature="sex", cells=(0,)),
                QueryCondition(feature="sex", cells=(1,)),
            )
        ),
        0,
    ),
    "no features": (HistogramQuery(features=()), 0),
    "no marginals": (MarginalsQuery(features=()), 0),
    "no cells": (CountQuery(where=(QueryCondition(feature="sex", cells=()),)), 0),
    "a cell beyond the last": (CountQuery(where=(QueryCondition(feature="age", cells=(1, 4)),)), 0),
    "a cell before the first": (CountQuery(where=(QueryCondition(feature="ill", cells=(-1,)),)), 0),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_disallowed_query_is_rejected(fault: str) -> None:
    query, number = REFUSED[fault]
    with pytest.raises(RemoteProtocolError) as caught:
        make_query_round(PARAMS, FREE, query, number)
    assert caught.value.code == "SDQ-002"


def test_query_with_too_many_cells_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CELLS", 8)
    assert len(count_query(HistogramQuery(features=("age", "sex")))) == 8
    with pytest.raises(RemoteProtocolError, match="too large"):
        count_query(HistogramQuery(features=("age", "sex", "ill")))
    assert len(count_query(MarginalsQuery(features=("age", "sex", "ill")))) == 8


def test_from_names_rejects_unknown_names() -> None:
    with pytest.raises(SpecError, match="no such cell") as caught:
        CountQuery.from_names(SCHEMA, {"age": "about forty"})
    assert (
        caught.value.fix is not None
        and "30 to 60" in caught.value.fix
        and "about forty" not in str(caught.value)
    )
    with pytest.raises(SpecError, match="neither a feature nor the label"):
        CountQuery.from_names(SCHEMA, {"height": "tall"})
    with pytest.raises(SpecError) as caught:
        CountQuery.from_names(SCHEMA, {"height": "tall"})
    assert str(caught.value.fix) == "Choose from: age, sex, weight, ill"
    long = Schema([Categorical("x", [str(i) for i in range(100)])], label=SCHEMA.label)
    with pytest.raises(SpecError, match="no such cell") as caught:
        CountQuery.from_names(long, {"x": "y"})
    assert str(caught.value).endswith("11, ...")


@pytest.mark.parametrize("cells", [3, None, [], [3], [None], [["f"]], np.array([["f"]]), b"f"])
def test_from_names_rejects_cells_of_another_type(cells: Any) -> None:
    with pytest.raises(SpecError, match="sex has no such cell") as caught:
        CountQuery.from_names(SCHEMA, {"sex": cells})
    assert caught.value.fix == "Choose from: f, m"


def test_from_names_accepts_any_collection_of_cells() -> None:
    assert all(
        CountQuery.from_names(SCHEMA, {"sex": cells}).where[0].cells == (0, 1)
        for cells in ({"m", "f"}, np.array(["f", "m"]), iter("fm"))
    )


@pytest.mark.parametrize("where", ["sex", ["sex"], None, {3: "f"}, {("sex",): "f"}])
def test_from_names_rejects_conditions_of_another_type(where: Any) -> None:
    with pytest.raises(SpecError) as caught:
        CountQuery.from_names(SCHEMA, where)
    assert caught.value.code == "SDQ-002" and caught.value.fix


class QueryRecord(Record):
    query: FreeQuery | None = None


@pytest.mark.parametrize(
    "query",
    [
        CountQuery(),
        CountQuery.from_names(SCHEMA, {"age": "> 60"}),
        HistogramQuery(features=("a", "b")),
        MarginalsQuery(features=("a",)),
    ],
)
def test_query_message_round_trip(query: SDQQuery) -> None:
    assert load(dump(QueryRecord(query=query)), QueryRecord) == QueryRecord(query=query)


@pytest.mark.parametrize(
    "what",
    [{}, {"kind": "sum"}, {"kind": "histogram", "where": ()}, {"kind": "count", "where": ("age",)}],
)
def test_invalid_query_message_is_rejected(what: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        TypeAdapter(FreeQuery).validate_python(what)


def test_read_query_tables_names_cells_and_formats_counts() -> None:
    [one] = read_query_tables(PARAMS, FREE, CountQuery(), np.array([17]))
    assert (one.features, one.list_rows()) == ((), [((), 17)])
    assert str(one).splitlines()[1:] == ["   17"]
    [joint] = read_query_tables(
        PARAMS, FREE, HistogramQuery(features=("ill", "sex")), np.array([5, -1, 12, 3])
    )
    assert joint.to_dict()["counts"][2] == {"cells": ["yes", "f"], "count": 12}
    assert (
        str(joint)
        == f"ill  sex  count (noise {joint.deviation:.2g})\nno   f        5\nno   m       -1\nyes "
        " f       12\nyes  m        3"
    )
    ages, sexes = read_query_tables(
        PARAMS, FREE, MarginalsQuery(features=("age", "sex")), np.array([5, -1, 12, 3, 8, 9])
    )
    assert ages.list_rows() == [
        (("<= 30",), 5),
        (("30 to 60",), -1),
        (("> 60",), 12),
        (("missing",), 3),
    ]
    assert sexes.counts.tolist() == [8, 9]


def test_query_table_states_the_deviation_of_the_sum() -> None:
    """Shares of 10 databases with 5 honest ones: twice the variance; 3 rows; two marginals."""
    for query, sensitivity in ((CountQuery(), 3), (MarginalsQuery(features=("age", "sex")), 6)):
        size = make_query_round(PARAMS, FREE, query, 0).size
        expected = 2 * 0.5 / np.sinh(0.5 / sensitivity / 2) ** 2
        assert read_query_tables(PARAMS, FREE, query, np.zeros(size, np.int64))[
            0
        ].deviation ** 2 == pytest.approx(expected)


def test_noisy_table_escapes_names() -> None:
    table = NoisyTable(("a",), (("x\x1b[2Jy", "z"),), np.array([1, 2]), 1.0)
    assert "\x1b" not in str(table)
