"""``shoal ledger page``: write the ledger as a web page for its owner.

Only the owner can read the file, and the page must not load or send anything over a network. Text
of a study or a coordinator is cleaned before it is rendered.
"""

from __future__ import annotations

import math
import webbrowser
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from shoal.cli.ledger.paths import check_output_file, require_ledger, write_private_text
from shoal.cli.ledger.view import (
    FEATURE_LIMIT_NOTE,
    LimitCap,
    format_entry,
    format_sent_lines,
    format_total,
    list_caps,
)
from shoal.cli.output import emit
from shoal.clock import SystemClock
from shoal.errors import require_extra
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.ledger_storage import find_ledger_path
from shoal.privacy.ledger.limits import LimitUsage
from shoal.privacy.ledger.records import LedgerHead
from shoal.privacy.ledger.state import LedgerEntry, LedgerTotal, sum_prices
from shoal.privacy.rounding import format_epsilon, from_delta_grains, from_grains
from shoal.text import clean_text, format_count, format_utc, shell_quote

_DEFAULT_PAGE = Path("ledger.html")


def page(
    *,
    out: Path = _DEFAULT_PAGE,
    open: bool = False,  # noqa: A002
    ledger: Path | None = None,
    json: bool = False,
) -> None:
    """Write the ledger as a web page for your browser.

    The page shows what you sent, to whom, at what price, and how much of each limit is left. Every
    record and every stored byte is checked first. The page is one file; it loads nothing and sends
    nothing.

    Parameters
    ----------
    out
        The file to write, which ends in .html. Only you can read it.
    open
        Open it in a browser.
    ledger
        The ledger file. Default: SHOAL_LEDGER, or a file in your data directory.
    json
        Print one JSON object.
    """
    path = require_ledger(ledger or find_ledger_path())
    check_output_file(out, path, (".html", ".htm"))
    require_extra("report", "jinja2", purpose="A page")
    from shoal.web.rendering import render_ledger

    clock = SystemClock()
    with LedgerFile(path, clock) as book:
        head, totals, limits, pending, history = (
            book.verify(),
            book.totals(),
            book.limits(),
            book.list_pending(),
            book.list_history(),
        )
    write_private_text(
        out,
        render_ledger(make_page_data(path, head, totals, limits, pending, history, clock.now())),
        "--out",
    )
    is_open = open and _open_in_browser(out)
    text = (
        f"Wrote the ledger {path}, {format_count(head.seq, 'record')}, to {out}. Only you "
        "can read this page."
    )
    text += "\nNo browser could be opened." if open and not is_open else ""
    data = {
        "ledger": str(path),
        "out": str(out),
        "records": head.seq,
        "head": str(head),
        "opened": is_open,
    }
    emit(data, text, json=json, next_command=_suggest_next(out, ledger, is_shown=open))


def _suggest_next(out: Path, ledger: Path | None, *, is_shown: bool) -> str:
    """Return the command that opens the page, or, if it was opened, one that checks the ledger."""
    ledger_option = "" if ledger is None else f" --ledger {shell_quote(ledger)}"
    if is_shown:
        return f"shoal ledger verify{ledger_option}"
    out_option = "" if out == _DEFAULT_PAGE else f" --out {shell_quote(out)}"
    return f"shoal ledger page{out_option}{ledger_option} --open"


def make_page_data(
    path: Path,
    head: LedgerHead,
    totals: Sequence[LedgerTotal],
    limits: Sequence[LimitUsage],
    pending: Sequence[LedgerEntry],
    history: Sequence[LedgerEntry],
    now: datetime,
) -> dict[str, Any]:
    """Return the content of the page, in the words of ``shoal ledger show``.

    Text of studies and coordinators is cleaned.
    """
    return {
        "path": clean_text(str(path.absolute())),
        "head": str(head),
        "records": format_count(head.seq, "record"),
        "made": format_utc(now),
        "limits": [_make_limit_data(usage) for usage in limits],
        "note": FEATURE_LIMIT_NOTE if any(usage.limit.feature for usage in limits) else None,
        "totals": [clean_text(format_total(total)) for total in totals],
        "pending": [
            f"{entry.state}: {clean_text(format_entry(entry, entry.times[-1][1]))}"
            for entry in pending
        ],
        "studies": _group_by_study(history),
    }


def _make_limit_data(usage: LimitUsage) -> dict[str, Any]:
    return {
        "about": clean_text(str(usage.limit)),
        "caps": [_make_cap_data(cap) for cap in list_caps(usage)],
    }


def _make_cap_data(cap: LimitCap) -> dict[str, Any]:
    """Return a cap and the lengths of its bar in percent, rounded up as all that is spent."""
    used = cap.spent + cap.held
    return {
        "words": cap.description,
        "spent": _compute_percent(cap.spent, cap.maximum),
        "used": _compute_percent(used, cap.maximum),
        "has_bar": cap.maximum > 0 or used > 0 or cap.is_epsilon,
    }


def _compute_percent(part: int, maximum: int) -> float:
    return min(100.0, math.ceil(1000 * part / maximum) / 10) if maximum else 100.0


def _group_by_study(history: Iterable[LedgerEntry]) -> list[dict[str, Any]]:
    """Return what was sent by study, recipient, data and guarantee, the latest study first.

    A sum contains releases of one group only.
    """

    def get_group(entry: LedgerEntry) -> tuple[str, ...]:
        release = entry.release
        return (
            release.study,
            release.title,
            release.recipient,
            release.source,
            str(entry.event.scope),
        )

    groups = [
        (key, list(entries)) for key, entries in groupby(sorted(history, key=get_group), get_group)
    ]
    groups.sort(
        key=lambda group: max(at for entry in group[1] for _, at in entry.times), reverse=True
    )
    return [_make_study_data(key, entries) for key, entries in groups]


def _make_study_data(key: tuple[str, ...], entries: Sequence[LedgerEntry]) -> dict[str, Any]:
    from shoal.study.manifest import shorten_digest

    study, title, recipient, source, scope = key
    epsilon, delta = sum_prices(entries)
    price = f"epsilon {format_epsilon(from_grains(epsilon))}" + (
        f", delta {format_epsilon(from_delta_grains(delta))}" if delta else ""
    )
    return {
        "title": clean_text(title),
        "digest": shorten_digest(bytes.fromhex(study)) if _is_digest(study) else clean_text(study),
        "recipient": clean_text(recipient),
        "source": clean_text(source),
        "price": f"{price} ({clean_text(scope)}), in {format_count(len(entries), 'release')}",
        "entries": [clean_text(line) for entry in entries for line in format_sent_lines(entry)],
    }


def _is_digest(study: str) -> bool:
    return len(study) == 64 and set(study) <= set("0123456789abcdef")


def _open_in_browser(path: Path) -> bool:
    try:
        return webbrowser.open(path.absolute().as_uri())
    except (webbrowser.Error, OSError):
        return False
