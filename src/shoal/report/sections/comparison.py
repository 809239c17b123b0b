"""Comparison of several protocols on the same rows.

`shoal.report.page` calls `make_comparison_section` for each ``compare.json``.
"""

from __future__ import annotations

from shoal.privacy.rounding import format_epsilon
from shoal.report.charts import IntervalRow, ReferenceLine, draw_intervals
from shoal.report.documents import ComparisonDocument, ComparisonEntry
from shoal.report.formatting import (
    GREY,
    compute_interval,
    explain_above_no_privacy,
    format_epsilon_delta,
    format_exact,
    format_interval,
    format_measure,
    format_number,
    format_scope,
    get_measure_name,
    get_protocol_colour,
    is_lower_better,
    make_measure_axis,
)
from shoal.report.html import Markup, Section, join, make_bullets, make_paragraph, make_table, tag
from shoal.report.html import make_figure as figure_block
from shoal.report.sections.summary import BASELINES


def make_comparison_section(document: ComparisonDocument) -> Section:
    """Return each protocol with its interval, guarantee, cost and trust assumptions."""
    dots = "Each dot is one run on the same rows."
    if document.repeats > 1:
        dots = (
            f"Each dot is the mean over {document.repeats} runs on the same rows, each bar its "
            "95 % interval (Student's t)."
        )
    lead = (
        f"{dots} The epsilons are not on one scale: they differ in unit, neighbouring relation and "
        "adversary. An epsilon for replace is at most twice the one for add-remove."
    )
    body = [
        _describe_best(document),
        _draw_chart(document),
        make_paragraph("Trust assumptions and costs:"),
        _make_entries_table(document),
    ]
    if document.left_out:
        body += [
            make_paragraph("Excluded:"),
            make_bullets(f"{entry.name}: {entry.why}" for entry in document.left_out),
        ]
    return Section("comparison", "Comparison of protocols", lead, join(body))


def _describe_best(document: ComparisonDocument) -> Markup:
    measure = document.measure
    sign = -1 if is_lower_better(measure) else 1
    best = max(document.entries, key=lambda entry: sign * entry.scores[measure].value)
    baselines = [
        join(
            [
                f"; {BASELINES.get(key, (key, 'dashed'))[0]} ",
                format_exact(measure, measures[measure]),
            ]
        )
        for key, measures in document.yardsticks.items()
        if measure in measures
    ]
    free = document.yardsticks.get("without_privacy", {}).get(measure)
    above = (
        ""
        if free is None
        else explain_above_no_privacy(
            measure, best.scores[measure].value, free, document.rows.unseen
        )
    )
    return make_paragraph(
        f"Best {get_measure_name(measure)}: ",
        tag("strong", best.name, " ", format_exact(measure, best.scores[measure].value)),
        f" at {format_epsilon_delta(best)} {format_scope(best)}",
        *baselines,
        f"; {above}" if above else "",
        f". Tested on {document.rows.unseen:,} held-out rows.",
        class_="summary",
    )


def _draw_chart(document: ComparisonDocument) -> Markup:
    measure = document.measure
    is_one = len({format_epsilon(entry.epsilon) for entry in document.entries}) == 1
    rows = [
        IntervalRow(
            entry.name if is_one else f"{entry.name}, epsilon {format_epsilon(entry.epsilon)}",
            entry.scores[measure].value,
            get_protocol_colour(entry.protocol),
            compute_interval(measure, entry.scores[measure], document.repeats),
            format_measure(measure, entry.scores[measure].value),
        )
        for entry in document.entries
    ]
    levels = [
        _make_reference_line(key, measures[measure])
        for key, measures in document.yardsticks.items()
        if measure in measures
    ]
    chart = draw_intervals(
        f"{get_measure_name(measure)} of {len(rows)} alternatives on the same rows",
        rows,
        axis=make_measure_axis(measure, is_whole=False),
        description="; ".join(f"{row.name}: {row.text}" for row in rows),
        reference_lines=levels,
    )
    shown = [
        (
            row.name,
            *(
                join(
                    [
                        format_exact(name, mean.value),
                        f" ({words})"
                        if (
                            words := format_interval(
                                name, compute_interval(name, mean, document.repeats)
                            )
                        )
                        else "",
                    ]
                )
                for name, mean in entry.scores.items()
            ),
        )
        for row, entry in zip(rows, document.entries, strict=True)
    ]
    heads = (
        "protocol",
        *(f"{get_measure_name(name)} (95 % interval)" for name in document.entries[0].scores),
    )
    return figure_block(chart, heads, shown)


def _make_reference_line(key: str, value: float) -> ReferenceLine:
    name, style = BASELINES.get(key, (key, "dashed"))
    return ReferenceLine(name, value, style, GREY)


def _make_entries_table(document: ComparisonDocument) -> Markup:
    heads = (
        "protocol",
        "guarantee",
        "protects",
        "trusted parties",
        "sent by each",
        "processor time",
    )
    return make_table(heads, [_make_entry_row(entry) for entry in document.entries], class_="wide")


def _make_entry_row(entry: ComparisonEntry) -> tuple[str | Markup, ...]:
    sent = [f"{format_number(entry.bytes)} bytes"] if entry.bytes is not None else []
    sent += (
        [f"{format_number(entry.messages)} message{'' if entry.messages == 1 else 's'}"]
        if entry.messages is not None
        else []
    )
    central = entry.central
    shuffled = (
        ""
        if central is None
        else f"; after shuffling epsilon {format_epsilon(central.epsilon)}, delta "
        f"{format_epsilon(central.delta)}, against {central.adversary}"
    )
    people = (
        f" from {entry.n_participants:,} participants" if entry.n_participants is not None else ""
    )
    return (
        tag(
            "span",
            entry.name,
            style=f"border-left: 0.3em solid {get_protocol_colour(entry.protocol)}; padding-left: "
            "0.5em",
        ),
        f"{format_epsilon_delta(entry)}{shuffled}",
        format_scope(entry),
        entry.trusted,
        (", ".join(sent) or "not known"),
        "not known" if entry.cpu_seconds is None else f"{entry.cpu_seconds:.2g} s{people}",
    )
