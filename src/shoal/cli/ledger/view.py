"""The ledger as text for people and as plain data for programs.

``shoal ledger``, ``shoal ledger page`` and ``shoal join`` call these functions. An amount that is
spent must be rounded up, and an amount that is left must be rounded down.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from shoal.privacy.ledger.limits import Limit, LimitUsage, Period, format_remaining
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.ledger.state import LedgerEntry, LedgerTotal
from shoal.privacy.rounding import (
    delta_grains_up,
    float_from_grains,
    format_epsilon,
    format_epsilon_down,
    from_delta_grains,
    from_grains,
)

_BAR_WIDTH = 20
FEATURE_LIMIT_NOTE = (
    "A limit for a feature limits the releases that read it. It does not hide the value of the "
    "feature, which may be guessed from other features."
)
_COLUMNS = ("study", "question", "title", "source", "recipient", "state", "bytes", "sha256")
_EVENT_COLUMNS = ("mechanism", "unit", "relation", "adversary", "epsilon", "delta")


def format_limits(usages: Sequence[LimitUsage]) -> str:
    """Return every limit, with a bar that shows how much of it is used."""
    note = f"\n  {FEATURE_LIMIT_NOTE}" if any(usage.limit.feature for usage in usages) else ""
    return (
        _format_section(
            "Limits (calendar in UTC; held amounts count as spent)",
            map(_format_usage, usages),
            "none: every release is refused",
        )
        + note
    )


def format_new_limits(limits: Iterable[Limit]) -> str:
    """Return the limits of a ledger that does not exist yet."""
    lines = []
    for limit in limits:
        epsilon, delta = from_grains(limit.grains or 0), from_delta_grains(limit.delta_grains or 0)
        lines.append(
            f"  epsilon {format_epsilon_down(epsilon)}, delta {format_epsilon_down(delta)}  "
            f"({limit})"
        )
    return "\n".join(lines)


def format_totals(totals: Sequence[LedgerTotal]) -> str:
    """Return the sums per data source, unit and neighbouring relation."""
    title = (
        "Spent and held, by data source, unit and neighbouring relation (sums over studies; the "
        "limits below convert them and add them up)"
    )
    return _format_section(title, map(format_total, totals), "nothing")


def format_pending(entries: Sequence[LedgerEntry]) -> str:
    """Return the releases that were reserved and are neither sent nor voided."""
    title = "Waiting: reserved, and neither sent nor given up"
    return _format_section(
        title,
        (f"{entry.state:<8}  {format_entry(entry, entry.times[-1][1])}" for entry in entries),
        "nothing",
    )


def format_history(entries: Sequence[LedgerEntry]) -> str:
    """Return what was sent: to whom, when, and how many bytes."""
    return _format_section(
        "Sent", (line for entry in entries for line in format_sent_lines(entry)), "nothing"
    )


def format_sent_lines(entry: LedgerEntry) -> list[str]:
    """Return one line about a release that was sent; no line if it was not sent."""
    doubt = (
        "" if entry.state is ReleaseState.SENT else "; not acknowledged, so it may not have arrived"
    )
    return [
        format_entry(entry, at) + doubt
        for state, at in entry.times
        if state is ReleaseState.SENDING
    ]


def format_total(total: LedgerTotal) -> str:
    """Return one line about a sum."""
    sums = (
        f"epsilon {format_epsilon(from_grains(total.spent))} spent, "
        f"{format_epsilon(from_grains(total.held))} held"
    )
    delta = total.spent_delta + total.held_delta
    sums += f", delta {format_epsilon(from_delta_grains(delta))}" if delta else ""
    releases = "1 release" if total.releases == 1 else f"{total.releases} releases"
    return (
        f"{total.source}: {sums}, in {releases} ({total.unit}, {total.relation}, against "
        f"{'; '.join(total.adversaries)})"
    )


def format_entry(entry: LedgerEntry, at: datetime) -> str:
    """Return one line about a release."""
    release, scope = entry.release, entry.event.scope
    size = (
        "not drawn yet"
        if entry.size is None
        else f"{entry.size} byte{'' if entry.size == 1 else 's'}"
    )
    price = f"epsilon {format_epsilon(entry.event.epsilon)}" + (
        f", delta {format_epsilon(entry.event.delta)}" if entry.event.delta else ""
    )
    about = (
        f"{release.title}, question {release.question}, about {release.source}, to "
        f"{release.recipient}"
    )
    return f"{at:%Y-%m-%d %H:%M} UTC  {about}: {size}, {price} ({scope})"


def make_total_data(total: LedgerTotal) -> dict[str, object]:
    """Return a total as plain data."""
    return {
        "source": total.source,
        "unit": total.unit.value,
        "relation": total.relation.value,
        "adversaries": list(total.adversaries),
        "epsilon_spent": float_from_grains(total.spent),
        "epsilon_held": float_from_grains(total.held),
        "delta_spent": _convert_delta(total.spent_delta),
        "delta_held": _convert_delta(total.held_delta),
        "releases": total.releases,
    }


def make_usage_data(usage: LimitUsage) -> dict[str, object]:
    """Return a limit and its usage as plain data."""
    limit = usage.limit
    return {
        "unit": None if limit.unit is None else limit.unit.value,
        "max_rows_per_person": limit.max_rows_per_person,
        "relation": limit.relation.value,
        "period": limit.period.value,
        "since": None if limit.period is Period.EVER else usage.since.isoformat(),
        "source": limit.source,
        "feature": limit.feature,
        "epsilon": None if limit.grains is None else float(from_grains(limit.grains)),
        "epsilon_spent": float_from_grains(usage.spent),
        "epsilon_held": float_from_grains(usage.held),
        "epsilon_left": None
        if usage.remaining is None
        else float(format_remaining(usage.remaining, digits=12)),
        "delta": None
        if limit.delta_grains is None
        else float(from_delta_grains(limit.delta_grains)),
        "delta_used": _convert_delta(usage.delta),
        "max_releases": limit.releases,
        "releases": usage.releases,
        "uncountable": usage.unpriced,
    }


class LimitCap(NamedTuple):
    """One cap of a limit: its description, and what is spent and held of the maximum.

    Amounts are in the grains of the cap.
    """

    description: str
    spent: int = 0
    held: int = 0
    maximum: int = 0
    is_epsilon: bool = False


def list_caps(usage: LimitUsage) -> list[LimitCap]:
    """Return the caps of a limit, each with how much of it is used."""
    limit, caps = usage.limit, []
    if usage.unpriced:
        caps.append(
            LimitCap(
                f"cannot be checked: {usage.unpriced} releases under replace have no price under "
                "add-remove"
            )
        )
    elif limit.grains is not None:
        used, left = (
            format_epsilon(from_grains(usage.spent + usage.held)),
            format_remaining(usage.remaining or 0),
        )
        description = (
            f"epsilon {used} of {format_epsilon_down(from_grains(limit.grains))}, {left} left"
        )
        caps.append(LimitCap(description, usage.spent, usage.held, limit.grains, is_epsilon=True))
    if limit.delta_grains is not None:
        description = (
            f"delta {format_epsilon(from_delta_grains(usage.delta))} of "
            f"{format_epsilon_down(from_delta_grains(limit.delta_grains))}"
        )
        caps.append(LimitCap(description, usage.delta, 0, limit.delta_grains))
    if limit.releases is not None:
        caps.append(
            LimitCap(
                f"{usage.releases} of {limit.releases} releases", usage.releases, 0, limit.releases
            )
        )
    return caps


def format_csv(entries: Iterable[LedgerEntry]) -> str:
    """Return all entries as a CSV table."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(
        [*_COLUMNS, *_EVENT_COLUMNS, "reads", *(f"{state}_at" for state in ReleaseState)]
    )
    for entry in entries:
        data, event = entry.to_dict(), entry.event.to_dict()
        times = {state: at.isoformat() for state, at in entry.times}
        cells = [
            *(data[name] for name in _COLUMNS),
            *(event[name] for name in _EVENT_COLUMNS),
            " ".join(entry.event.reads),
        ]
        table.writerow(
            [
                _escape_formula(value)
                for value in (*cells, *(times.get(state) for state in ReleaseState))
            ]
        )
    return text.getvalue()


def _format_section(title: str, lines: Iterable[str], otherwise: str) -> str:
    return "\n".join([title, *(f"  {line}" for line in list(lines) or [otherwise])])


def _format_usage(usage: LimitUsage) -> str:
    parts = [
        f"{_draw_bar(cap.spent + cap.held, cap.maximum)} {cap.description}"
        if cap.is_epsilon
        else cap.description
        for cap in list_caps(usage)
    ]
    return f"{', '.join(parts)}  ({usage.limit})"


def _draw_bar(used: int, cap: int) -> str:
    # Rounded up, as all that is spent: of a full bar a little may be left; an empty bar is unused.
    filled = min(_BAR_WIDTH, -(-_BAR_WIDTH * used // cap)) if cap else _BAR_WIDTH
    return f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}]"


def _convert_delta(grains: int) -> float:
    near = float(from_delta_grains(grains))
    return near if delta_grains_up(near) >= grains else math.nextafter(near, math.inf)


def _escape_formula(value: object) -> object:
    """Escape text that a spreadsheet would read as a formula: the analyst chooses the title."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@") else value
