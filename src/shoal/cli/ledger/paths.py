"""Files of ``shoal ledger``: the ledger itself, and output files for its owner.

The commands call these functions before they read or write a file. An output file must not replace
the ledger, and only its owner can read it.
"""

from __future__ import annotations

from pathlib import Path

from shoal.errors import StoreError, UsageError
from shoal.files import write_private
from shoal.participant.ledger_storage import path_exists


def require_ledger(path: Path) -> Path:
    """Return the path of a ledger; raise ``LEDGER-010`` if there is none."""
    if not path_exists(path):
        raise StoreError(
            "LEDGER-010",
            f"There is no ledger at {path}.",
            why="Nothing was spent yet, or the file was moved or deleted.",
            fix="Give its path: --ledger PATH, or SHOAL_LEDGER. The first release creates a new "
            "ledger.",
        )
    return path


def check_output_file(target: Path, ledger: Path, endings: tuple[str, ...]) -> None:
    """Raise ``USAGE-001`` if a file has another ending, or is the ledger itself."""
    if target.suffix.lower() not in endings:
        listed = (
            f"neither in {' nor in '.join(endings)}" if len(endings) > 1 else f"not in {endings[0]}"
        )
        raise UsageError(
            "USAGE-001",
            f"{target} ends {listed}.",
            fix=f"Give a name that ends in {' or '.join(endings)}.",
        )
    if target.resolve() == ledger.resolve():
        raise UsageError("USAGE-001", f"{target} is the ledger itself.", fix="Give another file.")


def write_private_text(path: Path, text: str, option: str) -> None:
    """Write a text file that only its owner can read; ``LEDGER-001`` if it cannot be written."""
    write_private(
        path,
        text.encode("utf-8", "backslashreplace"),
        code="LEDGER-001",
        fix=f"Give another file: {option} FILE",
    )
