"""``shoal report``: results of runs as one HTML file with charts.

`write_page` also writes the page of ``shoal statement``. It replaces only pages that shoal wrote.
"""

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
from shoal.files import replace_file
from shoal.models import read_model
from shoal.report import make_report
from shoal.report.documents import RunDocument, read_audit, read_document
from shoal.report.views import make_run_view
from shoal.simulation.sweep import format_settings
from shoal.text import escape_text, shell_quote

MAX_BYTES = 1 << 28
REPORT_FILE = "report.html"
_RUN_FILES = ("run.json", "compare.json")
_RESULT_FILES = ("model.json",)
"""Files of `shoal join --out`; next to a run.json it is the run's model."""
_AUDIT_FILE = "audit.json"
_ACCEPTED_FILES = (
    "A report shows a run.json (shoal simulate --out), a compare.json (shoal compare --out), or a "
    "coordinator's model.json (shoal join --out)."
)
_PAGE_PREFIX = b"<!doctype html>\n"


def report(
    *runs: Path,
    out: Path | None = None,
    open_: Annotated[bool, Parameter(name="--open", negative="")] = False,
    audit: list[Path] | None = None,
    json: bool = False,
) -> None:
    """Write results of runs as one HTML file with charts, which needs no network.

    Several runs of one study make one curve of privacy and utility, if they differ in epsilon.

    Parameters
    ----------
    runs
        Directories of `shoal simulate --out`, `shoal compare --out` or `shoal join --out`, or their
        run.json, compare.json or model.json. A model.json is the result of a coordinator, as
        GET /v1/studies/DIGEST/model returns it.
    out
        The file to write; by default report.html in the first directory, or next to the first file.
        An earlier report is replaced.
    open_
        Show the report in a browser, if there is a display.
    audit
        Files with the output of `shoal audit study STUDY --json`; an audit.json in a directory is
        included automatically.
    json
        Print one JSON object.
    """
    if not runs:
        raise UsageError(
            "USAGE-001",
            "shoal report needs at least one directory or file.",
            fix="shoal report DIR, with a directory of shoal simulate --out.",
        )
    paths = [one for path in runs for one in _list_documents(path)]
    # Checked here, so that an error names the file.
    documents = [_check_document(path, _read_json(path)) for path in paths]
    audits = [
        *(audit or []),
        *(path / _AUDIT_FILE for path in runs if (path / _AUDIT_FILE).is_file()),
    ]
    audit_documents = [_read_json(path) for path in audits]
    for path, one in zip(audits, audit_documents, strict=True):
        read_audit(one, escape_text(str(path)))
    target = _choose_output(runs[0]) if out is None else out
    page = make_report(documents, audit_documents).encode()
    write_page(target, page, [*paths, *audits])
    is_shown = open_ and has_display() and webbrowser.open(target.resolve().as_uri())
    data = {
        "report": str(target),
        "bytes": len(page),
        "read": [str(path) for path in (*paths, *audits)],
        "opened": is_shown,
    }
    opened = " (opened)" if is_shown else " (not opened: there is no display)" if open_ else ""
    emit(
        data,
        f"wrote     {escape_text(str(target))}{opened}",
        json=json,
        next_command=_suggest_next(documents[0], paths[0]),
    )


def _list_documents(path: Path) -> list[Path]:
    """Return the documents in a directory, or the file itself."""
    try:
        if not path.is_dir():
            return [path]
        for names in (_RUN_FILES, _RESULT_FILES):
            existing = [path / name for name in names if (path / name).is_file()]
            if existing:
                return existing
    except (OSError, ValueError) as error:
        raise _make_unreadable_error(path, error) from None
    raise SpecError(
        "REPORT-001",
        f"{escape_text(str(path))} has no {_RUN_FILES[0]} and no {_RUN_FILES[1]}.",
        fix="Give a directory that `shoal simulate --out` or `shoal compare --out` wrote.",
    )


def _read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    name = escape_text(str(path))
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _make_unreadable_error(path, error) from None
    if len(content) > MAX_BYTES:
        raise SpecError(
            "REPORT-001",
            f"{name} is larger than {MAX_BYTES:,} bytes.",
            fix="Give another file.",
        )
    try:
        document = json_format.loads(content)
    except (ValueError, RecursionError):
        raise _make_json_error(name, content) from None
    if not isinstance(document, dict):
        raise SpecError(
            "REPORT-001",
            f"{name} is JSON, but not an object.",
            fix="Give a run.json, a compare.json or a coordinator's model.",
        )
    return document


def _make_json_error(name: str, content: bytes) -> SpecError:
    """Return the error for a file that is not JSON.

    A file that begins like an object was truncated or changed; any other has another format.
    """
    if content.lstrip().startswith(b"{"):
        what = (
            f"{name} is not valid JSON: it was truncated after {len(content):,} bytes, or changed."
        )
        return SpecError("REPORT-001", what, fix="Run the command that wrote it again.")
    return SpecError(
        "REPORT-001",
        f"{name} is not JSON.",
        why=_ACCEPTED_FILES,
        fix="Give one of these, or a directory with one.",
    )


def _make_unreadable_error(path: Path, error: OSError | ValueError) -> SpecError:
    reason = (isinstance(error, OSError) and error.strerror) or "this is not a valid file name"
    return SpecError(
        "REPORT-001",
        f"{escape_text(str(path))} cannot be read: {reason}.",
        fix="shoal simulate STUDY --data FILE --out DIR writes one.",
    )


def _check_document(path: Path, document: dict[str, Any]) -> dict[str, Any]:
    """Return a document that can be reported on.

    A run with a tree also gets the model from the file next to it.
    """
    read = read_document(document, escape_text(str(path)))
    if not isinstance(read, RunDocument):
        return document
    point = make_run_view(read, escape_text(str(path))).point
    if point.tree is None:
        return document
    name = format_settings(point.settings)
    try:
        learned = _read_json((path.parent / name if name else path.parent) / "model.json")
        read_model(learned)
    except ShoalError:
        return document  # the run also has the tree as text
    return document | {"learned": learned}


def _choose_output(first: Path) -> Path:
    return first / REPORT_FILE if first.is_dir() else first.parent / REPORT_FILE


def write_page(path: Path, page: bytes, sources: list[Path]) -> None:
    """Write a page atomically; replace only an earlier page of shoal.

    Raises
    ------
    UsageError
        ``REPORT-003``: another file exists at the path.
    StoreError
        ``REPORT-003``: the file cannot be written.
    """
    try:
        if any(
            path.exists() and source.exists() and path.samefile(source) for source in sources
        ) or not _is_replaceable(path):
            what = f"{escape_text(str(path))} already exists and was not written by shoal."
            raise UsageError("REPORT-003", what, fix="Give another file: --out FILE.html")
        replace_file(path, page, code="REPORT-003", fix="Give another file: --out FILE.html")
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "this is not a valid file name"
        raise StoreError(
            "REPORT-003",
            f"{escape_text(str(path))} cannot be written: {reason}.",
            fix="Give another file: --out FILE.html",
        ) from None


def _is_replaceable(path: Path) -> bool:
    """Return whether nothing exists at a path, or a page that shoal wrote."""
    if not os.path.lexists(path):
        return True
    if path.is_dir():
        return False
    with path.open("rb") as file:
        begin = file.read(1000)
    return begin.startswith(_PAGE_PREFIX) and b'<meta name="generator" content="shoal ' in begin


def has_display() -> bool:
    return sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )


def _suggest_next(document: dict[str, Any], path: Path) -> str:
    """Return the statement command if the run names its study, else that of the model."""
    try:
        command = shlex.split(str(document.get("command", "")))
    except ValueError:
        command = []
    if len(command) > 2 and command[0] == "shoal":
        return f"shoal statement {shell_quote(command[2])}"
    return f"shoal model show {shell_quote(path)}"
