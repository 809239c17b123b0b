"""Privacy curves, calibration, audits, participation.

`shoal.report.page` calls these functions. Points share a curve only if their epsilons have the same
unit and neighbouring relation; other epsilons are not on one scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from shoal.privacy.rounding import format_epsilon, format_epsilon_down
from shoal.report.charts import (
    Axis,
    AxisMark,
    Bar,
    BarRow,
    Curve,
    Overlays,
    ReferenceLine,
    draw_bars,
    draw_curves,
)
from shoal.report.charts.axes import LineStyle
from shoal.report.documents import AuditDocument, CalibrationBin, RunPoint, StatedGuarantee
from shoal.report.formatting import (
    CLASS_COLOURS,
    GREY,
    compute_interval,
    format_epsilon_axis,
    format_exact,
    format_interval,
    format_measure,
    get_measure_name,
    make_measure_axis,
)
from shoal.report.html import (
    Markup,
    Section,
    join,
    make_figure_grid,
    make_paragraph,
    make_table,
    make_terms,
)
from shoal.report.html import make_figure as figure_block
from shoal.report.sections.summary import list_baselines
from shoal.report.views import RunView
from shoal.simulation.sweep import format_settings, format_value

_INTERVAL_NOTE = (
    "the band is the 95 % interval of the mean over runs (Student's t); a single run has none"
)
_MAX_TICKS = 7


@dataclass
class _SweepSeries:
    """Points that differ in one setting, each with its run."""

    name: str
    points: list[tuple[float, RunPoint, RunView]] = field(default_factory=list)


def make_privacy_section(views: Sequence[RunView]) -> Section | None:
    """Return measures against epsilon, if a unit and relation has several epsilons.

    Several runs share a chart only if they ask the same question.
    """
    groups: dict[object, dict[str, _SweepSeries]] = {}
    for view in views:
        owner = "" if len(views) == 1 else view.protocol
        for point in view.run.points:
            if point.total is None:
                continue
            rest = format_settings(
                {key: value for key, value in point.settings.items() if key != "epsilon"}
            )
            name = ", ".join(part for part in (owner, rest) if part) or "private"
            group = groups.setdefault(_make_group_key(view, point, point.total), {})
            group.setdefault(name, _SweepSeries(name)).points.append(
                (point.total.epsilon, point, view)
            )
    charts = [
        chart
        for group in groups.values()
        if _is_curve(group.values(), len(views))
        for chart in _draw_privacy_charts(list(group.values()))
    ]
    if not charts:
        return None
    lead = (
        f"The left is more private; the axis is logarithmic; {_INTERVAL_NOTE}. Dashed lines are "
        "without privacy, dotted lines are guessing."
    )
    return Section("curve", "Privacy and utility", lead, make_figure_grid(charts))


def _make_group_key(view: RunView, point: RunPoint, guarantee: StatedGuarantee) -> object:
    """Return what points on one curve have in common: question, measures, scope."""
    question = (
        view.study.label.name,
        tuple(feature.name for feature in view.study.feature),
        view.run.rows.unseen,
    )
    return question, tuple(point.scores), guarantee.unit, guarantee.relation


def _is_curve(group: Iterable[_SweepSeries], n_views: int) -> bool:
    points = [point for series in group for point in series.points]
    n_runs = len({id(view) for _, _, view in points})
    return len({x for x, _, _ in points}) > 1 and (n_views == 1 or n_runs > 1)


def _draw_privacy_charts(group: Sequence[_SweepSeries]) -> Iterator[Markup]:
    points = [pair for series in group for pair in series.points]
    first = points[0][1].total
    assert first is not None, "points without a guarantee are left out"
    ticks = sorted({x for x, _, _ in points})
    chosen = {view.plan.loss.epsilon for _, _, view in points}
    places = [
        AxisMark(f"the study: {format_epsilon(epsilon)}", epsilon)
        for epsilon in chosen
        if len(chosen) == 1 and ticks[0] <= epsilon <= ticks[-1]
    ]
    axis = Axis(
        format_epsilon_axis(first),
        is_log=True,
        ticks=tuple(ticks) if len(ticks) <= _MAX_TICKS else None,
    )
    against = " / ".join(
        dict.fromkeys(point.total.adversary for _, point, _ in points if point.total is not None)
    )
    for measure in points[0][1].scores:
        yield _draw_sweep_chart(measure, group, axis, places, f"against {against}")


def make_sweeps_section(view: RunView) -> Section | None:
    """Return measures against each varied setting other than epsilon."""
    points = view.run.points
    keys = [
        key
        for key in points[0].settings
        if key != "epsilon" and len({point.settings.get(key) for point in points}) > 1
    ]
    charts = []
    for key in keys:
        group: dict[str, _SweepSeries] = {}
        for point in points:
            if key in point.settings:
                rest = (
                    format_settings(
                        {name: value for name, value in point.settings.items() if name != key}
                    )
                    or view.name
                )
                group.setdefault(rest, _SweepSeries(rest)).points.append(
                    (point.settings[key], point, view)
                )
        values = sorted({x for series in group.values() for x, _, _ in series.points})
        is_log = values[0] > 0 and values[-1] / values[0] >= 10
        axis = Axis(key, is_log=is_log, ticks=tuple(values) if len(values) <= _MAX_TICKS else None)
        charts += [
            _draw_sweep_chart(measure, list(group.values()), axis, [], "")
            for measure in view.point.scores
        ]
    if not charts:
        return None
    return Section(
        "sweeps",
        "Other settings",
        f"Each curve is the mean over runs for values of one setting; {_INTERVAL_NOTE}.",
        make_figure_grid(charts),
    )


def _draw_sweep_chart(
    measure: str, group: Sequence[_SweepSeries], axis: Axis, marks: Sequence[AxisMark], note: str
) -> Markup:
    several = len(group) > 1
    protocols = [series.points[0][2].run.protocol for series in group]
    drawn, rows = [], []
    for i, series in enumerate(group):
        points = sorted(series.points, key=lambda one: one[0])
        values = [(x, point.scores[measure].value) for x, point, _ in points]
        found = [
            compute_interval(measure, point.scores[measure], view.n_runs)
            for _, point, view in points
        ]
        band = [one for one in found if one is not None]
        colour = (
            points[0][2].colour
            if len(set(protocols)) == len(group)
            else CLASS_COLOURS[i % len(CLASS_COLOURS)]
        )
        drawn.append(
            Curve(
                series.name,
                values,
                colour,
                band if len(band) == len(values) else None,
                points[0][2].line_style,
            )
        )
        rows += [
            (
                *((series.name,) if several else ()),
                format_value(x),
                format_exact(measure, value),
                format_interval(measure, one) or "–",
            )
            for (x, value), one in zip(values, found, strict=True)
        ]
    descriptions = [
        f"{line.name}: "
        + ", ".join(
            f"{format_measure(measure, value)} at {format_value(x)}" for x, value in line.points
        )
        for line in drawn
    ]
    chart = draw_curves(
        f"{get_measure_name(measure)} against {axis.name}",
        drawn,
        x=axis,
        y=make_measure_axis(measure, is_whole=False),
        description="; ".join(descriptions),
        reference_lines=_list_reference_lines(measure, group),
        overlays=Overlays(marks=marks),
    )
    heads = (
        *(("series",) if several else ()),
        axis.name,
        get_measure_name(measure),
        "95 % interval",
    )
    return figure_block(chart, heads, rows, note=note)


def _list_reference_lines(measure: str, group: Sequence[_SweepSeries]) -> list[ReferenceLine]:
    """Return the baselines if they are the same for all runs."""
    views = [view for series in group for _, _, view in series.points]
    sets = {
        tuple(
            (name, measures[measure], style)
            for _, name, style, measures in list_baselines(view.run)
            if measure in measures
        )
        for view in views
    }
    return (
        [ReferenceLine(name, value, style, GREY) for name, value, style in next(iter(sets))]
        if len(sets) == 1
        else []
    )


def make_calibration_section(view: RunView) -> Section | None:
    """Return predicted probabilities with the observed shares."""
    calibration = view.point.details.calibration
    if calibration is None:
        return None
    filled = sorted((bin_ for bin_ in calibration.bins if bin_.n), key=lambda bin_: bin_.predicted)
    if not filled:
        return None
    of = calibration.of if calibration.of.startswith("the ") else f"class {calibration.of}"
    chart = draw_curves(
        "Calibration",
        [
            Curve(
                "this model",
                [(bin_.predicted, bin_.observed) for bin_ in filled],
                view.colour,
                [_compute_wilson_interval(bin_) for bin_ in filled],
                has_whiskers=True,
            )
        ],
        x=Axis(f"predicted probability of {of}", "share", low=0.0, high=1.0),
        y=Axis("observed share", "share", low=0.0, high=1.0),
        description="; ".join(
            f"predicted {100 * bin_.predicted:.0f} %, observed {100 * bin_.observed:.0f} % of "
            f"{bin_.n:,}"
            for bin_ in filled
        ),
        overlays=Overlays(diagonal="perfect calibration"),
    )
    rows = [
        (
            f"{100 * bin_.low:.0f} % to {100 * bin_.high:.0f} %",
            format_exact("accuracy", bin_.predicted),
            format_exact("accuracy", bin_.observed),
            f"{bin_.n:,}",
        )
        for bin_ in calibration.bins
    ]
    lead = (
        "A dot on the dotted line is a predicted probability that equals the observed share. Below "
        "the line the probability was too high, above it too low. The whisker is Wilson's 95 % "
        "interval for the number of rows in the bin."
    )
    return Section(
        "calibration",
        "Calibration",
        lead,
        figure_block(chart, ("bin", "predicted", "observed", "rows"), rows),
    )


def _compute_wilson_interval(bin_: CalibrationBin) -> tuple[float, float]:
    """Return Wilson's 95 % interval of the observed share of a bin."""
    n, z = bin_.n, 1.96
    middle = (bin_.observed + z * z / (2 * n)) / (1 + z * z / n)
    reach = (
        z
        / (1 + z * z / n)
        * math.sqrt(bin_.observed * (1 - bin_.observed) / n + z * z / (4 * n * n))
    )
    return max(0.0, middle - reach), min(1.0, middle + reach)


def make_audits_section(audits: Sequence[AuditDocument], colour: str) -> Section | None:
    """Return measured lower bounds with the claims."""
    if not audits:
        return None
    lead = (
        "The mechanism ran many times on two neighbouring inputs. The outputs give a lower bound "
        "on epsilon. A bound above the claim disproves the claim; a bound below it is no proof: an "
        "audit can miss a leak."
    )
    return Section(
        "audit", "Audit of the claim", lead, join(_make_audit(audit, colour) for audit in audits)
    )


def _make_audit(audit: AuditDocument, colour: str) -> Markup:
    is_broken = audit.verdict == "broken"
    rows = [
        ("measured lower bound", audit.bound, "solid", format_epsilon_down(audit.bound)),
        ("claimed upper bound", audit.epsilon, "dashed", format_epsilon(audit.epsilon)),
    ]
    chart = draw_bars(
        "Measured lower bound and claim",
        [
            BarRow(
                name,
                [
                    Bar(
                        value,
                        colour if style == "solid" else GREY,
                        "solid" if style == "solid" else "dashed",
                        text=text,
                    )
                ],
            )
            for name, value, style, text in rows
        ],
        axis=Axis(format_epsilon_axis(audit), low=0.0),
        description="; ".join(f"{name}: epsilon {text}" for name, _, _, text in rows),
    )
    what = audit.title or audit.mechanism
    verdict = (
        "BROKEN: the bound or the price in a ledger is above the claim, or a replay differs"
        if is_broken
        else "consistent: the bound is not above the claim"
    )
    terms = make_terms(
        [
            ("audit of", what),
            ("verdict", verdict),
            ("confidence", f"{audit.confidence:g}"),
            ("samples", f"{audit.samples:,} of each input"),
            *([("observed in", audit.seen_in)] if audit.seen_in else []),
            *([("tests at this confidence", f"{audit.tests:,}")] if audit.tests else []),
            *([("replays of neighbours", f"{audit.replays:,}")] if audit.replays else []),
            *([("differs in replays", audit.leak)] if audit.leak else []),
            ("scope", f"unit {audit.unit}, relation {audit.relation}, against {audit.adversary}"),
        ]
    )
    note = (
        make_paragraph(
            "The guarantee does not hold as claimed. Do not run the study.", class_="warning"
        )
        if is_broken
        else None
    )
    return join(
        [
            note,
            figure_block(chart, ("", "epsilon"), [(name, text) for name, _, _, text in rows]),
            terms,
        ]
    )


_MAX_PHASES = 24


def make_participation_section(view: RunView) -> Section | None:
    """Return the numbers of participants that were asked and that answered."""
    participation = view.point.details.participation
    if participation is None:
        return None
    who = view.holders.plural
    rows: list[tuple[str, int, LineStyle]] = [
        ("asked", participation.asked, "dashed"),
        ("answered", participation.answered, "solid"),
        ("dropped out", participation.dropped, "dotted"),
    ]
    chart = draw_bars(
        f"{who} asked and answered",
        [
            BarRow(name, [Bar(n, view.colour if style == "solid" else GREY, style, text=f"{n:,}")])
            for name, n, style in rows
        ],
        axis=Axis(who, low=0.0),
        description="; ".join(f"{name}: {n:,}" for name, n, _ in rows),
    )
    body: list[Markup] = [
        figure_block(chart, (who, "number"), [(name, f"{n:,}") for name, n, _ in rows])
    ]
    if len(participation.phases) > 1:
        shown = [(phase.name, f"{phase.n:,}") for phase in participation.phases[:_MAX_PHASES]]
        more = len(participation.phases) - _MAX_PHASES
        body += [
            make_table(("phase", "answers"), shown),
            make_paragraph(f"And {more:,} more phases.") if more > 0 else Markup(""),
        ]
    if participation.refused:
        reasons = [(reason, f"{n:,}") for reason, n in participation.refused.items()]
        body += [make_paragraph("Rejected, by reason:"), make_table(("reason", "number"), reasons)]
    lead = (
        f"Counts of the first run: {who} that were asked, that answered, and that dropped out. "
        "The model has no data from those that dropped out."
    )
    return Section("participation", "Participation", lead, join(body))
