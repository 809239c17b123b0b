"""``shoal ledger``: what was spent, on what, for whom; the limits; and whether the file is still the one that it was."""

from __future__ import annotations

import json as json_format
from dataclasses import replace
from pathlib import Path

from cyclopts import App

from shoal.cli.ledger_files import check_target, existing, source_name, write_private
from shoal.cli.ledger_page import page
from shoal.cli.ledger_view import csv_text, history_text, limits_text, new_limits_text, pending_text, total_data, totals_text, usage_data
from shoal.cli.output import emit
from shoal.clock import SystemClock
from shoal.errors import ShoalError, UsageError
from shoal.participant.ledger_db import is_there
from shoal.participant.ledger_file import LedgerFile, default_path
from shoal.privacy.events import Relation, Unit
from shoal.privacy.limits import DEFAULT_LIMITS, Limit, Period
from shoal.privacy.rounding import delta_grains_down, from_grains, grains_down

app = App(name="ledger", help="What was spent, on what, for whom: show, page, verify, limit, export.", help_format="markdown")
app.command(page)

_TO_SET = "shoal ledger limit --epsilon 2 --per month"


@app.command
def show(*, ledger: Path | None = None, json: bool = False) -> None:
    """Show what was spent and held, the limits, what waits, and what was sent to whom.

    Parameters
    ----------
    ledger
        The ledger file; SHOAL_LEDGER or the user's data directory where it is not given.
    json
        Print one JSON object.
    """
    path = ledger or default_path()
    if not is_there(path):
        _show_none(path, json=json)
        return
    with LedgerFile(path, SystemClock()) as book:
        head, totals, limits, pending, history = book.head(), book.totals(), book.limits(), book.pending(), book.history()
    data = {
        "ledger": str(path),
        "exists": True,
        "head": str(head),
        "totals": [total_data(total) for total in totals],
        "limits": [usage_data(usage) for usage in limits],
        "pending": [entry.to_dict() for entry in pending],
        "history": [entry.to_dict() for entry in history],
    }
    parts = [f"Ledger {path}, {head.seq} records", totals_text(totals), limits_text(limits), pending_text(pending), history_text(history)]
    emit(data, "\n\n".join(parts), json=json, next_command="shoal ledger verify")


@app.command
def verify(*, head: str | None = None, ledger: Path | None = None, json: bool = False) -> None:
    """Check every record and every stored byte, and print the head to note down.

    Whoever can write the file can rewrite it whole, or put back an older copy. A head that you noted elsewhere shows that.

    Parameters
    ----------
    head
        A head noted earlier, as this command printed it: number, colon, hash (16 digits of it or more).
    ledger
        The ledger file; SHOAL_LEDGER or the user's data directory where it is not given.
    json
        Print one JSON object.
    """
    path = existing(ledger or default_path())
    with LedgerFile(path, SystemClock()) as book:
        found = book.verify(head)
    compared = " The head that you noted is in it." if head else ""
    text = f"The ledger {path} is whole: {found.seq} records.{compared}\nIts head, to note down in another place:\n  {found}"
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
    unit: Unit = Unit.PERSON,
    relation: Relation = Relation.REPLACE,
    source: str | None = None,
    feature: str | None = None,
    remove: bool = False,
    ledger: Path | None = None,
    json: bool = False,
) -> None:
    """List the limits, or set one.

    Every release must be bounded by some limit on epsilon; a new ledger starts with 4.0 a year for each unit, under replace.
    All limits that concern a release are kept. A release under add-remove counts twice under replace; a release under replace
    cannot be counted under add-remove, and is refused where such a limit stands.

    Parameters
    ----------
    epsilon
        The most that may be spent, as a plain sum. 0 allows nothing.
    delta
        The most that the deltas may add up to: chances that nothing is promised. 0 allows pure releases only.
    releases
        The most releases that may be made.
    per
        Calendar period, in UTC; "ever" for a limit in all.
    unit
        What is protected as a whole.
    relation
        Between which neighbours: "replace" changes the unit's data, "add-remove" has it there or not at all.
    source
        For one data source, a table's path as join is given it; without it, all sources are counted together.
    feature
        For the releases that read this feature. It is a cap on releases, no claim about the fact, which may be guessed from other features.
    remove
        Remove the limit that has this period, unit, relation, source and feature.
    ledger
        The ledger file; SHOAL_LEDGER or the user's data directory where it is not given.
    json
        Print one JSON object.
    """
    path = ledger or default_path()
    new = Limit(unit, _grains(epsilon), relation, per, source, feature, _count(releases), _delta_grains(delta))
    is_set = new.caps_anything
    if is_set and remove:
        raise UsageError("USAGE-001", "A limit is either set or removed.", fix="Leave out --remove, or --epsilon, --delta and --releases.")
    if not (is_set or remove) and new != Limit(Unit.PERSON, None):
        raise UsageError(
            "USAGE-001", f"Nothing is said of what to do with the limit ({new}).", fix="Add --epsilon, --delta, --releases or --remove."
        )
    if not (is_set or remove or is_there(path)):
        _show_none(path, json=json)
        return
    with LedgerFile(path, SystemClock()) as book:
        if is_set or remove:
            _change(book, replace(new, source=_source(book, new.source)))
        limits = book.limits()
    data = {"ledger": str(path), "limits": [usage_data(usage) for usage in limits]}
    emit(data, limits_text(limits), json=json, next_command="shoal ledger show" if is_set or remove else _TO_SET)


def _source(book: LedgerFile, given: str | None) -> str | None:
    """The name under which the ledger counts a source: as it is where the ledger has it, else as ``shoal join`` would call that table."""
    known = {total.source for total in book.totals()} | {usage.limit.source for usage in book.limits()}
    return given if given is None or given in known else source_name(given)


@app.command
def export(*, to: Path | None = None, ledger: Path | None = None, json: bool = False) -> None:
    """Write out every entry, limit and total; all but the stored bytes themselves.

    Parameters
    ----------
    to
        A file ending in .json, or in .csv for the entries alone; without it the entries are printed as CSV, or everything with --json.
    ledger
        The ledger file; SHOAL_LEDGER or the user's data directory where it is not given.
    json
        Print one JSON object.
    """
    path = existing(ledger or default_path())
    if to is not None:
        check_target(to, path, (".json", ".csv"))
    with LedgerFile(path, SystemClock()) as book:
        head, totals, limits, entries = book.head(), book.totals(), book.limits(), book.entries()
    data = {
        "ledger": str(path),
        "head": str(head),
        "totals": [total_data(total) for total in totals],
        "limits": [usage_data(usage) for usage in limits],
        "entries": [entry.to_dict() for entry in entries],
    }
    if to is None:
        emit(data, csv_text(entries).rstrip("\n"), json=json)
        return
    text = csv_text(entries) if to.suffix.lower() == ".csv" else json_format.dumps(data, ensure_ascii=False, indent=1) + "\n"
    write_private(to, text, "--to")
    summary = {"ledger": str(path), "to": str(to), "entries": len(entries)}
    emit(summary, f"Wrote {len(entries)} entries of {path} to {to}.", json=json, next_command="shoal ledger verify")


def _change(book: LedgerFile, new: Limit) -> None:
    """Set a limit, keeping the caps that are not mentioned; or remove it, where none is."""
    old = next((usage.limit for usage in book.limits() if usage.limit.key == new.key), None)
    if not new.caps_anything and old is None:
        raise UsageError("LEDGER-009", f"There is no limit to remove ({new}).", fix="shoal ledger limit lists them.")
    if old is not None and new.caps_anything:
        kept = {name: getattr(old, name) for name in ("grains", "releases", "delta_grains") if getattr(new, name) is None}
        new = replace(new, **kept)
    book.set_limit(new)


def _show_none(path: Path, *, json: bool) -> None:
    text = f"There is no ledger at {path} yet: nothing was spent. It starts with the first release, and with these limits:\n"
    data = {"ledger": str(path), "exists": False, "head": None, "totals": [], "limits": [], "pending": [], "history": []}
    data["default_limits"] = [{"about": str(limit), "epsilon": str(from_grains(limit.grains or 0))} for limit in DEFAULT_LIMITS]
    emit(data, text + new_limits_text(DEFAULT_LIMITS), json=json, next_command=_TO_SET)


def _grains(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return grains_down(float(text))
    except (ValueError, ShoalError):
        raise UsageError("USAGE-001", f"--epsilon {text!r:.60} is not a limit.", fix="Give a number, zero or more: --epsilon 2.5") from None


def _delta_grains(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return delta_grains_down(float(text))
    except (ValueError, ShoalError):
        raise UsageError("USAGE-001", f"--delta {text!r:.60} is not a limit.", fix="Give a small number: --delta 1e-5") from None


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise UsageError("USAGE-001", f"--releases {text!r:.60} is not a number of releases.", fix="Give a whole number: --releases 10")
    return int(text)
