"""``shoal new``: a starter study in a new directory, with rows made up to try it on."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from shoal.cli.check import read_table
from shoal.cli.output import emit
from shoal.clock import SystemClock
from shoal.entropy import SeededEntropy
from shoal.errors import SpecError, StoreError, UsageError
from shoal.names import shell_word, shown
from shoal.study.infer import study_like
from shoal.study.load import parse
from shoal.study.plan import make_plan
from shoal.study.templates import example_csv, readme_text, study_text
from shoal.study.templates.drafts import closing_later
from shoal.table_files import Table

EXAMPLE_ROWS = 600


def new(
    directory: Path,
    /,
    *,
    protocol: Literal["anonml", "ddml", "sdq", "pfds"] | None = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    label: str | None = None,
    json: bool = False,
) -> None:
    """Write a starter study: study.toml, made-up rows in data/example.csv, README.md.

    Parameters
    ----------
    directory
        Where to write; it must not exist yet, or be empty.
    protocol
        Has to be given: anonml (people, one row each), ddml (devices), sdq (databases), pfds (organisations).
    from_
        A table whose columns the study should have. Its ranges and values are copied into the study, with a warning; its rows are not.
        Columns that cannot be features (identifiers, dates, free text, constants) are left out, and named.
    label
        The column of that table that is to be predicted; by default the last.
    json
        Print one JSON object.
    """
    if label is not None and from_ is None:
        raise UsageError("USAGE-001", f"--label {shown(label)} names a column of a table, and none is given.", fix="--from rows.csv")
    table = None if from_ is None else read_table(from_)
    if protocol is None:
        raise _not_chosen(directory, table, from_, label)
    text, warnings = (study_text(protocol), []) if table is None else study_like(table, protocol, label)
    text = closing_later(text, SystemClock().now())
    study = parse(text)
    make_plan(study)
    example = example_csv(study, EXAMPLE_ROWS, SeededEntropy(f"shoal new {protocol}"))
    files = {"study.toml": text, "data/example.csv": example, "README.md": readme_text(study)}
    write_directory(directory, files)
    first, *more = (shown(str(directory / name)) for name in files)
    report = "\n".join([f"wrote     {first}", *(f"          {line}" for line in more), *(f"WARNING   {line}" for line in warnings)])
    data = {"directory": str(directory), "protocol": protocol, "files": list(files), "warnings": warnings}
    next_command = f"cd -- {shell_word(directory)} && shoal check study.toml --data data/example.csv"
    if from_ is not None:
        next_command = f"shoal check {shell_word(directory / 'study.toml')} --data {shell_word(from_)}"
    emit(data, report, json=json, next_command=next_command)


def _not_chosen(directory: Path, table: Table | None, source: str | None, label: str | None) -> UsageError:
    """Which protocol fits, by who holds the rows and by what the label is; nobody can read from a table who holds it."""
    fits = "anonml"
    if table is not None:
        try:
            study_like(table, "anonml", label)
        except SpecError:
            study_like(table, "pfds", label)
            fits = "pfds"
    of_table = "" if table is None else ", whose label is a number" if fits == "pfds" else ", whose label has classes"
    why = "anonml fits people with one row each; ddml devices; sdq databases that answer counts; pfds organisations that share data."
    what = f"--protocol is not given: it says who holds the rows{'' if table is None else ' of this table' + of_table}."
    why += " Only ddml and pfds predict a number." if fits == "pfds" else ""
    # A label that is in the table, as here, is printable.
    rest = ("" if source is None else f" --from {shell_word(source)}") + ("" if label is None else f" --label {shlex.quote(label)}")
    return UsageError("USAGE-001", what, why=why, fix=f"For example: shoal new {shell_word(directory)} --protocol {fits}{rest}")


def write_directory(directory: Path, files: dict[str, str]) -> None:
    """Write files into a new or empty directory, all of them or none: they are prepared aside and moved into place at the end."""
    try:
        is_new = not directory.exists()
        if directory.is_symlink() or (not is_new and not _is_empty(directory)):
            raise UsageError(
                "NEW-001", f"{shown(str(directory))} is already there, and not an empty directory.", fix="Choose a new directory."
            )
        if not directory.parent.is_dir():
            what = f"There is no directory {shown(str(directory.parent))} to write into."
            raise UsageError("NEW-001", what, fix=f"mkdir -p -- {shell_word(directory.parent)}")
        staging = (directory.parent if is_new else directory) / f".{directory.name}.{os.getpid()}.new"
        staging.mkdir()
        try:
            for name, text in files.items():
                (staging / name).parent.mkdir(exist_ok=True)
                (staging / name).write_text(text, "utf-8")
            if is_new:
                staging.rename(directory)
            else:
                _move_into(directory, staging)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "its name is not one that a directory can have"
        raise StoreError("NEW-001", f"{shown(str(directory))} cannot be written: {reason}.", fix="Choose another directory.") from None


def _move_into(target: Path, staging: Path) -> None:
    """Move the contents rather than replace the directory: someone's shell may be in it. What fails is moved back, to be removed."""
    moved: list[Path] = []
    try:
        for entry in list(staging.iterdir()):
            moved.append(entry.rename(target / entry.name))
        staging.rmdir()
    except BaseException:
        for entry in moved:
            entry.rename(staging / entry.name)
        raise


def _is_empty(directory: Path) -> bool:
    return directory.is_dir() and not any(directory.iterdir())
