"""The output directory of ``shoal hello``, written completely or not at all.

The demonstration calls this module. It replaces only a directory of an earlier demonstration that
is unchanged; a change must keep this.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError, StoreError, UsageError
from shoal.files import replace_directory
from shoal.text import escape_text

RECORD_FILE = "hello.json"
_MADE_BY = "shoal hello"
_MEMORY_DIRECTORY = Path("/dev/shm")
_MIN_FREE_BYTES = 64 << 20
_FIX = "Choose another directory: --out DIR"


def make_workspace() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory for ledgers and stores, in memory if there is room.

    Sixty ledgers synchronise their files at each step; on a slow disk this takes longer than
    everything else.
    """
    with suppress(OSError):
        if (
            "TMPDIR" not in os.environ
            and shutil.disk_usage(_MEMORY_DIRECTORY).free > _MIN_FREE_BYTES
        ):
            return tempfile.TemporaryDirectory(prefix="shoal-hello-", dir=_MEMORY_DIRECTORY)
    try:
        return tempfile.TemporaryDirectory(prefix="shoal-hello-")
    except OSError as error:
        raise StoreError(
            "LEDGER-001",
            f"No temporary directory for the demonstration's ledgers: {error.strerror}.",
            fix="Set TMPDIR to a directory that you can write to.",
        ) from None


def check_output_directory(out: Path) -> None:
    """Raise an error if the directory cannot be written, before anything is run.

    A directory that ``shoal hello`` did not write, or that was changed, is not replaced.
    """
    try:
        if os.path.lexists(out) and not _is_own_output(out):
            what = (
                f"{escape_text(str(out))} already exists, and shoal hello did not write it, or "
                "it was changed."
            )
            raise UsageError("NEW-001", what, fix=_FIX)
        if os.path.lexists(out):
            tempfile.TemporaryDirectory(prefix=".shoal.", dir=out.parent).cleanup()
        else:
            out.mkdir()
            out.rmdir()
    except (OSError, ValueError) as error:
        raise _make_write_error(out, error) from None


def move_into_place(staging: Path, out: Path, record: dict[str, Any]) -> None:
    """Move the prepared files to the output directory, with a record of their digests.

    The directory of an earlier demonstration is replaced.
    """
    files = {
        str(path.relative_to(staging)): _compute_digest(path)
        for path in sorted(staging.rglob("*"))
        if path.is_file()
    }
    document = {"made_by": _MADE_BY, "files": files, **record}
    (staging / RECORD_FILE).write_text(
        json.dumps(document, indent=1, allow_nan=False) + "\n", "utf-8"
    )
    check_output_directory(out)
    replace_directory(staging, out, code="NEW-001", fix=_FIX)


def _is_own_output(out: Path) -> bool:
    """Return whether a directory is empty or has only unchanged files of a demonstration."""
    if out.is_symlink() or not out.is_dir():
        return False
    if not any(out.iterdir()):
        return True
    try:
        record = json.loads((out / RECORD_FILE).read_bytes())
        files = dict(record["files"]) if record["made_by"] == _MADE_BY else {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False
    existing = {str(path.relative_to(out)): path for path in out.rglob("*") if not path.is_dir()}
    existing.pop(RECORD_FILE)
    return existing.keys() == files.keys() and all(
        _compute_digest(path) == files[name] for name, path in existing.items()
    )


def _compute_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _make_write_error(out: Path, error: OSError | ValueError) -> ShoalError:
    reason = (isinstance(error, OSError) and error.strerror) or "this is not a valid file name"
    return StoreError("NEW-001", f"{escape_text(str(out))} cannot be written: {reason}.", fix=_FIX)
