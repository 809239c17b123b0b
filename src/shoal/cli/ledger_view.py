"""How the ledger looks: lines for people, plain data for programs. What is spent is rounded up, what is left is rounded down."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from shoal.privacy.ledger import Entry, Total
from shoal.privacy.limits import Limit, Period, Usage
from shoal.privacy.records import State
from shoal.privacy.refusal import show_left
from shoal.privacy.rounding import delta_grains_up, float_from_grains, from_delta_grains, from_grains, show, show_allowed

_BAR = 20
PER_FEATURE = (
    "A limit for a feature caps the releases that read it. It is no claim about the fact, which may be guessed from other features."
)
_COLUMNS = ("study", "question", "title", "source", "recipient", "state", "bytes", "sha256")
_EVENT_COLUMNS = ("mechanism", "unit", "relation", "adversary", "epsilon", "delta")


def limits_text(usages: Sequence[Usage]) -> str:
    """Every limit with a bar of how much of it is used."""
    note = f"\n  {PER_FEATURE}" if any(usage.limit.feature for usage in usages) else ""
    return (
        _section("Limits, by the calendar of UTC; what is held counts as spent", map(_usage_line, usages), "none: everything is refused")
        + note
    )


def new_limits_text(limits: Iterable[Limit]) -> str:
    """The limits of a ledger that does not exist yet."""
    lines = []
    for limit in limits:
        epsilon, delta = from_grains(limit.grains or 0), from_delta_grains(limit.delta_grains or 0)
        lines.append(f"  epsilon {show_allowed(epsilon)}, delta {show_allowed(delta)}  ({limit})")
    return "\n".join(lines)


def totals_text(totals: Sequence[Total]) -> str:
    """Sums per data source, unit and neighbouring relation."""
    title = "Spent and held, per data source, unit and neighbouring relation: plain sums, never added across units"
    return _section(title, map(total_line, totals), "nothing")


def pending_text(entries: Sequence[Entry]) -> str:
    """What was begun and is neither sent nor voided."""
    title = "Waiting: begun, and neither sent nor given up"
    return _section(title, (f"{entry.state:<8}  {entry_line(entry, entry.times[-1][1])}" for entry in entries), "nothing")


def history_text(entries: Sequence[Entry]) -> str:
    """What left, to whom, when, how many bytes."""
    return _section("Sent", (line for entry in entries for line in sent_lines(entry)), "nothing")


def sent_lines(entry: Entry) -> list[str]:
    """A release that has left, in one line; none for one that has not."""
    doubt = "" if entry.state is State.SENT else "; not acknowledged, so it may not have arrived"
    return [entry_line(entry, at) + doubt for state, at in entry.times if state is State.SENDING]


def total_line(total: Total) -> str:
    """A sum in one line."""
    sums = f"epsilon {show(from_grains(total.spent))} spent, {show(from_grains(total.held))} held"
    delta = total.spent_delta + total.held_delta
    sums += f", delta {show(from_delta_grains(delta))}" if delta else ""
    releases = "1 release" if total.releases == 1 else f"{total.releases} releases"
    return f"{total.source}: {sums}, in {releases} ({total.unit}, {total.relation}, against {'; '.join(total.adversaries)})"


def entry_line(entry: Entry, at: datetime) -> str:
    """A release in one line."""
    release, scope = entry.release, entry.event.scope
    size = "not drawn yet" if entry.size is None else f"{entry.size} byte{'' if entry.size == 1 else 's'}"
    price = f"epsilon {show(entry.event.epsilon)}" + (f", delta {show(entry.event.delta)}" if entry.event.delta else "")
    about = f"{release.title}, question {release.question}, about {release.source}, to {release.recipient}"
    return f"{at:%Y-%m-%d %H:%M} UTC  {about}: {size}, {price} ({scope})"


def total_data(total: Total) -> dict[str, object]:
    """A total as plain data."""
    return {
        "source": total.source,
        "unit": total.unit.value,
        "relation": total.relation.value,
        "adversaries": list(total.adversaries),
        "epsilon_spent": float_from_grains(total.spent),
        "epsilon_held": float_from_grains(total.held),
        "delta_spent": _delta_float(total.spent_delta),
        "delta_held": _delta_float(total.held_delta),
        "releases": total.releases,
    }


def usage_data(usage: Usage) -> dict[str, object]:
    """A limit and its use as plain data."""
    limit = usage.limit
    return {
        "unit": limit.unit.value,
        "relation": limit.relation.value,
        "period": limit.period.value,
        "since": None if limit.period is Period.EVER else usage.since.isoformat(),
        "source": limit.source,
        "feature": limit.feature,
        "epsilon": None if limit.grains is None else float(from_grains(limit.grains)),
        "epsilon_spent": float_from_grains(usage.spent),
        "epsilon_held": float_from_grains(usage.held),
        "epsilon_left": None if usage.left is None else float(show_left(usage.left, digits=12)),
        "delta": None if limit.delta_grains is None else float(from_delta_grains(limit.delta_grains)),
        "delta_used": _delta_float(usage.delta),
        "max_releases": limit.releases,
        "releases": usage.releases,
        "uncountable": usage.unpriced,
    }


class Cap(NamedTuple):
    """One cap of a limit: in words, and what is spent and held of how much, in the cap's own grains."""

    words: str
    spent: int = 0
    held: int = 0
    most: int = 0
    is_epsilon: bool = False


def caps_of(usage: Usage) -> list[Cap]:
    """What a limit caps, each with how much of it is used."""
    limit, found = usage.limit, []
    if usage.unpriced:
        found.append(Cap(f"cannot be kept: {usage.unpriced} releases under replace count, which no add-remove epsilon bounds"))
    elif limit.grains is not None:
        used, left = show(from_grains(usage.spent + usage.held)), show_left(usage.left or 0)
        words = f"epsilon {used} of {show_allowed(from_grains(limit.grains))}, {left} left"
        found.append(Cap(words, usage.spent, usage.held, limit.grains, is_epsilon=True))
    if limit.delta_grains is not None:
        words = f"delta {show(from_delta_grains(usage.delta))} of {show_allowed(from_delta_grains(limit.delta_grains))}"
        found.append(Cap(words, usage.delta, 0, limit.delta_grains))
    if limit.releases is not None:
        found.append(Cap(f"{usage.releases} of {limit.releases} releases", usage.releases, 0, limit.releases))
    return found


def csv_text(entries: Iterable[Entry]) -> str:
    """Every entry as a line of a table."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow([*_COLUMNS, *_EVENT_COLUMNS, "reads", *(f"{state}_at" for state in State)])
    for entry in entries:
        data, event = entry.to_dict(), entry.event.to_dict()
        times = {state: at.isoformat() for state, at in entry.times}
        cells = [*(data[name] for name in _COLUMNS), *(event[name] for name in _EVENT_COLUMNS), " ".join(entry.event.reads)]
        table.writerow([_cell(value) for value in (*cells, *(times.get(state) for state in State))])
    return text.getvalue()


def _section(title: str, lines: Iterable[str], otherwise: str) -> str:
    return "\n".join([title, *(f"  {line}" for line in list(lines) or [otherwise])])


def _usage_line(usage: Usage) -> str:
    parts = [f"{_bar(cap.spent + cap.held, cap.most)} {cap.words}" if cap.is_epsilon else cap.words for cap in caps_of(usage)]
    return f"{', '.join(parts)}  ({usage.limit})"


def _bar(used: int, cap: int) -> str:
    # Rounded up, as everything that is spent: a full bar may have a little left, an empty one has nothing used.
    filled = min(_BAR, -(-_BAR * used // cap)) if cap else _BAR
    return f"[{'#' * filled}{'.' * (_BAR - filled)}]"


def _delta_float(grains: int) -> float:
    near = float(from_delta_grains(grains))
    return near if delta_grains_up(near) >= grains else math.nextafter(near, math.inf)


def _cell(value: object) -> object:
    """A title is the analyst's: it must not become a formula when the table is opened in a spreadsheet."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
