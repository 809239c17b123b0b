"""The directory that ``shoal hello`` writes: whole or not at all, over nothing but an earlier one of its own that nobody has changed."""

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
from shoal.names import shown

RECORD = "hello.json"
_MARK = "shoal hello"
_MEMORY = Path("/dev/shm")
_ROOM = 64 << 20
_FIX = "Choose another directory: --out DIR"


def working_directory() -> tempfile.TemporaryDirectory[str]:
    """A place for ledgers and stores, in memory where there is room.

    Sixty ledgers synchronise their files at every step, which on a slow disk takes longer than all the rest.
    """
    with suppress(OSError):
        if "TMPDIR" not in os.environ and shutil.disk_usage(_MEMORY).free > _ROOM:
            return tempfile.TemporaryDirectory(prefix="shoal-hello-", dir=_MEMORY)
    try:
        return tempfile.TemporaryDirectory(prefix="shoal-hello-")
    except OSError as error:
        raise StoreError(
            "LEDGER-001",
            f"The demonstration's ledgers have no place to lie: {error.strerror}.",
            fix="Set TMPDIR to a directory that you can write to.",
        ) from None


def check_target(out: Path) -> None:
    """Refuse a directory that cannot be written, or that is not the demonstration's own, before anything is done."""
    try:
        if os.path.lexists(out) and not _is_own(out):
            what = f"{shown(str(out))} is there already, and is not what shoal hello has written, or was changed since."
            raise UsageError("NEW-001", what, fix=_FIX)
        _beside(out, "try").mkdir()
        _beside(out, "try").rmdir()
    except (OSError, ValueError) as error:
        raise _unwritable(out, error) from None


def publish(made: Path, out: Path, record: dict[str, Any]) -> None:
    """Move what was made into place, with a record of it; an earlier demonstration makes room."""
    files = {str(path.relative_to(made)): _digest(path) for path in sorted(made.rglob("*")) if path.is_file()}
    document = {"made_by": _MARK, "files": files, **record}
    (made / RECORD).write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", "utf-8")
    new, old = _beside(out, "new"), _beside(out, "old")
    try:
        check_target(out)
        try:
            shutil.copytree(made, new)
            if out.exists():
                out.rename(old)
            new.rename(out)
        except BaseException:
            if old.exists() and not out.exists():
                old.rename(out)
            raise
        finally:
            for left in (new, old):
                shutil.rmtree(left, ignore_errors=True)
    except (OSError, ValueError) as error:
        raise _unwritable(out, error) from None


def _is_own(out: Path) -> bool:
    """Whether a directory holds what an earlier demonstration has written, and nothing else."""
    if out.is_symlink() or not out.is_dir():
        return False
    if not any(out.iterdir()):
        return True
    try:
        record = json.loads((out / RECORD).read_bytes())
        files = dict(record["files"]) if record["made_by"] == _MARK else {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False
    there = {str(path.relative_to(out)): path for path in out.rglob("*") if not path.is_dir()}
    there.pop(RECORD)
    return there.keys() == files.keys() and all(_digest(path) == files[name] for name, path in there.items())


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _beside(out: Path, what: str) -> Path:
    return out.parent / f".{out.name}.{os.getpid()}.{what}"


def _unwritable(out: Path, error: OSError | ValueError) -> ShoalError:
    reason = (isinstance(error, OSError) and error.strerror) or "its name is not one that a directory can have"
    return StoreError("NEW-001", f"{shown(str(out))} cannot be written: {reason}.", fix=_FIX)
