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
import tomllib
from pathlib import Path
from typing import Any

from shoal.domain import Schema
from shoal.errors import SpecError
from shoal.names import shown
from shoal.protocols.sdq.queries import Count, Histogram, Marginals, Query

MAX_BYTES = 1_000_000

_TABLES: dict[str, type[Histogram | Marginals]] = {"histogram": Histogram, "marginals": Marginals}
_BLOCKS = (
    '[[query]] with kind = "count" and where = { ward = "surgery" }, or kind = "histogram" or "marginals" and features = ["ward"]; '
    "the words are the study's own."
)


def load_queries(path: str | os.PathLike[str], schema: Schema) -> tuple[Query, ...]:
    """The counts in a file; `SpecError` ``SDQ-002`` for anything else."""
    name = shown(os.fspath(path))
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name is not one that a file can have"
        raise SpecError("SDQ-002", f"The queries {name} cannot be read: {reason}.") from None
    try:
        document = tomllib.loads(content.decode("utf-8-sig")) if len(content) <= MAX_BYTES else {}
    except (ValueError, RecursionError):
        raise SpecError("SDQ-002", f"The queries {name} are not TOML.", fix=_BLOCKS) from None
    blocks = document.get("query")
    if set(document) != {"query"} or not isinstance(blocks, list):
        raise SpecError("SDQ-002", f"{name} is not a list of queries.", fix=_BLOCKS)
    return tuple(_query(name, number, block, schema) for number, block in enumerate(blocks, 1))


def _query(name: str, number: int, block: Any, schema: Schema) -> Query:
    match block:
        case {"kind": "count", "where": dict(where), **rest} if not rest:
            return Count.of(schema, where)
        case {"kind": "histogram" | "marginals" as kind, "features": [str(), *_] as features, **rest} if not rest:
            if all(isinstance(feature, str) for feature in features):
                return _TABLES[kind](features=tuple(features))
    raise SpecError("SDQ-002", f"{name}  Query {number} is none.", fix=_BLOCKS)
