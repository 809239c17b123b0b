"""A file of free counts: what the analyst of an SDQ study asks besides its model, as the study's ``[queries]`` allow.

It is TOML, one block for each::

    [[query]]
    kind = "count"
    where = { ward = "surgery", readmitted = "yes" }

    [[query]]
    kind = "histogram"          # or "marginals": each feature by itself
    features = ["ward", "readmitted"]
"""

from __future__ import annotations

import os
from typing import Any

from shoal.domain import Schema
from shoal.errors import SpecError
from shoal.protocols.sdq.queries import Count, Histogram, Marginals, Query
from shoal.study.toml_files import Kind, read_blocks

MAX_BYTES = 1_000_000

_TABLES: dict[str, type[Histogram | Marginals]] = {"histogram": Histogram, "marginals": Marginals}
_QUERIES = Kind(
    "SDQ-002",
    "file of queries",
    "query",
    '[[query]] with kind = "count" and where = { ward = "surgery" }, or kind = "histogram" or "marginals" and features = ["ward"]; '
    "the words are the study's own.",
    MAX_BYTES,
)


def load_queries(path: str | os.PathLike[str], schema: Schema) -> tuple[Query, ...]:
    """The counts in a file; `SpecError` ``SDQ-002`` for anything else."""
    found = read_blocks(path, _QUERIES)
    return tuple(_query(found.where(position), position + 1, block, schema) for position, block in enumerate(found.blocks))


def _query(where: str, number: int, block: Any, schema: Schema) -> Query:
    match block:
        case {"kind": "count", "where": dict(wanted), **rest} if not rest:
            try:
                return Count.of(schema, wanted)
            except SpecError as error:
                raise SpecError(error.code, f"{where}  {error.what}", why=error.why, fix=error.fix) from None
        case {"kind": "histogram" | "marginals" as kind, "features": [str(), *_] as features, **rest} if not rest:
            if all(isinstance(feature, str) for feature in features):
                return _TABLES[kind](features=tuple(features))
    raise _QUERIES.error(where, f"Query {number} is none.")
