"""Files of ``shoal ledger``: the ledger itself, and output files for its owner.

The commands call these functions before they read or write a file. A new ledger is announced, and
without a terminal an option must allow it: a ledger that was lost or is elsewhere must not be
replaced by an empty one unnoticed. An output file must not replace the ledger, and only its owner
can read it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from shoal.cli.runtime import interrupt_immediately
from shoal.errors import StoreError, UsageError
from shoal.files import write_private
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.ledger_storage import path_exists
from shoal.text import escape_text


def announce_ledger(path: Path, *, new_ledger: bool) -> Path:
    """Return the path of a ledger that may be created; announce it if it does not exist.

    Raise ``LEDGER-010`` if there is no terminal to announce it at, and ``--new-ledger`` is not
    given.
    """
    if path_exists(path):
        return path
    if not (new_ledger or sys.stdin.isatty()):
        raise StoreError(
            "LEDGER-010",
            f"There is no ledger at {path}.",
            why="A new ledger would not know what you sent in earlier studies, and there is no "
            "terminal to announce it at. Nothing was sent.",
            fix="If you have no ledger yet: --new-ledger. Otherwise give its path: --ledger PATH, "
            "or SHOAL_LEDGER.",
        )
    print(
        f"A new ledger starts at {escape_text(str(path))}; earlier studies are not known.",
        file=sys.stderr,
        flush=True,
    )
    return path


def check_date(
    ledger: LedgerFile,
    now: datetime,
    date: str | None,
    *,
    can_ask: bool,
    ask: Callable[[str], str] = input,
) -> None:
    """Check a clock that is far ahead of the ledger's last record: by an option, or by asking.

    Parameters
    ----------
    date
        The date that the person gave, in UTC; None if no date was given.
    """
    today = f"{now:%Y-%m-%d}"
    if date not in (None, today):
        raise UsageError(
            "USAGE-001",
            f"--date {date!a:.60} is not the date of your clock, {today} in UTC.",
            fix="Set the clock, or give the date as it shows it.",
        )
    try:
        ledger.check_clock()
    except StoreError as error:
        if date is None:
            if not can_ask:
                raise
            print(f"{error.what}\n{error.why}")
            if not _is_confirmed(f"Is {today} the right date (UTC)?   [y] yes   [N] no  ", ask):
                raise
        ledger.confirm_date()


def _is_confirmed(question: str, ask: Callable[[str], str]) -> bool:
    try:
        with interrupt_immediately():
            return ask(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def require_ledger(path: Path) -> Path:
    """Return the path of a ledger; raise ``LEDGER-010`` if there is none."""
    if not path_exists(path):
        raise StoreError(
            "LEDGER-010",
            f"There is no ledger at {path}.",
            why="Nothing was spent yet, or the file was moved or deleted.",
            fix="Give its path: --ledger PATH, or SHOAL_LEDGER. The first release creates a new "
            "ledger.",
        )
    return path


def check_output_file(target: Path, ledger: Path, endings: tuple[str, ...]) -> None:
    """Raise ``USAGE-001`` if a file has another ending, or is the ledger itself."""
    if target.suffix.lower() not in endings:
        listed = (
            f"neither in {' nor in '.join(endings)}" if len(endings) > 1 else f"not in {endings[0]}"
        )
        raise UsageError(
            "USAGE-001",
            f"{target} ends {listed}.",
            fix=f"Give a name that ends in {' or '.join(endings)}.",
        )
    if target.resolve() == ledger.resolve():
        raise UsageError("USAGE-001", f"{target} is the ledger itself.", fix="Give another file.")


def write_private_text(path: Path, text: str, option: str) -> None:
    """Write a text file that only its owner can read; ``LEDGER-001`` if it cannot be written."""
    write_private(
        path,
        text.encode("utf-8", "backslashreplace"),
        code="LEDGER-001",
        fix=f"Give another file: {option} FILE",
    )
