"""Free count, histogram and marginal queries.

The analyst asks them within the study's ``[queries]``: their wire form, price, checks and results.
Each query is one round, named by its number: the same query asked twice is charged twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from shoal.data.schema import Categorical, Schema, cell_names
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Record
from shoal.privacy.events import Event
from shoal.protocols.sdq.counting import compute_joint_cells
from shoal.protocols.sdq.noise import compute_deviation, price_sum
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams
from shoal.protocols.sdq.script import RoundPart, SDQRound
from shoal.text import escape_text

MAX_CELLS = 100_000
"""Most cells of one query's table."""
_MAX_NAMED = 12


class QueryCondition(Record):
    """A condition: the row is in one of some cells of a feature."""

    feature: str
    cells: tuple[int, ...]


class CountQuery(Record):
    """Count the rows that fulfil all conditions; without conditions, all rows.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Numeric
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100, bins=[40, 60])], label=Categorical("ill", ["no", "yes"])
    ... )
    >>> CountQuery.from_names(schema, {"age": ["40 to 60", "> 60"], "ill": "yes"}).where[0].cells
    (1, 2)
    """

    kind: Literal["count"] = "count"
    where: tuple[QueryCondition, ...] = ()

    @classmethod
    def from_names(cls, schema: Schema, where: Mapping[str, str | Iterable[str]]) -> CountQuery:
        """Make a query from names of cells, as `list_cell_names` returns them.

        Each feature has one name or several.
        """
        if not isinstance(where, Mapping):
            raise SpecError(
                "SDQ-002",
                "The conditions of a count must map features to their cells.",
                fix='{"ward": "surgery"}',
            )
        conditions = []
        for name, cells in where.items():
            known = list_cell_names(schema, name)
            wanted = (
                (cells,)
                if isinstance(cells, str)
                else tuple(cells)
                if isinstance(cells, Iterable)
                else ()
            )
            if not wanted or not all(isinstance(cell, str) and cell in known for cell in wanted):
                raise SpecError(
                    "SDQ-002",
                    f"{escape_text(name)} has no such cell.",
                    fix=f"Choose from: {format_names(known)}",
                )
            conditions.append(
                QueryCondition(
                    feature=name, cells=tuple(sorted({known.index(cell) for cell in wanted}))
                )
            )
        return cls(where=tuple(conditions))

    @property
    def features(self) -> tuple[str, ...]:
        """The features that are read."""
        return tuple(condition.feature for condition in self.where)


class HistogramQuery(Record):
    """The joint table of some features."""

    kind: Literal["histogram"] = "histogram"
    features: tuple[str, ...]


class MarginalsQuery(Record):
    """One table for each of some features; the noise grows with their number."""

    kind: Literal["marginals"] = "marginals"
    features: tuple[str, ...]


SDQQuery = CountQuery | HistogramQuery | MarginalsQuery
FreeQuery = Annotated[SDQQuery, Field(discriminator="kind")]
"""The wire form of a query."""


@dataclass(frozen=True)
class QueryRules:
    """The limits of a study's ``[queries]``.

    Parameters
    ----------
    features
        Features and label that may be counted.
    n_queries
        Most queries.
    epsilon_release
        Price of one query.
    """

    features: tuple[str, ...]
    n_queries: int
    epsilon_release: float


def make_query_round(
    params: SDQParams, query_rules: QueryRules, query: SDQQuery, number: int
) -> SDQRound:
    """Return the round of a query, ``query/<number>``.

    Raises `RemoteProtocolError` if the study does not allow the query.

    Privacy
    -------
    The scope of the parameters; ``epsilon_release`` for the whole query, of any kind.
    """
    _check_query(params, query_rules, query, number)
    part = RoundPart(
        lambda table: _count_query(params, query, table),
        _count_cells(params, query),
        query_rules.epsilon_release,
        _count_tables(query),
    )
    return SDQRound(f"query/{number}", (part,))


def price_query(params: SDQParams, query_rules: QueryRules) -> Event:
    """Return the price of any query for one unit, described as the price of a single count.

    Marginals have more noise for the same price.
    """
    return price_sum(params, query_rules.epsilon_release, 1).with_reads(*query_rules.features)


@dataclass(frozen=True, eq=False)
class NoisyTable:
    """A table of noisy counts with its labels.

    Parameters
    ----------
    features
        The counted features; none for a single count.
    cells
        The names of each feature's cells.
    counts
        One axis for each feature.
    deviation
        Standard deviation of the noise on every count.

    Examples
    --------
    >>> table = NoisyTable(("ill",), (("no", "yes"),), np.array([812, 203]), deviation=1.8)
    >>> print(table)
    ill  count (noise 1.8)
    no     812
    yes    203
    """

    features: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    counts: Ints
    deviation: float

    def list_rows(self) -> list[tuple[tuple[str, ...], int]]:
        """List every combination of cell names with its count."""
        return [
            (tuple(names[i] for names, i in zip(self.cells, place, strict=True)), int(count))
            for place, count in np.ndenumerate(self.counts)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for reports."""
        rows = [{"cells": list(cells), "count": count} for cells, count in self.list_rows()]
        return {"features": list(self.features), "deviation": self.deviation, "counts": rows}

    def __str__(self) -> str:
        lines = [[*map(escape_text, self.features), "count"]] + [
            [*map(escape_text, cells), str(count)] for cells, count in self.list_rows()
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = [
            [
                *(text.ljust(w) for text, w in zip(line[:-1], widths, strict=False)),
                line[-1].rjust(widths[-1]),
            ]
            for line in lines
        ]
        head, *body = ["  ".join(line) for line in padded]
        return "\n".join([f"{head} (noise {self.deviation:.2g})", *body])


def read_query_tables(
    params: SDQParams, query_rules: QueryRules, query: SDQQuery, sums: Ints
) -> tuple[NoisyTable, ...]:
    """Return noisy sums as labelled tables: one table, or one for each feature of marginals.

    The deviation is that of the noise if every database answers.
    """
    deviation = compute_deviation(params, query_rules.epsilon_release, _count_tables(query))
    if isinstance(query, CountQuery):
        return (NoisyTable((), (), sums.reshape(()), deviation),)
    names = [list_cell_names(params.schema, name) for name in query.features]
    if isinstance(query, HistogramQuery):
        return (
            NoisyTable(
                query.features,
                tuple(names),
                sums.reshape([len(cells) for cells in names]),
                deviation,
            ),
        )
    ends = np.cumsum([len(cells) for cells in names])
    tables = zip(query.features, names, np.split(sums, ends[:-1]), strict=True)
    return tuple(NoisyTable((name,), (cells,), counts, deviation) for name, cells, counts in tables)


def list_cell_names(schema: Schema, name: str) -> tuple[str, ...]:
    """List the names of the cells of a feature, or of the label.

    The label's values are never missing or grouped.
    """
    if schema.label is not None and name == schema.label.name:
        assert isinstance(schema.label, Categorical)
        return tuple(schema.label.values)
    if name not in schema.names:
        names = (*schema.names, *([] if schema.label is None else [schema.label.name]))
        raise SpecError(
            "SDQ-002",
            f"{escape_text(str(name)[:60])} is neither a feature nor the label.",
            fix=f"Choose from: {format_names(names)}",
        )
    return cell_names(schema[name])


def _check_query(params: SDQParams, query_rules: QueryRules, query: SDQQuery, number: int) -> None:
    if not 0 <= number < query_rules.n_queries:
        raise _rejected_query_error(
            f"it is query {number + 1}",
            f"The study allows at most {query_rules.n_queries:,}.",
        )
    features = query.features
    if not set(features) <= set(query_rules.features) or len(set(features)) < len(features):
        raise _rejected_query_error(
            "it has a feature twice, or one that [queries] does not allow",
            f"[queries] allows: {format_names(query_rules.features)}.",
        )
    sizes = [len(list_cell_names(params.schema, name)) for name in features]
    if isinstance(query, CountQuery):
        for condition, size in zip(query.where, sizes, strict=True):
            if not condition.cells or not all(0 <= cell < size for cell in condition.cells):
                raise _rejected_query_error(
                    "a condition has no cells, or cells that its feature does not have",
                    f"{escape_text(condition.feature)} has {size:,} cells.",
                )
    elif not features or _count_cells(params, query) > MAX_CELLS:
        raise _rejected_query_error(
            "its table is empty or too large",
            f"A query can have at most {MAX_CELLS:,} cells.",
        )


def format_names(names: Sequence[str]) -> str:
    """Join names with commas; only the first ones of a long list."""
    return ", ".join(map(escape_text, names[:_MAX_NAMED])) + (
        ", ..." if len(names) > _MAX_NAMED else ""
    )


def _rejected_query_error(what: str, why: str) -> RemoteProtocolError:
    return RemoteProtocolError("SDQ-002", f"The query is rejected: {what}.", why=why)


def _count_cells(params: SDQParams, query: SDQQuery) -> int:
    if isinstance(query, CountQuery):
        return 1
    sizes = [len(list_cell_names(params.schema, name)) for name in query.features]
    return math.prod(sizes) if isinstance(query, HistogramQuery) else sum(sizes)


def _count_tables(query: SDQQuery) -> int:
    return len(query.features) if isinstance(query, MarginalsQuery) else 1


def _find_column(params: SDQParams, table: CellTable, name: str) -> Ints:
    return (
        table.labels
        if name == params.label.name
        else table.cells[:, params.schema.names.index(name)]
    )


def _count_query(params: SDQParams, query: SDQQuery, table: CellTable) -> Ints:
    columns = [_find_column(params, table, name) for name in query.features]
    if isinstance(query, CountQuery):
        kept = np.ones(len(table), np.bool_)
        for column, condition in zip(columns, query.where, strict=True):
            kept &= np.isin(column, condition.cells)
        return np.array([kept.sum()])
    sizes = [len(list_cell_names(params.schema, name)) for name in query.features]
    if isinstance(query, HistogramQuery):
        return np.bincount(
            compute_joint_cells(np.stack(columns, axis=1), range(len(sizes)), sizes),
            minlength=math.prod(sizes),
        )
    return np.concatenate(
        [np.bincount(column, minlength=size) for column, size in zip(columns, sizes, strict=True)]
    )
