"""Parse arguments that several commands share: studies, tables, lists of numbers.

Each function raises `UsageError` with a sentence and a command line that can be typed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.data import tables
from shoal.data.tables import Table
from shoal.errors import UsageError
from shoal.text import escape_text

MEGABYTE = 1_000_000
MAX_LISTED = 20
_MIN_BODY_MEMORY, _MAX_BODY_MEMORY = 32, 1_000_000
_MAX_NAME_LENGTH = 80


def read_table(source: str) -> Table:
    """Read the table that an option names."""
    if not source.strip():
        raise UsageError("USAGE-001", "The name of the table is empty.", fix="--data rows.csv")
    return tables.read_table_file(source)


def make_source_name(data: str) -> str:
    """Return the name of a table in the ledger: its absolute path, with the part after a #."""
    return str(Path(data).absolute()) if data.strip() else data


def check_range(option: str, value: int, least: int, most: int, fix: str) -> None:
    """Raise ``USAGE-001`` if the number of an option is outside its range."""
    if not least <= value <= most:
        raise UsageError(
            "USAGE-001", f"--{option} {value} is not from {least} to {most:,}.", fix=fix
        )


def check_body_memory(megabytes: int) -> None:
    """Raise ``USAGE-001`` if ``--body-memory`` has no room for the largest request."""
    check_range("body-memory", megabytes, _MIN_BODY_MEMORY, _MAX_BODY_MEMORY, "--body-memory 256")


def parse_numbers(option: str, text: str | None, kind: type[Any]) -> list[Any]:
    """Return the numbers of an option, separated by commas and each above 0.

    Examples
    --------
    >>> parse_numbers("sizes", "1000,20000", int), parse_numbers("sizes", None, int)
    ([1000, 20000], [])
    """
    try:
        # Python would read 1_0 as ten.
        numbers = (
            []
            if text is None
            else [kind(number if "_" not in number else "") for number in text.split(",")]
        )
    except ValueError:
        numbers = [math.nan]
    if all(0 < number < math.inf for number in numbers):
        return numbers
    wanted, example = ("whole numbers", "1000,10000") if kind is int else ("numbers", "0.5,1,2")
    raise UsageError(
        "USAGE-001",
        f"--{option} takes {wanted} above 0, separated by commas, not "
        f"{escape_text((text or '')[:60]) or 'nothing'}.",
        fix=f"--{option} {example}",
    )


def pick_study(name: str, studies: Mapping[str, str], where: str) -> str:
    """Return the digest of the study with a title, or with a digest that begins with `name`.

    Parameters
    ----------
    studies
        Digests, in hexadecimal, and titles.
    where
        Words before a list of the studies: ``You are in``.

    Raises
    ------
    UsageError
        ``USAGE-001``: no study matches, or more than one.

    Examples
    --------
    >>> pick_study("7f3a-91", {"7f3a91c2": "Wind", "00aa": "Rain"}, "There are")
    '7f3a91c2'
    """
    digits = name.lower().replace("-", "")
    matches = [
        digest
        for digest, title in studies.items()
        if name == title or (digits and digest.startswith(digits))
    ]
    if len(matches) == 1:
        return matches[0]
    listed = "; ".join(
        f"{escape_text(studies[digest][:_MAX_NAME_LENGTH])} ({digest[:12]})"
        for digest in (matches or list(studies))[:MAX_LISTED]
    )
    quoted = f'"{escape_text(name[:_MAX_NAME_LENGTH])}"' if name else "without a name"
    why = f"{where}: {listed}." if listed else f"{where}: no study."
    if matches:
        raise UsageError(
            "USAGE-001",
            f"More than one study matches {quoted}.",
            why=why,
            fix=f"Give enough digits of the digest: {matches[0][:12]}",
        )
    fix = "Give its title, or the beginning of its digest." if studies else None
    raise UsageError("USAGE-001", f"There is no study {quoted} here.", why=why, fix=fix)
