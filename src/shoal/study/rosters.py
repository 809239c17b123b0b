"""A roster file: who takes part in a secure sum, by name and key, in the order that all agree on.

It is TOML, one block for each member, as ``shoal identity --name N`` prints it::

    [[member]]
    name = "north"
    key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from shoal.errors import SpecError
from shoal.names import shown
from shoal.study.manifest import MAX_ROSTER, Member

MAX_BYTES = 4_000_000

_KEY = re.compile(r"[0-9a-fA-F]{64}")
_BLOCK = 'Every member is [[member]] with name = "..." and key = "64 hexadecimal digits", as shoal identity prints it.'


def load_roster(path: str | os.PathLike[str]) -> tuple[Member, ...]:
    """The members in a file.

    Raises
    ------
    SpecError
        ``SERVE-004``: the file cannot be read, or is not a roster. ``MANIFEST-002``: a name or a key cannot be used.
    """
    name = shown(os.fspath(path))
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name is not one that a file can have"
        raise SpecError("SERVE-004", f"The roster {name} cannot be read: {reason}.") from None
    if len(content) > MAX_BYTES:
        raise SpecError("SERVE-004", f"The roster {name} is larger than {MAX_BYTES:,} bytes.")
    try:
        return parse_roster(content.decode("utf-8-sig"), name)
    except UnicodeDecodeError:
        raise SpecError("SERVE-004", f"The roster {name} is not UTF-8 text.") from None


def parse_roster(text: str, name: str = "roster.toml") -> tuple[Member, ...]:
    """The members in a text.

    Examples
    --------
    >>> [member.name for member in parse_roster(f'[[member]]\\nname = "north"\\nkey = "{"ab" * 32}"')]
    ['north']
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError):
        raise SpecError("SERVE-004", f"The roster {name} is not TOML.", fix=_BLOCK) from None
    members = document.get("member")
    if set(document) != {"member"} or not isinstance(members, list) or not 0 < len(members) <= MAX_ROSTER:
        raise SpecError("SERVE-004", f"{name} is not a roster of 1 to {MAX_ROSTER:,} members.", fix=_BLOCK)
    return tuple(_member(name, number, entry) for number, entry in enumerate(members, 1))


def _member(roster: str, number: int, entry: Any) -> Member:
    is_block = isinstance(entry, dict) and set(entry) == {"name", "key"} and all(isinstance(value, str) for value in entry.values())
    if not is_block or not _KEY.fullmatch(entry["key"]):
        raise SpecError("SERVE-004", f"{roster}  Member {number} is not a name and a key.", fix=_BLOCK)
    return Member(entry["name"], bytes.fromhex(entry["key"]))
