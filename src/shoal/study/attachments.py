"""Roster files and query files.

``shoal serve`` and the dashboard load them. A roster file lists the members of a secure sum by name
and key, in the order that all parties use. It is TOML with one block for each member, as
``shoal identity --name N`` prints it::

    [[member]]
    name = "north"
    key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"

A query file lists the free counts that the analyst of an SDQ study asks for in addition to the
model, within the study's ``[queries]``. It is TOML with one block for each::

    [[query]]
    kind = "count"
    where = { ward = "surgery", readmitted = "yes" }

    [[query]]
    kind = "histogram"          # or "marginals": each feature alone
    features = ["ward", "readmitted"]
"""

from __future__ import annotations

import os
import re
from typing import Any

from shoal.data.schema import Schema
from shoal.errors import SpecError
from shoal.protocols.sdq.queries import CountQuery, HistogramQuery, MarginalsQuery, SDQQuery
from shoal.study.loader import TomlBlocks, TomlFileFormat, parse_blocks, read_blocks
from shoal.study.manifest import MAX_ROSTER, RosterMember

MAX_ROSTER_BYTES = 4_000_000

_KEY = re.compile(r"[0-9a-fA-F]{64}")
_ROSTER_FORMAT = TomlFileFormat(
    "SERVE-004",
    "roster",
    "member",
    'Append what shoal identity --name NAME prints at each member: [[member]] with name = "..." '
    'and key = "64 hexadecimal digits".',
    MAX_ROSTER_BYTES,
)


def load_roster(path: str | os.PathLike[str]) -> tuple[RosterMember, ...]:
    """Load the members in a file.

    Raises
    ------
    SpecError
        ``SERVE-004``: the file cannot be read, or is not a roster. ``MANIFEST-002``: a name or a
        key cannot be used.
    """
    return _parse_members(read_blocks(path, _ROSTER_FORMAT))


def parse_roster(text: str, name: str = "roster.toml") -> tuple[RosterMember, ...]:
    """Parse the members in a text.

    Examples
    --------
    >>> [
    ...     member.name
    ...     for member in parse_roster(f'[[member]]\\nname = "north"\\nkey = "{"ab" * 32}"')
    ... ]
    ['north']
    """
    return _parse_members(parse_blocks(text, name, _ROSTER_FORMAT))


def _parse_members(blocks: TomlBlocks) -> tuple[RosterMember, ...]:
    if len(blocks.blocks) > MAX_ROSTER:
        raise _ROSTER_FORMAT.make_error(
            blocks.locate_block(MAX_ROSTER), f"A roster has at most {MAX_ROSTER:,} members."
        )
    return tuple(
        _parse_member(blocks.locate_block(position), position + 1, block)
        for position, block in enumerate(blocks.blocks)
    )


def _parse_member(where: str, number: int, block: Any) -> RosterMember:
    is_block = (
        isinstance(block, dict)
        and set(block) == {"name", "key"}
        and all(isinstance(value, str) for value in block.values())
    )
    if not is_block or not _KEY.fullmatch(block["key"]):
        raise _ROSTER_FORMAT.make_error(where, f"Member {number} is not a name and a key.")
    try:
        return RosterMember(block["name"], bytes.fromhex(block["key"]))
    except SpecError as error:
        raise SpecError(
            error.code, f"{where}  {error.what}", why=error.why, fix=error.fix
        ) from None


MAX_QUERY_BYTES = 1_000_000

_TABLE_QUERIES: dict[str, type[HistogramQuery | MarginalsQuery]] = {
    "histogram": HistogramQuery,
    "marginals": MarginalsQuery,
}
_QUERY_FORMAT = TomlFileFormat(
    "SDQ-002",
    "file of queries",
    "query",
    '[[query]] with kind = "count" and where = { ward = "surgery" }, or kind = "histogram" or '
    '"marginals" and features = ["ward"]; '
    "use the names and values of the study.",
    MAX_QUERY_BYTES,
)


def load_queries(path: str | os.PathLike[str], schema: Schema) -> tuple[SDQQuery, ...]:
    """Load the free counts in a file; raise ``SDQ-002`` for any other content."""
    blocks = read_blocks(path, _QUERY_FORMAT)
    return tuple(
        _parse_query(blocks.locate_block(position), position + 1, block, schema)
        for position, block in enumerate(blocks.blocks)
    )


def _parse_query(where: str, number: int, block: Any, schema: Schema) -> SDQQuery:
    match block:
        case {"kind": "count", "where": dict(wanted), **rest} if not rest:
            try:
                return CountQuery.from_names(schema, wanted)
            except SpecError as error:
                raise SpecError(
                    error.code, f"{where}  {error.what}", why=error.why, fix=error.fix
                ) from None
        case {
            "kind": "histogram" | "marginals" as kind,
            "features": [str(), *_] as features,
            **rest,
        } if not rest:
            if all(isinstance(feature, str) for feature in features):
                return _TABLE_QUERIES[kind](features=tuple(features))
    raise _QUERY_FORMAT.make_error(where, f"Query {number} is not a valid query.")
