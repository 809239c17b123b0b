"""Several protocols on the same rows, side by side."""

from __future__ import annotations

from shoal.privacy.rounding import show
from shoal.report.charts import Interval, Level, intervals
from shoal.report.colours import GREY, colour_of
from shoal.report.documents import Compared, Entry
from shoal.report.figures import (
    epsilon_words,
    exact,
    figure,
    interval,
    interval_words,
    is_falling,
    measure_axis,
    name_of,
    number,
    scope_words,
)
from shoal.report.layout import Section, bullets, paragraph, table
from shoal.report.layout import figure as figure_block
from shoal.report.markup import Markup, join, tag
from shoal.report.sections.headline import YARDSTICKS
from shoal.report.sections.verdicts import above_no_privacy


def comparison(document: Compared) -> Section:
    """Every protocol that fits, with its interval, its guarantee, its cost, and who must be trusted."""
    dots = "Each dot is one run on the same rows"
    if document.repeats > 1:
        dots = f"Each dot is the mean over {document.repeats} runs on the same rows, each bar its 95 % interval (Student's t)"
    lead = (
        f"{dots}; the epsilons are not one scale: each has a unit, a neighbouring relation and an adversary of its own, "
        "and replace counts at most twice add-remove."
    )
    body = [_best(document), _chart(document), paragraph("Who must be trusted, and what each costs:"), _table(document)]
    if document.left_out:
        body += [paragraph("Left out:"), bullets(f"{one.name}: {one.why}" for one in document.left_out)]
    return Section("comparison", "Protocols side by side", lead, join(body))


def _best(document: Compared) -> Markup:
    measure = document.measure
    sign = -1 if is_falling(measure) else 1
    best = max(document.entries, key=lambda entry: sign * entry.scores[measure].value)
    beside = [
        join([f"; {YARDSTICKS.get(key, (key, 'dashed'))[0]} ", exact(measure, found[measure])])
        for key, found in document.yardsticks.items()
        if measure in found
    ]
    free = document.yardsticks.get("without_privacy", {}).get(measure)
    above = "" if free is None else above_no_privacy(measure, best.scores[measure].value, free, document.rows.unseen)
    return paragraph(
        f"Best {name_of(measure)}: ",
        tag("strong", best.name, " ", exact(measure, best.scores[measure].value)),
        f" at {epsilon_words(best)} {scope_words(best)}",
        *beside,
        f"; {above}" if above else "",
        f". Tried on {document.rows.unseen:,} rows set aside.",
        class_="told",
    )


def _chart(document: Compared) -> Markup:
    measure = document.measure
    is_one = len({show(entry.epsilon) for entry in document.entries}) == 1
    rows = [
        Interval(
            entry.name if is_one else f"{entry.name}, epsilon {show(entry.epsilon)}",
            entry.scores[measure].value,
            colour_of(entry.protocol),
            interval(measure, entry.scores[measure], document.repeats),
            figure(measure, entry.scores[measure].value),
        )
        for entry in document.entries
    ]
    levels = [_yardstick(key, found[measure]) for key, found in document.yardsticks.items() if measure in found]
    chart = intervals(
        f"{name_of(measure)} of {len(rows)} ways to learn from the same rows",
        rows,
        axis=measure_axis(measure, is_whole=False),
        description="; ".join(f"{row.name}: {row.text}" for row in rows),
        levels=levels,
    )
    shown = [
        (
            row.name,
            *(
                join(
                    [
                        exact(name, mean.value),
                        f" ({words})" if (words := interval_words(name, interval(name, mean, document.repeats))) else "",
                    ]
                )
                for name, mean in entry.scores.items()
            ),
        )
        for row, entry in zip(rows, document.entries, strict=True)
    ]
    heads = ("protocol", *(f"{name_of(name)} (95 % interval)" for name in document.entries[0].scores))
    return figure_block(chart, heads, shown)


def _yardstick(key: str, value: float) -> Level:
    name, look = YARDSTICKS.get(key, (key, "dashed"))
    return Level(name, value, look, GREY)


def _table(document: Compared) -> Markup:
    heads = ("protocol", "guarantee", "protects", "must be trusted", "one sends", "processor time")
    return table(heads, [_row(entry) for entry in document.entries], class_="wide")


def _row(entry: Entry) -> tuple[str | Markup, ...]:
    sent = [f"{number(entry.bytes)} bytes"] if entry.bytes is not None else []
    sent += [f"{number(entry.messages)} message{'' if entry.messages == 1 else 's'}"] if entry.messages is not None else []
    crowd = entry.central
    in_crowd = (
        "" if crowd is None else f"; in the crowd epsilon {show(crowd.epsilon)}, delta {show(crowd.delta)}, against {crowd.adversary}"
    )
    people = f" from {entry.n_participants:,} participants" if entry.n_participants is not None else ""
    return (
        tag("span", entry.name, style=f"border-left: 0.3em solid {colour_of(entry.protocol)}; padding-left: 0.5em"),
        f"{epsilon_words(entry)}{in_crowd}",
        scope_words(entry),
        entry.trusted,
        (", ".join(sent) or "not known"),
        "not known" if entry.cpu_seconds is None else f"{entry.cpu_seconds:.2g} s{people}",
    )
