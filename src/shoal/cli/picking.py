"""Which study a word of the command line means: the beginning of its digest, or its title."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.errors import UsageError
from shoal.names import shown

MOST_LISTED = 20
_LONGEST = 80


def pick(name: str, studies: Mapping[str, str], where: str) -> str:
    """The digest of the study that is meant.

    Parameters
    ----------
    name
        What the command line says.
    studies
        Digests, in hexadecimal, and their titles.
    where
        What to call them all, before a list: ``You are in``.

    Raises
    ------
    UsageError
        ``USAGE-001``: there is no such study, or more than one.

    Examples
    --------
    >>> pick("7f3a-91", {"7f3a91c2": "Wind", "00aa": "Rain"}, "There are")
    '7f3a91c2'
    """
    digits = name.lower().replace("-", "")
    found = [digest for digest, title in studies.items() if name == title or (digits and digest.startswith(digits))]
    if len(found) == 1:
        return found[0]
    listed = "; ".join(f"{shown(studies[digest][:_LONGEST])} ({digest[:12]})" for digest in (found or list(studies))[:MOST_LISTED])
    meant, among = f'"{shown(name[:_LONGEST])}"' if name else "without a name", f"{where}: {listed}." if listed else f"{where}: no study."
    if found:
        what = f"More than one study is meant by {meant}."
        raise UsageError("USAGE-001", what, why=among, fix=f"Give enough digits of its digest: {found[0][:12]}")
    fix = "Give its title, or the beginning of its digest." if studies else None
    raise UsageError("USAGE-001", f"There is no study {meant} here.", why=among, fix=fix)
