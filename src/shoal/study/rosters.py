"""A roster file: who takes part in a secure sum, by name and key, in the order that all agree on.

It is TOML, one block for each member, as ``shoal identity --name N`` prints it::

    [[member]]
    name = "north"
    key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
"""

from __future__ import annotations

import os
import re
from typing import Any

from shoal.errors import SpecError
from shoal.study.manifest import MAX_ROSTER, Member
from shoal.study.toml_files import Blocks, Kind, parse_blocks, read_blocks

MAX_BYTES = 4_000_000

_KEY = re.compile(r"[0-9a-fA-F]{64}")
_ROSTER = Kind(
    "SERVE-004",
    "roster",
    "member",
    'Append what shoal identity --name NAME prints at each member: [[member]] with name = "..." and key = "64 hexadecimal digits".',
    MAX_BYTES,
)


def load_roster(path: str | os.PathLike[str]) -> tuple[Member, ...]:
    """The members in a file.

    Raises
    ------
    SpecError
        ``SERVE-004``: the file cannot be read, or is not a roster. ``MANIFEST-002``: a name or a key cannot be used.
    """
    return _members(read_blocks(path, _ROSTER))


def parse_roster(text: str, name: str = "roster.toml") -> tuple[Member, ...]:
    """The members in a text.

    Examples
    --------
    >>> [member.name for member in parse_roster(f'[[member]]\\nname = "north"\\nkey = "{"ab" * 32}"')]
    ['north']
    """
    return _members(parse_blocks(text, name, _ROSTER))


def _members(found: Blocks) -> tuple[Member, ...]:
    if len(found.blocks) > MAX_ROSTER:
        raise _ROSTER.error(found.where(MAX_ROSTER), f"A roster has at most {MAX_ROSTER:,} members.")
    return tuple(_member(found.where(position), position + 1, block) for position, block in enumerate(found.blocks))


def _member(where: str, number: int, block: Any) -> Member:
    is_block = isinstance(block, dict) and set(block) == {"name", "key"} and all(isinstance(value, str) for value in block.values())
    if not is_block or not _KEY.fullmatch(block["key"]):
        raise _ROSTER.error(where, f"Member {number} is not a name and a key.")
    try:
        return Member(block["name"], bytes.fromhex(block["key"]))
    except SpecError as error:
        raise SpecError(error.code, f"{where}  {error.what}", why=error.why, fix=error.fix) from None
