"""How ``shoal hello`` speaks: a line as soon as there is one, and at a terminal also what goes on at the moment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from shutil import get_terminal_size
from textwrap import wrap

from shoal.names import shown

N_STEPS = 4
_INDENT, _WORDS = 5, 15
_NARROW = 60
"""Narrower terminals break lines by themselves."""


@dataclass
class Stage:
    """Where the demonstration is shown.

    Parameters
    ----------
    is_quiet
        Whether one object at the end is all that is wanted.
    tell
        Is told what goes on at the moment.
    width
        Characters of a line at a terminal; None where a line may be as long as it is.
    """

    is_quiet: bool
    tell: Callable[[str], None]
    width: int | None = None

    def step(self, number: int, words: str) -> None:
        """Begin a step."""
        self.tell(words)
        self._print(f"\n{number}/{N_STEPS}  {words}")

    def lines(self, lines: Iterable[tuple[str, str]]) -> None:
        """What came of it, with a word or two in front of each line."""
        indent = " " * (_INDENT + _WORDS)
        for words, line in lines:
            text = f"{' ' * _INDENT}{words:<{_WORDS}}{line}".rstrip()
            broken = [text] if self.width is None else wrap(text, self.width, subsequent_indent=indent, break_long_words=False)
            self._print("\n".join(broken))

    def _print(self, line: str) -> None:
        if not self.is_quiet:
            # Whoever reads by a pipe sees each line when it is there.
            print(line, flush=True)


@contextmanager
def on_stage(head: str, *, is_quiet: bool) -> Iterator[Stage]:
    """A stage; what goes on is shown on standard error, and only at a terminal."""
    if not is_quiet:
        print(head, flush=True)
    columns = get_terminal_size().columns
    width = columns if sys.stdout.isatty() and columns >= _NARROW else None
    if is_quiet or not sys.stderr.isatty():
        yield Stage(is_quiet, lambda _: None, width)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    spinner = Spinner("dots")
    # Lines go above what is shown in place if both are on one terminal, and to where they were meant to go if not.
    with Live(spinner, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty(), redirect_stderr=False):
        yield Stage(is_quiet, lambda line: spinner.update(text=Text(shown(line))), width)
