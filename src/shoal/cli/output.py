"""Text and JSON output; progress bars.

Every command prints one JSON object with ``--json``, or text that ends with the likely next
command. Progress is shown on terminals only.
"""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from shoal.errors import ShoalError


def emit(
    data: Mapping[str, object], text: str, *, json: bool, next_command: str | None = None
) -> None:
    """Print a command's result.

    Parameters
    ----------
    data, text
        The result as plain data, and the same for people.
    json
        Print ``data`` instead of ``text``.
    next_command
        The command that the reader will most likely type next.
    """
    if json:
        print(json_format.dumps(data, allow_nan=False))
        return
    print(text)
    if next_command:
        print(f"\nnext      {next_command}")


def emit_error(error: ShoalError, *, json: bool) -> None:
    """Print an error: sentences on standard error, or with `json` an object on standard output."""
    if json:
        print(json_format.dumps({"error": error.to_dict()}))
    else:
        print(error, file=sys.stderr)


@contextmanager
def show_progress_bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on standard error that advances with each call; without a terminal do nothing.

    Parameters
    ----------
    what
        The counted things. The text must not come from a user or a server.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        "left",
        TimeRemainingColumn(),
    )
    # Standard output is for the result alone.
    bar = Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
