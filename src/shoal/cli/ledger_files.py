"""Files of ``shoal ledger``: the one that must be there, and those that are written for their owner's eyes only."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from shoal.errors import StoreError, UsageError
from shoal.participant.ledger_db import is_there


def existing(path: Path) -> Path:
    """The ledger at a path; ``LEDGER-010`` where there is none."""
    if not is_there(path):
        raise StoreError(
            "LEDGER-010",
            f"There is no ledger at {path}.",
            why="Nothing was ever spent from here, or the file was moved or deleted.",
            fix="Give its path with --ledger PATH or SHOAL_LEDGER; the first release starts a new one.",
        )
    return path


def source_name(data: str) -> str:
    """The name of a table under which the ledger counts it, from wherever it is called; what stands behind a # is part of it."""
    return str(Path(data).absolute()) if data.strip() else data


def check_target(target: Path, ledger: Path, endings: tuple[str, ...]) -> None:
    """Refuse to write to a file with another ending, or over the ledger itself: ``USAGE-001``."""
    if target.suffix.lower() not in endings:
        listed = f"neither in {' nor in '.join(endings)}" if len(endings) > 1 else f"not in {endings[0]}"
        raise UsageError("USAGE-001", f"{target} ends {listed}.", fix=f"Give a name that ends in {' or '.join(endings)}.")
    if target.resolve() == ledger.resolve():
        raise UsageError("USAGE-001", f"{target} is the ledger itself.", fix="Give another file.")


def write_private(path: Path, text: str, option: str) -> None:
    """Write a file that its owner alone can read, whole or not at all, by way of a name that nobody can have prepared."""
    part = None
    try:
        handle, part = tempfile.mkstemp(dir=path.absolute().parent)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        Path(part).replace(path)
    except BaseException as error:
        if part is not None:
            Path(part).unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise StoreError("LEDGER-001", f"{path} cannot be written: {error.strerror}.", fix=f"Give another file: {option} FILE") from None
