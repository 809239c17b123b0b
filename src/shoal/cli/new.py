"""``shoal new``: write a starter study with made-up rows into a new directory."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from shoal.cli.arguments import read_table
from shoal.cli.output import emit
from shoal.clock import SystemClock
from shoal.data.tables import Table
from shoal.entropy import SeededEntropy
from shoal.errors import SpecError, UsageError
from shoal.files import write_directory
from shoal.study.loader import parse_study_text
from shoal.study.plan import make_plan
from shoal.study.registry import PROTOCOLS
from shoal.study.spec import ProtocolName
from shoal.study.starters import format_readme, make_example_csv, read_starter
from shoal.study.starters.drafts import set_closing_time
from shoal.study.starters.infer import infer_study
from shoal.text import escape_text, shell_quote

EXAMPLE_ROWS = 600


def new(
    directory: Path,
    /,
    *,
    protocol: ProtocolName | None = None,
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
        Required. anonml (people, one row each), ddml (devices), sdq (databases), pfds
        (organisations).
    from_
        A table with the columns of the study. Its ranges and values are copied into the study,
        with a warning; its rows are not. Columns that cannot be features (identifiers, dates,
        free text, constants) are left out and listed.
    label
        The column of that table to predict; by default the last.
    json
        Print one JSON object.
    """
    if label is not None and from_ is None:
        raise UsageError(
            "USAGE-001",
            f"--label {escape_text(label)} names a column of a table, but --from is not given.",
            fix="--from rows.csv",
        )
    table = None if from_ is None else read_table(from_)
    if protocol is None:
        raise _missing_protocol_error(directory, table, from_, label)
    text, warnings = (
        (read_starter(protocol), []) if table is None else infer_study(table, protocol, label)
    )
    text = set_closing_time(text, SystemClock().now())
    study = parse_study_text(text)
    make_plan(study)
    example = make_example_csv(study, EXAMPLE_ROWS, SeededEntropy(f"shoal new {protocol}"))
    files = {"study.toml": text, "data/example.csv": example, "README.md": format_readme(study)}
    write_directory(directory, files)
    first, *more = (escape_text(str(directory / name)) for name in files)
    report = "\n".join(
        [
            f"wrote     {first}",
            *(f"          {line}" for line in more),
            *(f"WARNING   {line}" for line in warnings),
        ]
    )
    data = {
        "directory": str(directory),
        "protocol": protocol,
        "files": list(files),
        "warnings": warnings,
    }
    next_command = (
        f"cd -- {shell_quote(directory)} && shoal check study.toml --data data/example.csv"
    )
    if from_ is not None:
        next_command = (
            f"shoal check {shell_quote(directory / 'study.toml')} --data {shell_quote(from_)}"
        )
    emit(data, report, json=json, next_command=next_command)


def _missing_protocol_error(
    directory: Path, table: Table | None, source: str | None, label: str | None
) -> UsageError:
    """Return the error that lists the protocols, with one that fits the label as an example.

    A table does not show who holds its rows, so the protocol cannot be inferred.
    """
    example, *_ = PROTOCOLS
    numeric = [name for name, protocol in PROTOCOLS.items() if protocol.predicts_numbers]
    has_classes = True
    if table is not None:
        try:
            infer_study(table, example, label)
        except SpecError:
            example, has_classes = numeric[-1], False
            infer_study(table, example, label)
    kind = "classes" if has_classes else "a number"
    what = "--protocol is missing. It states who holds the rows" + (
        "." if table is None else f" of this table, which has {kind} as its label."
    )
    why = "; ".join(f"{name} is for {one.suits}" for name, one in PROTOCOLS.items()) + "."
    if not has_classes:
        why += f" Only {' and '.join(numeric)} predict a number."
    # A label that is in the table is printable.
    rest = ("" if source is None else f" --from {shell_quote(source)}") + (
        "" if label is None else f" --label {shlex.quote(label)}"
    )
    return UsageError(
        "USAGE-001",
        what,
        why=why,
        fix=f"For example: shoal new {shell_quote(directory)} --protocol {example}{rest}",
    )
