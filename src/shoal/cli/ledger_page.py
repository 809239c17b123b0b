"""``shoal ledger page``: the ledger as a page of one's own, in a file that nobody else can read and that asks nothing of any network."""

from __future__ import annotations

import importlib.util
import math
import webbrowser
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from shoal.cli.ledger_files import check_target, existing, write_private
from shoal.cli.ledger_view import PER_FEATURE, Cap, caps_of, entry_line, sent_lines, total_line
from shoal.cli.output import emit
from shoal.clock import SystemClock
from shoal.errors import UsageError
from shoal.names import counted, shell_word
from shoal.participant.ledger_file import LedgerFile, default_path
from shoal.privacy.ledger import Entry, Total
from shoal.privacy.limits import Usage
from shoal.privacy.records import Head
from shoal.privacy.rounding import from_delta_grains, from_grains, show
from shoal.study.typeset import clean, moment

_PAGE = Path("ledger.html")


def page(*, out: Path = _PAGE, open: bool = False, ledger: Path | None = None, json: bool = False) -> None:  # noqa: A002
    """Write the ledger as a page for your own browser: what was spent, on what, for whom, and how much of each limit is left.

    Every record and every stored byte is checked first. The page is one file; it loads nothing and sends nothing.

    Parameters
    ----------
    out
        The file to write, ending in .html. You alone can read it.
    open
        Open it in a browser.
    ledger
        The ledger file; SHOAL_LEDGER or the user's data directory where it is not given.
    json
        Print one JSON object.
    """
    path = existing(ledger or default_path())
    check_target(out, path, (".html", ".htm"))
    if importlib.util.find_spec("jinja2") is None:
        raise UsageError("USAGE-002", "A page needs a library that is not installed.", fix="pip install 'shoal[report]'")
    from shoal.web.ledger import ledger_page

    clock = SystemClock()
    with LedgerFile(path, clock) as book:
        head, totals, limits, pending, history = book.verify(), book.totals(), book.limits(), book.pending(), book.history()
    write_private(out, ledger_page(page_data(path, head, totals, limits, pending, history, clock.now())), "--out")
    is_open = open and _opened(out)
    text = f"Wrote the ledger {path}, {counted(head.seq, 'record')}, to {out}: a page that you alone can read."
    text += "\nNo browser could be opened." if open and not is_open else ""
    data = {"ledger": str(path), "out": str(out), "records": head.seq, "head": str(head), "opened": is_open}
    emit(data, text, json=json, next_command=_next(out, ledger, is_shown=open))


def _next(out: Path, ledger: Path | None, *, is_shown: bool) -> str:
    """The same page in a browser, or where that was asked for, a look at the ledger itself."""
    of = "" if ledger is None else f" --ledger {shell_word(ledger)}"
    if is_shown:
        return f"shoal ledger verify{of}"
    to = "" if out == _PAGE else f" --out {shell_word(out)}"
    return f"shoal ledger page{to}{of} --open"


def page_data(
    path: Path,
    head: Head,
    totals: Sequence[Total],
    limits: Sequence[Usage],
    pending: Sequence[Entry],
    history: Sequence[Entry],
    now: datetime,
) -> dict[str, Any]:
    """What the page says, in the words of ``shoal ledger show``; words of strangers are made harmless."""
    return {
        "path": clean(str(path.absolute())),
        "head": str(head),
        "records": counted(head.seq, "record"),
        "made": moment(now),
        "limits": [_limit(usage) for usage in limits],
        "note": PER_FEATURE if any(usage.limit.feature for usage in limits) else None,
        "totals": [clean(total_line(total)) for total in totals],
        "pending": [f"{entry.state}: {clean(entry_line(entry, entry.times[-1][1]))}" for entry in pending],
        "studies": _studies(history),
    }


def _limit(usage: Usage) -> dict[str, Any]:
    return {"about": clean(str(usage.limit)), "caps": [_cap(cap) for cap in caps_of(usage)]}


def _cap(cap: Cap) -> dict[str, Any]:
    """A cap with its bar, of 100: rounded up, as everything that is spent."""
    used, most = cap.spent + cap.held, cap.most
    spent, both = (_of_100(part, most) for part in (cap.spent, used))
    return {"words": cap.words, "spent": spent, "used": both, "has_bar": cap.most > 0 or used > 0 or cap.is_epsilon}


def _of_100(part: int, most: int) -> float:
    return min(100.0, math.ceil(1000 * part / most) / 10) if most else 100.0


def _studies(history: Iterable[Entry]) -> list[dict[str, Any]]:
    """What was sent, by study, recipient, data and guarantee: sums of one kind alone. The latest study comes first."""

    def kind(entry: Entry) -> tuple[str, ...]:
        release = entry.release
        return (release.study, release.title, release.recipient, release.source, str(entry.event.scope))

    groups = [(key, list(entries)) for key, entries in groupby(sorted(history, key=kind), kind)]
    groups.sort(key=lambda group: max(at for entry in group[1] for _, at in entry.times), reverse=True)
    return [_study(key, entries) for key, entries in groups]


def _study(key: tuple[str, ...], entries: Sequence[Entry]) -> dict[str, Any]:
    from shoal.study.manifest import short

    study, title, recipient, source, scope = key
    epsilon, delta = (sum(getattr(entry, name) for entry in entries) for name in ("cost", "delta"))
    price = f"epsilon {show(from_grains(epsilon))}" + (f", delta {show(from_delta_grains(delta))}" if delta else "")
    return {
        "title": clean(title),
        "digest": short(bytes.fromhex(study)) if _is_digest(study) else clean(study),
        "recipient": clean(recipient),
        "source": clean(source),
        "price": f"{price} ({clean(scope)}), in {counted(len(entries), 'release')}",
        "entries": [clean(line) for entry in entries for line in sent_lines(entry)],
    }


def _is_digest(study: str) -> bool:
    return len(study) == 64 and set(study) <= set("0123456789abcdef")


def _opened(path: Path) -> bool:
    try:
        return webbrowser.open(path.absolute().as_uri())
    except (webbrowser.Error, OSError):
        return False
