"""Counts that the analyst asks for freely, as the study's ``[queries]`` allow: how they travel, what they cost, how they are read.

Each is a round of its own, named by its number: the same count asked twice is charged twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from shoal.domain import Categorical, Schema
from shoal.errors import RemoteProtocolError, SpecError
from shoal.messages.base import Record
from shoal.names import shown
from shoal.privacy.events import Event
from shoal.protocols.sdq.counting import joint_cells
from shoal.protocols.sdq.noise import deviation_of, price_of
from shoal.protocols.sdq.params import Ints, Params, Table
from shoal.protocols.sdq.script import Part, Round
from shoal.protocols.sdq.words import cell_names

MAX_CELLS = 100_000
"""Most cells of a table that is asked for."""
_MOST_NAMED = 12


class Condition(Record):
    """One of some cells of a feature."""

    feature: str
    cells: tuple[int, ...]


class Count(Record):
    """How many rows fulfil all conditions; without any, how many rows there are.

    Examples
    --------
    >>> from shoal.domain import Categorical, Numeric
    >>> schema = Schema([Numeric("age", 0, 100, bins=[40, 60])], label=Categorical("ill", ["no", "yes"]))
    >>> Count.of(schema, {"age": ["40 to 60", "> 60"], "ill": "yes"}).where[0].cells
    (1, 2)
    """

    kind: Literal["count"] = "count"
    where: tuple[Condition, ...] = ()

    @classmethod
    def of(cls, schema: Schema, where: Mapping[str, str | Iterable[str]]) -> Count:
        """A count of rows by the names of cells, as `names_of` gives them: one of a feature, or several."""
        if not isinstance(where, Mapping):
            raise SpecError("SDQ-002", "A count is not asked for by features and their cells.", fix='{"ward": "surgery"}')
        conditions = []
        for name, cells in where.items():
            known = names_of(schema, name)
            wanted = (cells,) if isinstance(cells, str) else tuple(cells) if isinstance(cells, Iterable) else ()
            if not wanted or not all(isinstance(cell, str) and cell in known for cell in wanted):
                raise SpecError("SDQ-002", f"{shown(name)} has no such cell.", fix=f"Choose of: {some(known)}")
            conditions.append(Condition(feature=name, cells=tuple(sorted({known.index(cell) for cell in wanted}))))
        return cls(where=tuple(conditions))

    @property
    def features(self) -> tuple[str, ...]:
        """The features that are read."""
        return tuple(condition.feature for condition in self.where)


class Histogram(Record):
    """The joint table of some features."""

    kind: Literal["histogram"] = "histogram"
    features: tuple[str, ...]


class Marginals(Record):
    """The table of each of some features by itself; the noise grows with their number."""

    kind: Literal["marginals"] = "marginals"
    features: tuple[str, ...]


Query = Count | Histogram | Marginals
FreeQuery = Annotated[Query, Field(discriminator="kind")]
"""A query as it travels."""


@dataclass(frozen=True)
class Free:
    """What a study's ``[queries]`` allow.

    Parameters
    ----------
    features
        Features and label that may be counted.
    n_queries
        Most queries.
    epsilon_release
        What one costs.
    """

    features: tuple[str, ...]
    n_queries: int
    epsilon_release: float


def query_round(params: Params, free: Free, query: Query, number: int) -> Round:
    """The round of a query, ``query/<number>``; `RemoteProtocolError` for what the study does not allow.

    Privacy
    -------
    The scope of the parameters; ``epsilon_release`` for the whole query, whatever it is.
    """
    _check(params, free, query, number)
    part = Part(lambda table: _count(params, query, table), _size(params, query), free.epsilon_release, _n_tables(query))
    return Round(f"query/{number}", (part,))


def free_price(params: Params, free: Free) -> Event:
    """What any query costs one unit, described as that of a single count; marginals have more noise for the same price."""
    return price_of(params, free.epsilon_release, 1).reading(*free.features)


@dataclass(frozen=True, eq=False)
class Counted:
    """A table of noisy counts with its labels.

    Parameters
    ----------
    features
        What was counted by; none for a single count.
    cells
        The names of each feature's cells.
    counts
        An axis for each feature.
    deviation
        Standard deviation of the noise on every count.

    Examples
    --------
    >>> table = Counted(("ill",), (("no", "yes"),), np.array([812, 203]), deviation=1.8)
    >>> print(table)
    ill  count (noise 1.8)
    no     812
    yes    203
    """

    features: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    counts: Ints
    deviation: float

    def rows(self) -> list[tuple[tuple[str, ...], int]]:
        """The names of the cells of every combination, and its count."""
        return [
            (tuple(names[i] for names, i in zip(self.cells, place, strict=True)), int(count))
            for place, count in np.ndenumerate(self.counts)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for reports."""
        rows = [{"cells": list(cells), "count": count} for cells, count in self.rows()]
        return {"features": list(self.features), "deviation": self.deviation, "counts": rows}

    def __str__(self) -> str:
        lines = [[*map(shown, self.features), "count"]] + [[*map(shown, cells), str(count)] for cells, count in self.rows()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        padded = [[*(text.ljust(w) for text, w in zip(line[:-1], widths, strict=False)), line[-1].rjust(widths[-1])] for line in lines]
        head, *body = ["  ".join(line) for line in padded]
        return "\n".join([f"{head} (noise {self.deviation:.2g})", *body])


def read(params: Params, free: Free, query: Query, sums: Ints) -> tuple[Counted, ...]:
    """Noisy sums in words: one table, or of marginals one for each feature.

    The deviation is that of the noise when every database answers.
    """
    deviation = deviation_of(params, free.epsilon_release, _n_tables(query))
    if isinstance(query, Count):
        return (Counted((), (), sums.reshape(()), deviation),)
    names = [names_of(params.schema, name) for name in query.features]
    if isinstance(query, Histogram):
        return (Counted(query.features, tuple(names), sums.reshape([len(cells) for cells in names]), deviation),)
    ends = np.cumsum([len(cells) for cells in names])
    tables = zip(query.features, names, np.split(sums, ends[:-1]), strict=True)
    return tuple(Counted((name,), (cells,), counts, deviation) for name, cells, counts in tables)


def names_of(schema: Schema, name: str) -> tuple[str, ...]:
    """The names of the cells of a feature or of the label, whose values are never missing nor grouped."""
    if schema.label is not None and name == schema.label.name:
        assert isinstance(schema.label, Categorical)
        return tuple(schema.label.values)
    if name not in schema.names:
        names = (*schema.names, *([] if schema.label is None else [schema.label.name]))
        raise SpecError("SDQ-002", f"{shown(str(name)[:60])} is neither a feature nor the label.", fix=f"Choose of: {some(names)}")
    return cell_names(schema[name])


def _check(params: Params, free: Free, query: Query, number: int) -> None:
    if not 0 <= number < free.n_queries:
        raise _refused(f"query {number + 1} was asked for", f"The study allows at most {free.n_queries:,}.")
    features = query.features
    if not set(features) <= set(free.features) or len(set(features)) < len(features):
        raise _refused("it is not about features of the study's [queries], each once", f"They are: {some(free.features)}.")
    sizes = [len(names_of(params.schema, name)) for name in features]
    if isinstance(query, Count):
        for condition, size in zip(query.where, sizes, strict=True):
            if not condition.cells or not all(0 <= cell < size for cell in condition.cells):
                raise _refused("a condition names no cells of its feature", f"{shown(condition.feature)} has {size:,}.")
    elif not features or _size(params, query) > MAX_CELLS:
        raise _refused("its table is empty or too large", f"At most {MAX_CELLS:,} cells can be counted at once.")


def some(names: Sequence[str]) -> str:
    """Names in a row; of many the first ones."""
    return ", ".join(map(shown, names[:_MOST_NAMED])) + (", ..." if len(names) > _MOST_NAMED else "")


def _refused(what: str, why: str) -> RemoteProtocolError:
    return RemoteProtocolError("SDQ-002", f"This count is not answered: {what}.", why=why)


def _size(params: Params, query: Query) -> int:
    if isinstance(query, Count):
        return 1
    sizes = [len(names_of(params.schema, name)) for name in query.features]
    return math.prod(sizes) if isinstance(query, Histogram) else sum(sizes)


def _n_tables(query: Query) -> int:
    return len(query.features) if isinstance(query, Marginals) else 1


def _column(params: Params, table: Table, name: str) -> Ints:
    return table.labels if name == params.label.name else table.cells[:, params.schema.names.index(name)]


def _count(params: Params, query: Query, table: Table) -> Ints:
    columns = [_column(params, table, name) for name in query.features]
    if isinstance(query, Count):
        kept = np.ones(len(table), np.bool_)
        for column, condition in zip(columns, query.where, strict=True):
            kept &= np.isin(column, condition.cells)
        return np.array([kept.sum()])
    sizes = [len(names_of(params.schema, name)) for name in query.features]
    if isinstance(query, Histogram):
        return np.bincount(joint_cells(np.stack(columns, axis=1), range(len(sizes)), sizes), minlength=math.prod(sizes))
    return np.concatenate([np.bincount(column, minlength=size) for column, size in zip(columns, sizes, strict=True)])
