"""``shoal report``: what runs have shown, as one HTML file with figures."""

from __future__ import annotations

import json as json_format
import os
import shlex
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from shoal.cli.output import emit
from shoal.errors import ShoalError, SpecError, StoreError, UsageError
from shoal.models import read_model
from shoal.names import shell_word, shown
from shoal.report import report_of
from shoal.report.documents import Run, read_audit, read_document
from shoal.report.views import view_of
from shoal.sim.sweep import settings_name

MAX_BYTES = 1 << 28
NAME = "report.html"
_WRITTEN = ("run.json", "compare.json")
_FETCHED = ("model.json",)
"""What `shoal join --out` has fetched; beside a run it is the run's."""
_AUDIT = "audit.json"
_KINDS_OF_FILES = (
    "A report is made of a run.json (shoal simulate --out), a compare.json (shoal compare --out), or a coordinator's model.json "
    "(shoal join --out)."
)
_MARK = b"<!doctype html>\n"


def report(
    *runs: Path,
    out: Path | None = None,
    open_: Annotated[bool, Parameter(name="--open", negative="")] = False,
    audit: list[Path] | None = None,
    json: bool = False,
) -> None:
    """Write what runs have shown as one HTML file with figures, which loads nothing and needs no network.

    Several runs of one study make one curve of privacy and utility, if they differ in epsilon.

    Parameters
    ----------
    runs
        Directories of `shoal simulate --out`, `shoal compare --out` or `shoal join --out`, or their run.json, compare.json or model.json:
        the last is the result of a coordinator, as GET /v1/studies/DIGEST/model gives it.
    out
        The file to write; without it report.html in the first directory, or beside the first file. An earlier report is replaced.
    open_
        Show it in a browser, where there is a display.
    audit
        What `shoal audit study STUDY --json` prints, in a file; audit.json in a directory is taken by itself.
    json
        Print one JSON object.
    """
    if not runs:
        raise UsageError(
            "USAGE-001", "There is nothing to report on.", fix="shoal report DIR, where DIR is what shoal simulate --out wrote."
        )
    found = [one for path in runs for one in _files(path)]
    # What an error is about is told by the name of its file.
    documents = [_checked(path, _read(path)) for path in found]
    audits = [*(audit or []), *(path / _AUDIT for path in runs if (path / _AUDIT).is_file())]
    measured = [_read(path) for path in audits]
    for path, one in zip(audits, measured, strict=True):
        read_audit(one, shown(str(path)))
    target = _target(runs[0]) if out is None else out
    page = report_of(documents, measured).encode()
    write_page(target, page, [*found, *audits])
    is_shown = open_ and has_display() and webbrowser.open(target.resolve().as_uri())
    data = {"report": str(target), "bytes": len(page), "read": [str(path) for path in (*found, *audits)], "opened": is_shown}
    opened = " (opened)" if is_shown else " (there is no display to open it on)" if open_ else ""
    emit(data, f"wrote     {shown(str(target))}{opened}", json=json, next_command=_next(documents[0], found[0]))


def _files(path: Path) -> list[Path]:
    """The documents of a directory, or the file itself."""
    try:
        if not path.is_dir():
            return [path]
        for names in (_WRITTEN, _FETCHED):
            there = [path / name for name in names if (path / name).is_file()]
            if there:
                return there
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    raise SpecError(
        "REPORT-001",
        f"{shown(str(path))} holds neither {_WRITTEN[0]} nor {_WRITTEN[1]}.",
        fix="Give a directory that `shoal simulate --out` or `shoal compare --out` has written.",
    )


def _read(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    name = shown(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if len(content) > MAX_BYTES:
        raise SpecError("REPORT-001", f"{name} is larger than {MAX_BYTES:,} bytes.", fix="No run is: give another file.")
    try:
        document = json_format.loads(content)
    except (ValueError, RecursionError):
        raise _no_json(name, content) from None
    if not isinstance(document, dict):
        raise SpecError("REPORT-001", f"{name} is JSON, but no object.", fix="Give a run.json, a compare.json or a coordinator's model.")
    return document


def _no_json(name: str, content: bytes) -> SpecError:
    """A file that begins like an object was cut short, or changed; any other is of another kind."""
    if content.lstrip().startswith(b"{"):
        what = f"{name} is not JSON to its end: it was cut short after {len(content):,} bytes, or changed."
        return SpecError("REPORT-001", what, fix="Run the command again that wrote it.")
    return SpecError("REPORT-001", f"{name} is not JSON.", why=_KINDS_OF_FILES, fix="Give one of these, or a directory that holds one.")


def _unreadable(path: Path, error: OSError | ValueError) -> SpecError:
    reason = (isinstance(error, OSError) and error.strerror) or "no file has such a name"
    return SpecError(
        "REPORT-001", f"{shown(str(path))} cannot be read: {reason}.", fix="shoal simulate STUDY --data FILE --out DIR writes one."
    )


def _checked(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """A document that can be reported on; of a run with a tree also its model, which is in a file beside it."""
    read = read_document(document, shown(str(path)))
    if not isinstance(read, Run):
        return document
    point = view_of(read, shown(str(path))).point
    if point.tree is None:
        return document
    name = settings_name(point.settings)
    try:
        learned = _read((path.parent / name if name else path.parent) / "model.json")
        read_model(learned)
    except ShoalError:
        return document  # the run has the tree as text too
    return document | {"learned": learned}


def _target(first: Path) -> Path:
    return first / NAME if first.is_dir() else first.parent / NAME


def write_page(path: Path, page: bytes, made_of: list[Path]) -> None:
    """Write a page, whole or not at all; over an earlier page, and over nothing else.

    Raises
    ------
    UsageError
        ``REPORT-003``: something else is there.
    StoreError
        ``REPORT-003``: it cannot be written.
    """
    staging = path.parent / f".{path.name}.{os.getpid()}.new"
    try:
        if any(path.exists() and one.exists() and path.samefile(one) for one in made_of) or not _is_free(path):
            what = f"{shown(str(path))} is already there, and is no page of shoal."
            raise UsageError("REPORT-003", what, fix="Give another file: --out FILE.html")
        try:
            with staging.open("xb") as file:
                file.write(page)
            staging.replace(path)
        except BaseException:
            staging.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "no file has such a name"
        raise StoreError(
            "REPORT-003", f"{shown(str(path))} cannot be written: {reason}.", fix="Give another file: --out FILE.html"
        ) from None


def _is_free(path: Path) -> bool:
    """Whether nothing is there, or a page that shoal has written."""
    if not os.path.lexists(path):
        return True
    if path.is_dir():
        return False
    with path.open("rb") as file:
        begin = file.read(1000)
    return begin.startswith(_MARK) and b'<meta name="generator" content="shoal ' in begin


def has_display() -> bool:
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _next(document: dict[str, Any], path: Path) -> str:
    """The study on one page, where the run says which study it was; else the model."""
    try:
        words = shlex.split(str(document.get("command", "")))
    except ValueError:
        words = []
    if len(words) > 2 and words[0] == "shoal":
        return f"shoal statement {shell_word(words[2])}"
    return f"shoal model show {shell_word(path)}"
