"""How far a long command has come: a bar for people at a terminal, and nothing for anyone else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error that moves by one with each call; where that is no terminal, a call does nothing.

    Parameters
    ----------
    what
        What is counted, in words of the program's own.
    total
        How many there will be.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), "left", TimeRemainingColumn())
    # Standard output is for the result, whoever reads it, and is left alone.
    bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False)
    with bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
