"""Writing a file that was not there before: whole or not at all, and never over another."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from shoal.errors import StoreError, UsageError
from shoal.names import shown


def check_new(path: Path) -> None:
    """Refuse a path at which something is already, before work is spent on it."""
    if os.path.lexists(path):
        raise _taken(path)


def write_new(path: Path, content: bytes) -> None:
    """Write a new file.

    Raises
    ------
    UsageError
        ``NEW-001``: something is already there.
    StoreError
        ``NEW-001``: it cannot be written.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".shoal.", dir=path.absolute().parent) as aside:
            part = Path(aside) / "whole"
            part.write_bytes(content)
            # Unlike a rename, a link never takes the place of what is there, be it a link that leads nowhere.
            os.link(part, path)
    except FileExistsError:
        raise _taken(path) from None
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "no file has such a name"
        raise StoreError("NEW-001", f"{shown(str(path))} cannot be written: {reason}.", fix="Choose another file.") from None


def _taken(path: Path) -> UsageError:
    return UsageError("NEW-001", f"{shown(str(path))} is already there, and is not overwritten.", fix="Choose a new name.")
