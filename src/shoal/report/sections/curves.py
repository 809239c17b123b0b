"""What a measure costs in privacy, and what it owes to anything else that was varied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from shoal.privacy.rounding import show
from shoal.report.charts import Axis, Level, Line, Place, lines
from shoal.report.colours import CLASSES, GREY
from shoal.report.details import Guarantee
from shoal.report.documents import Point
from shoal.report.figures import epsilon_axis, exact, figure, interval, interval_words, measure_axis, name_of
from shoal.report.layout import Section, grid
from shoal.report.layout import figure as figure_block
from shoal.report.markup import Markup
from shoal.report.sections.headline import yardsticks
from shoal.report.views import RunView
from shoal.sim.sweep import plain, settings_name

_INTERVAL = "the band is the 95 % interval of the mean over runs (Student's t), which one run does not have"
_MOST_TICKS = 7


@dataclass
class _Series:
    """Points that differ in one thing, each with the run that it is of."""

    name: str
    points: list[tuple[float, Point, RunView]] = field(default_factory=list)


def privacy_curve(views: Sequence[RunView]) -> Section | None:
    """Measures against epsilon, where there are several of one unit and relation; of several runs those about one question."""
    groups: dict[object, dict[str, _Series]] = {}
    for view in views:
        whose = "" if len(views) == 1 else view.protocol
        for point in view.run.points:
            if point.total is None:
                continue
            rest = settings_name({key: value for key, value in point.settings.items() if key != "epsilon"})
            name = ", ".join(part for part in (whose, rest) if part) or "private"
            group = groups.setdefault(_question(view, point, point.total), {})
            group.setdefault(name, _Series(name)).points.append((point.total.epsilon, point, view))
    charts = [
        chart for group in groups.values() if _is_curve(group.values(), len(views)) for chart in _privacy_charts(list(group.values()))
    ]
    if not charts:
        return None
    lead = f"Further left is more private, and equal steps are equal factors; {_INTERVAL}; dashed is without privacy, dotted is guessing."
    return Section("curve", "Privacy and utility", lead, grid(charts))


def _question(view: RunView, point: Point, of: Guarantee) -> object:
    """What points must have in common to be on one curve: the question, the measures, and what epsilon speaks about."""
    asked = (view.study.label.name, tuple(feature.name for feature in view.study.feature), view.run.rows.unseen)
    return asked, tuple(point.scores), of.unit, of.relation


def _is_curve(group: Iterable[_Series], n_views: int) -> bool:
    points = [one for series in group for one in series.points]
    n_runs = len({id(view) for _, _, view in points})
    return len({x for x, _, _ in points}) > 1 and (n_views == 1 or n_runs > 1)


def _privacy_charts(group: Sequence[_Series]) -> Iterator[Markup]:
    points = [one for series in group for one in series.points]
    first = points[0][1].total
    assert first is not None, "points without a guarantee are left out"
    ticks = sorted({x for x, _, _ in points})
    chosen = {view.plan.loss.epsilon for _, _, view in points}
    places = [Place(f"the study: {show(epsilon)}", epsilon) for epsilon in chosen if len(chosen) == 1 and ticks[0] <= epsilon <= ticks[-1]]
    axis = Axis(epsilon_axis(first), is_log=True, ticks=tuple(ticks) if len(ticks) <= _MOST_TICKS else None)
    against = " / ".join(dict.fromkeys(point.total.adversary for _, point, _ in points if point.total is not None))
    for measure in points[0][1].scores:
        yield _chart(measure, group, axis, places, f"against {against}")


def other_sweeps(view: RunView) -> Section | None:
    """Measures against anything else that was varied."""
    points = view.run.points
    keys = [key for key in points[0].settings if key != "epsilon" and len({point.settings.get(key) for point in points}) > 1]
    charts = []
    for key in keys:
        group: dict[str, _Series] = {}
        for point in points:
            if key in point.settings:
                rest = settings_name({name: value for name, value in point.settings.items() if name != key}) or view.name
                group.setdefault(rest, _Series(rest)).points.append((point.settings[key], point, view))
        values = sorted({x for series in group.values() for x, _, _ in series.points})
        is_log = values[0] > 0 and values[-1] / values[0] >= 10
        axis = Axis(key, is_log=is_log, ticks=tuple(values) if len(values) <= _MOST_TICKS else None)
        charts += [_chart(measure, list(group.values()), axis, [], "") for measure in view.point.scores]
    if not charts:
        return None
    return Section("sweeps", "What else was varied", f"Each curve is the mean over runs as one setting changes; {_INTERVAL}.", grid(charts))


def _chart(measure: str, group: Sequence[_Series], axis: Axis, places: Sequence[Place], note: str) -> Markup:
    several = len(group) > 1
    protocols = [series.points[0][2].run.protocol for series in group]
    drawn, rows = [], []
    for i, series in enumerate(group):
        points = sorted(series.points, key=lambda one: one[0])
        values = [(x, point.scores[measure].value) for x, point, _ in points]
        found = [interval(measure, point.scores[measure], view.n_runs) for _, point, view in points]
        band = [one for one in found if one is not None]
        colour = points[0][2].colour if len(set(protocols)) == len(group) else CLASSES[i % len(CLASSES)]
        drawn.append(Line(series.name, values, colour, band if len(band) == len(values) else None, points[0][2].look))
        rows += [
            (*((series.name,) if several else ()), plain(x), exact(measure, value), interval_words(measure, one) or "–")
            for (x, value), one in zip(values, found, strict=True)
        ]
    told = [f"{line.name}: " + ", ".join(f"{figure(measure, value)} at {plain(x)}" for x, value in line.points) for line in drawn]
    chart = lines(
        f"{name_of(measure)} against {axis.name}",
        drawn,
        x=axis,
        y=measure_axis(measure, is_whole=False),
        description="; ".join(told),
        levels=_levels(measure, group),
        places=places,
    )
    heads = (*(("series",) if several else ()), axis.name, name_of(measure), "95 % interval")
    return figure_block(chart, heads, rows, note=note)


def _levels(measure: str, group: Sequence[_Series]) -> list[Level]:
    """The yardsticks, where all runs have the same."""
    views = [view for series in group for _, _, view in series.points]
    sets = {
        tuple((name, measures[measure], look) for _, name, look, measures in yardsticks(view.run) if measure in measures) for view in views
    }
    return [Level(name, value, look, GREY) for name, value, look in next(iter(sets))] if len(sets) == 1 else []
