"""Write files and directories atomically.

Models, releases, comparisons, pages, studies and the demonstration are written here. A change must
keep:

- A file or directory appears under its name complete or not at all, whatever interrupts the writer.
- Content is prepared in a private directory next to the target, under names that no other user can
  prepare. It is synchronised to the disk before it gets its name.
- `write_new` and `write_directory` never replace anything.
- A failure is an error with the caller's code: `UsageError` if the path is taken, `StoreError` if
  the file system refuses.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shoal.errors import StoreError, UsageError
from shoal.text import escape_text, shell_quote

_ANOTHER_FILE = "Choose another file."
_ANOTHER_DIRECTORY = "Choose another directory."


def check_path_is_free(path: Path) -> None:
    """Raise ``NEW-001`` if something exists at a path, before work is spent on its content."""
    if os.path.lexists(path):
        raise _path_taken_error(path, "NEW-001")


def write_new(
    path: Path,
    content: bytes,
    *,
    code: str = "NEW-001",
    fix: str = _ANOTHER_FILE,
    mode: int = 0o666,
) -> None:
    """Write a file that does not exist yet.

    Parameters
    ----------
    code, fix
        The code of all errors, and the advice if the file cannot be written.
    mode
        Permissions of the file before the umask is applied.

    Raises
    ------
    UsageError
        Something exists at the path, such as a broken symbolic link.
    StoreError
        The file cannot be written.
    """
    with _translate_errors(path, code, fix), _prepare_file(path, content, mode) as part:
        try:
            # Unlike a rename, a link never replaces what exists, not even a broken link.
            os.link(part, path)
        except FileExistsError:
            raise _path_taken_error(path, code) from None


def replace_file(path: Path, content: bytes, *, code: str, fix: str, mode: int = 0o666) -> None:
    """Write a file, replacing an existing one.

    A symbolic link is replaced, not followed. Parameters are those of `write_new`.

    Raises
    ------
    StoreError
        The file cannot be written; an existing one is unchanged.
    """
    with _translate_errors(path, code, fix), _prepare_file(path, content, mode) as part:
        part.replace(path)


def write_private(path: Path, content: bytes, *, code: str, fix: str) -> None:
    """Write a file that only its owner can read, replacing an existing one."""
    replace_file(path, content, code=code, fix=fix, mode=0o600)


def write_directory(
    directory: Path,
    files: Mapping[str, bytes | str],
    *,
    code: str = "NEW-001",
    fix: str = _ANOTHER_DIRECTORY,
    check: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write files into a new or empty directory, all of them or none.

    Parameters
    ----------
    files
        Content of each file by its name, which may include one subdirectory; text is UTF-8.
    code, fix
        The code of all errors, and the advice if the directory cannot be written.
    check
        Receives the prepared directory before it is moved; if it raises, nothing is written.

    Raises
    ------
    UsageError
        The directory exists and is not empty, or its parent does not exist.
    StoreError
        The directory cannot be written.
    """
    with _translate_errors(directory, code, fix):
        is_new = not directory.exists()
        if directory.is_symlink() or (not is_new and not _is_empty(directory)):
            raise UsageError(
                code,
                f"{escape_text(str(directory))} already exists and is not an empty directory.",
                fix="Choose a new directory.",
            )
        parent = directory.absolute().parent
        if not parent.is_dir():
            raise UsageError(
                code,
                f"The directory {escape_text(str(directory.parent))} does not exist.",
                fix=f"mkdir -p -- {shell_quote(directory.parent)}",
            )
        with _make_staging(parent if is_new else directory) as staging:
            for name, content in files.items():
                (staging / name).parent.mkdir(exist_ok=True)
                data = content.encode() if isinstance(content, str) else content
                _write_synced(staging / name, data, 0o666)
            check(staging)
            if is_new:
                staging.rename(directory)
            else:
                _move_entries(staging, directory)


def replace_directory(source: Path, target: Path, *, code: str, fix: str) -> None:
    """Copy a directory to a path, replacing an existing directory.

    Raises
    ------
    StoreError
        The target cannot be written; an existing one is unchanged.
    """
    with _translate_errors(target, code, fix), _make_staging(target.absolute().parent) as staging:
        new, old = staging / "new", staging / "old"
        shutil.copytree(source, new)
        if target.exists():
            target.rename(old)
        try:
            new.rename(target)
        except BaseException:
            if old.exists():
                old.rename(target)
            raise


@contextmanager
def _prepare_file(path: Path, content: bytes, mode: int) -> Iterator[Path]:
    """Write a complete file next to a path; remove it at the end unless it was moved."""
    with _make_staging(path.absolute().parent) as staging:
        part = staging / "file"
        _write_synced(part, content, mode)
        yield part


@contextmanager
def _make_staging(parent: Path) -> Iterator[Path]:
    """Make a directory inside a private one; remove both at the end."""
    with tempfile.TemporaryDirectory(prefix=".shoal.", dir=parent) as private:
        staging = Path(private) / "new"
        staging.mkdir()
        yield staging


def _write_synced(path: Path, content: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _move_entries(source: Path, target: Path) -> None:
    """Move the entries of one directory to another; on a failure, move them back.

    The target itself is not replaced: it may be the working directory of a shell.
    """
    moved: list[Path] = []
    try:
        for entry in list(source.iterdir()):
            moved.append(entry.rename(target / entry.name))
    except BaseException:
        for entry in moved:
            entry.rename(source / entry.name)
        raise


def _is_empty(directory: Path) -> bool:
    return directory.is_dir() and not any(directory.iterdir())


@contextmanager
def _translate_errors(path: Path, code: str, fix: str) -> Iterator[None]:
    """Replace failures of the file system, and invalid names, by errors with a code."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "this is not a valid file name"
        raise StoreError(
            code, f"{escape_text(str(path))} cannot be written: {reason}.", fix=fix
        ) from None


def _path_taken_error(path: Path, code: str) -> UsageError:
    return UsageError(
        code,
        f"{escape_text(str(path))} already exists and is not overwritten.",
        fix="Choose a new name.",
    )
