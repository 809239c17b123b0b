"""``shoal ledger``: show what was spent, set limits, verify and export the ledger file.

`shoal.cli.ledger.view` formats the output, and `shoal.cli.ledger.page` writes it as a web page.
``show`` and ``limit`` without options must not create a ledger: only a change creates the file.
"""

from __future__ import annotations

import json as json_format
from dataclasses import replace
from pathlib import Path

from cyclopts import App

from shoal.cli.arguments import make_source_name
from shoal.cli.ledger.page import page
from shoal.cli.ledger.paths import (
    announce_ledger,
    check_output_file,
    require_ledger,
    write_private_text,
)
from shoal.cli.ledger.view import (
    format_csv,
    format_history,
    format_limits,
    format_new_limits,
    format_pending,
    format_totals,
    make_total_data,
    make_usage_data,
)
from shoal.cli.output import emit
from shoal.clock import SystemClock
from shoal.errors import ShoalError, UsageError
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.ledger_storage import find_ledger_path, path_exists
from shoal.privacy.events import Relation, Unit
from shoal.privacy.ledger.limits import DEFAULT_LIMITS, Limit, Period
from shoal.privacy.rounding import delta_grains_down, from_grains, grains_down

app = App(
    name="ledger",
    help="Your ledger: what you sent, to whom, at what price, and your limits.",
    help_format="markdown",
)
app.command(page)

_SET_COMMAND = "shoal ledger limit --epsilon 2 --per month"


@app.command
def show(*, ledger: Path | None = None, json: bool = False) -> None:
    """Show what was spent and held, the limits, what is not sent yet, and what was sent to whom.

    Parameters
    ----------
    ledger
        The ledger file. Default: SHOAL_LEDGER, or a file in your data directory.
    json
        Print one JSON object.
    """
    path = ledger or find_ledger_path()
    if not path_exists(path):
        _show_missing(path, json=json)
        return
    with LedgerFile(path, SystemClock()) as book:
        head, totals, limits, pending, history = (
            book.read_head(),
            book.totals(),
            book.limits(),
            book.list_pending(),
            book.list_history(),
        )
    data = {
        "ledger": str(path),
        "exists": True,
        "head": str(head),
        "totals": [make_total_data(total) for total in totals],
        "limits": [make_usage_data(usage) for usage in limits],
        "pending": [entry.to_dict() for entry in pending],
        "history": [entry.to_dict() for entry in history],
    }
    parts = [
        f"Ledger {path}, {head.seq} records",
        format_totals(totals),
        format_limits(limits),
        format_pending(pending),
        format_history(history),
    ]
    emit(data, "\n\n".join(parts), json=json, next_command="shoal ledger verify")


@app.command
def verify(*, head: str | None = None, ledger: Path | None = None, json: bool = False) -> None:
    """Check every record and every stored byte, and print the head to note down.

    Anyone who can write the file can rewrite all of it, or restore an older copy. Only a head that
    you noted in another place shows that.

    Parameters
    ----------
    head
        A head that this command printed earlier: number, colon, and at least 16 digits of the
        hash.
    ledger
        The ledger file. Default: SHOAL_LEDGER, or a file in your data directory.
    json
        Print one JSON object.
    """
    path = require_ledger(ledger or find_ledger_path())
    with LedgerFile(path, SystemClock()) as book:
        found = book.verify(head)
    compared = " It contains the head that you noted." if head else ""
    text = (
        f"The ledger {path} is complete: {found.seq} records.{compared}\nNote down its head in "
        f"another place:\n  {found}"
    )
    emit(
        {"ledger": str(path), "records": found.seq, "head": str(found), "compared_with": head},
        text,
        json=json,
        next_command="shoal ledger show",
    )


@app.command
def limit(
    *,
    epsilon: str | None = None,
    delta: str | None = None,
    releases: str | None = None,
    per: Period = Period.YEAR,
    unit: Unit | None = None,
    relation: Relation = Relation.REPLACE,
    source: str | None = None,
    feature: str | None = None,
    max_rows_per_person: str | None = None,
    remove: bool = False,
    ledger: Path | None = None,
    new_ledger: bool = False,
    json: bool = False,
) -> None:
    """List the limits, or set one.

    A release is refused unless a limit on epsilon applies to it. A new ledger has one limit:
    epsilon 4.0 and delta 0.0001 a year for everything together, under replace. If several limits
    apply to a release, it must meet all of them. A release under add-remove counts twice under
    replace. A release under replace has no price under add-remove, so it is refused if such a limit
    applies to it.

    Parameters
    ----------
    epsilon
        The most epsilon that may be spent, summed over studies. 0 allows nothing.
    delta
        The largest sum of deltas. Delta limits how often the loss may exceed epsilon. 0 allows only
        releases without a delta.
    releases
        The largest number of releases.
    per
        Calendar period, in UTC; "ever" for a limit without a period.
    unit
        Only for studies that protect this unit. Without it, all studies are counted together,
        whatever their protocol and unit.
    relation
        Neighbouring relation: "replace" changes the data of one unit, "add-remove" adds or removes
        it.
    source
        Only for one data source: the path of a table, as in shoal join. Without it, all sources are
        counted together.
    feature
        Only for releases that read this feature. This limits releases. It does not hide the value
        of the feature, which may be guessed from other features.
    max_rows_per_person
        The most rows that one person has in your data. A study that protects single rows counts
        this many times. Default: 1, so that the limit protects one row in such studies. Only
        without --unit.
    remove
        Remove the limit that has this period, unit, relation, source and feature.
    ledger
        The ledger file. Default: SHOAL_LEDGER, or a file in your data directory.
    new_ledger
        Start a new ledger if there is none; needed without a terminal.
    json
        Print one JSON object.
    """
    path, rows = (
        ledger or find_ledger_path(),
        _parse_count("max-rows-per-person", max_rows_per_person),
    )
    new = Limit(
        unit,
        _parse_epsilon(epsilon),
        relation,
        per,
        source,
        feature,
        _parse_count("releases", releases),
        _parse_delta(delta),
        1 if rows is None else rows,
    )
    is_set = new.has_cap or rows is not None
    if is_set and remove:
        raise UsageError(
            "USAGE-001",
            "--remove cannot be combined with a new limit.",
            fix="Leave out --remove, or all other limits.",
        )
    if not (is_set or remove) and new != Limit(None, None):
        raise UsageError(
            "USAGE-001",
            f"The options name a limit ({new}), but not what to do with it.",
            fix="Add --epsilon, --delta, --releases or --remove.",
        )
    if not (is_set or remove or path_exists(path)):
        _show_missing(path, json=json)
        return
    announce_ledger(path, new_ledger=new_ledger)
    with LedgerFile(path, SystemClock()) as book:
        if is_set or remove:
            new = replace(new, source=_resolve_source(book, new.source))
            _change_limit(book, new, remove=remove, keep_rows=rows is None)
        limits = book.limits()
    data = {"ledger": str(path), "limits": [make_usage_data(usage) for usage in limits]}
    emit(
        data,
        format_limits(limits),
        json=json,
        next_command="shoal ledger show" if is_set or remove else _SET_COMMAND,
    )


def _resolve_source(ledger: LedgerFile, given: str | None) -> str | None:
    """Return the name of a data source in the ledger.

    This is the given name if the ledger has it, or else the name that ``shoal join`` would give to
    that table.
    """
    known = {total.source for total in ledger.totals()} | {
        usage.limit.source for usage in ledger.limits()
    }
    return given if given is None or given in known else make_source_name(given)


@app.command
def export(*, to: Path | None = None, ledger: Path | None = None, json: bool = False) -> None:
    """Write every entry, limit and total to a file, or print them. Stored bytes are left out.

    Parameters
    ----------
    to
        A file that ends in .json, or in .csv for the entries alone. Without it, the entries are
        printed as CSV, or everything with --json.
    ledger
        The ledger file. Default: SHOAL_LEDGER, or a file in your data directory.
    json
        Print one JSON object.
    """
    path = require_ledger(ledger or find_ledger_path())
    if to is not None:
        check_output_file(to, path, (".json", ".csv"))
    with LedgerFile(path, SystemClock()) as book:
        head, totals, limits, entries = (
            book.read_head(),
            book.totals(),
            book.limits(),
            book.entries(),
        )
    data = {
        "ledger": str(path),
        "head": str(head),
        "totals": [make_total_data(total) for total in totals],
        "limits": [make_usage_data(usage) for usage in limits],
        "entries": [entry.to_dict() for entry in entries],
    }
    if to is None:
        emit(data, format_csv(entries).rstrip("\n"), json=json)
        return
    text = (
        format_csv(entries)
        if to.suffix.lower() == ".csv"
        else json_format.dumps(data, ensure_ascii=False, indent=1) + "\n"
    )
    write_private_text(to, text, "--to")
    summary = {"ledger": str(path), "to": str(to), "entries": len(entries)}
    emit(
        summary,
        f"Wrote {len(entries)} entries of {path} to {to}.",
        json=json,
        next_command="shoal ledger verify",
    )


def _change_limit(ledger: LedgerFile, new: Limit, *, remove: bool, keep_rows: bool) -> None:
    """Set a limit and keep what was not given; or remove the limit."""
    old = next((usage.limit for usage in ledger.limits() if usage.limit.key == new.key), None)
    if old is None and not new.has_cap:
        raise UsageError(
            "LEDGER-009",
            f"There is no limit to {'remove' if remove else 'change'} ({new}).",
            fix="List the limits: shoal ledger limit",
        )
    if old is not None and not remove:
        kept = {
            name: getattr(old, name)
            for name in ("grains", "releases", "delta_grains")
            if getattr(new, name) is None
        }
        rows = old.max_rows_per_person if keep_rows else new.max_rows_per_person
        new = replace(new, **kept, max_rows_per_person=rows)
    ledger.set_limit(new)


def _show_missing(path: Path, *, json: bool) -> None:
    text = (
        f"There is no ledger at {path} yet: nothing was spent. The first release creates it with "
        "these limits:\n"
    )
    data = {
        "ledger": str(path),
        "exists": False,
        "head": None,
        "totals": [],
        "limits": [],
        "pending": [],
        "history": [],
    }
    data["default_limits"] = [
        {"about": str(limit), "epsilon": str(from_grains(limit.grains or 0))}
        for limit in DEFAULT_LIMITS
    ]
    emit(data, text + format_new_limits(DEFAULT_LIMITS), json=json, next_command=_SET_COMMAND)


def _parse_epsilon(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return grains_down(float(text))
    except (ValueError, ShoalError):
        raise UsageError(
            "USAGE-001",
            f"--epsilon {text!r:.60} is not a limit.",
            fix="Give a number, zero or more: --epsilon 2.5",
        ) from None


def _parse_delta(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return delta_grains_down(float(text))
    except (ValueError, ShoalError):
        raise UsageError(
            "USAGE-001",
            f"--delta {text!r:.60} is not a limit.",
            fix="Give a small number: --delta 1e-5",
        ) from None


def _parse_count(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise UsageError(
            "USAGE-001",
            f"--{option} {text!r:.60} is not a number.",
            fix=f"Give a whole number: --{option} 10",
        )
    return int(text)
