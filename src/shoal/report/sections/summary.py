"""Headline figures and budget.

The headline compares the private model with one without privacy and with guessing. The budget
lists each release of the plan, priced from the study alone. `shoal.report.page` calls both for
each run; other sections use `list_baselines`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from shoal.privacy.rounding import format_epsilon
from shoal.report.charts import Axis, Bar, BarRow, Curve, draw_bars, draw_curves
from shoal.report.charts.axes import LineStyle
from shoal.report.documents import RunDocument
from shoal.report.formatting import (
    GREY,
    choose_main_measure,
    compare_with_guessing,
    compute_interval,
    format_exact,
    format_guarantee,
    format_interval,
    format_measure,
    format_measures,
    get_measure_name,
    is_lower_better,
    make_measure_axis,
)
from shoal.report.html import (
    Markup,
    Section,
    join,
    make_figure_grid,
    make_paragraph,
    make_table,
    tag,
)
from shoal.report.html import make_figure as figure_block
from shoal.report.views import RunView
from shoal.study.plan import Plan
from shoal.text import format_count

BASELINES: dict[str, tuple[str, LineStyle]] = {
    "id3": ("ID3 without privacy", "dashed"),
    "naive_bayes": ("naive Bayes without privacy", "dashed"),
    "without_privacy": ("without privacy", "dashed"),
    "most_common": ("guessing the most common class", "dotted"),
    "mean_label": ("guessing the mean", "dotted"),
}
"""Baselines of a model: name and line style."""
_SHORT_NAMES = {
    "most_common": "guessing",
    "mean_label": "guessing",
    "id3": "ID3, no privacy",
    "naive_bayes": "naive Bayes, no privacy",
}
_FAR_FACTOR = 2
"""Ratio from which a declared size is far from the real number."""
_LOGISTIC_NAME = "logistic regression without privacy"


def list_baselines(run: RunDocument) -> Iterator[tuple[str, str, LineStyle, dict[str, float]]]:
    """Yield the baselines of a run: key, name, line style and measures."""
    for key, (name, style) in BASELINES.items():
        measures = getattr(run, key)
        if measures is not None:
            is_logistic = key == "without_privacy" and run.id3 is not None
            yield key, _LOGISTIC_NAME if is_logistic else name, style, measures


def make_headline_section(view: RunView) -> Section:
    """Return a chart of the model and its baselines for each measure, and a sentence."""
    run, point = view.run, view.point
    charts = [_draw_headline_chart(view, measure) for measure in point.scores]
    lead = (
        "A filled bar is private, a dashed bar is without privacy, a dotted bar is guessing. "
        + (
            f"The whisker is the 95 % interval of the mean over {run.repeats} runs (Student's t), "
            "all tested on the same rows."
            if run.repeats > 1
            else "A single run has no interval."
        )
    )
    point_note = (
        make_paragraph(
            f"This is the point {view.point_name} of the sweep; the curves below show the others."
        )
        if view.point_name
        else None
    )
    body = join([_make_sentence(view), point_note, _make_warning(view), make_figure_grid(charts)])
    return Section("headline", "How well it predicts", lead, body)


def _make_sentence(view: RunView) -> Markup:
    run, scores = view.run, view.point.scores
    measure = choose_main_measure(scores)
    guess = run.most_common or run.mean_label or {}
    free = run.without_privacy or {}
    value = format_exact(measure, scores[measure].value)
    held_out = f"{run.rows.unseen:,} held-out rows"
    if measure == "accuracy":
        score = join(["Predicts ", tag("strong", value), f" of {held_out} correctly"])
    else:
        lower = " (lower is better)" if is_lower_better(measure) else ""
        score = join(
            [f"On {held_out} its {get_measure_name(measure)} is ", tag("strong", value), lower]
        )
    baselines = [
        join([name, " ", format_exact(measure, measures[measure])])
        for name, measures in (("guessing", guess), ("without privacy", free))
        if measure in measures
    ]
    rest = "".join(
        join(["; " if i == 0 else ", ", baseline]) for i, baseline in enumerate(baselines)
    )
    return make_paragraph(score, Markup(rest), f". {_describe_guarantee(view)}", class_="summary")


def _describe_guarantee(view: RunView) -> str:
    guarantee = view.guarantee
    if guarantee is None:
        return "No noise was added: nothing would be protected, and there is no epsilon."
    words = format_guarantee(guarantee)
    central = view.point.central
    amplified = f" After shuffling: {format_guarantee(central)}." if central is not None else ""
    return f"{words[0].upper()}{words[1:]}.{amplified}"


def _make_warning(view: RunView) -> Markup | None:
    """Return the reasons for which the headline has little value, if any."""
    reasons = []
    measure = choose_main_measure(view.point.scores)
    guess = view.run.most_common or view.run.mean_label or {}
    if measure in guess:
        mean = view.point.scores[measure]
        verdict = compare_with_guessing(measure, mean, view.n_runs, guess[measure])
        value, guess_value = format_measures(measure, mean.value, guess[measure])
        if verdict == "worse":
            rank = (
                " If the AUC is well above 0.5, use the predicted probabilities to rank rows; else "
                "do not use the model."
                if measure == "accuracy"
                else ""
            )
            reasons.append(
                f"The model is worse than guessing, which uses no row ({value}, guessing "
                f"{guess_value}).{rank}"
            )
        elif verdict == "unsure":
            why = (
                "its 95 % interval includes guessing"
                if view.n_runs > 1
                else "a single run has no interval"
            )
            reasons.append(
                f"{format_count(view.n_runs, 'run')} cannot show that the model is better than "
                f"guessing ({value}, guessing {guess_value}): {why}. "
                "Try more runs, more rows or a larger epsilon."
            )
    if view.point.people < view.point.minimum:
        few = (
            f"{view.point.people:,} {view.holders.plural} took part, but the study requires "
            f"{view.point.minimum:,} and would publish no model"
        )
        reasons.append(f"{few}. The figures show what it would have learned.")
    reasons += _warn_about_size(view)
    return make_paragraph(" ".join(reasons), class_="warning") if reasons else None


def _warn_about_size(view: RunView) -> list[str]:
    """Return a warning if the declared size is far from the real one.

    The declared size counts rows if participants are organisations.
    """
    declared = int(view.point.settings.get("size", view.study.participation.size))
    is_in_rows = view.holders.are_organisations
    size = view.run.rows.asked if is_in_rows else view.point.people
    if size / _FAR_FACTOR <= declared <= size * _FAR_FACTOR:
        return []
    actual = f"the table has {size:,}" if is_in_rows else f"{size:,} took part"
    return [
        f"The study declares {declared:,} {view.holders.size_noun}, but {actual}. The questions "
        "and the expected noise follow from the declared size."
    ]


def _draw_headline_chart(view: RunView, measure: str) -> Markup:
    run, point = view.run, view.point
    mean = point.scores[measure]
    reach = compute_interval(measure, mean, view.n_runs)
    rows: list[tuple[str, float, tuple[float, float] | None, str, LineStyle]] = [
        (view.name, mean.value, reach, view.colour, view.line_style)
    ]
    if point.at_home is not None and measure in point.at_home.home and measure in point.at_home.own:
        home, own = point.at_home.home[measure], point.at_home.own[measure]
        rows.append(
            (
                f"personal models, {view.name}",
                home.value,
                compute_interval(measure, home, view.n_runs),
                view.colour,
                view.line_style,
            )
        )
        rows.append(
            (
                "own rows only",
                own.value,
                compute_interval(measure, own, view.n_runs),
                GREY,
                "dashed",
            )
        )
    for key, name, style, measures in list_baselines(run):
        if measure in measures:
            rows.append(
                (
                    (
                        "logistic, no privacy"
                        if name == _LOGISTIC_NAME
                        else _SHORT_NAMES.get(key, name)
                    ),
                    measures[measure],
                    None,
                    GREY,
                    style,
                )
            )
    chart = draw_bars(
        f"{get_measure_name(measure)} of {view.title}",
        [
            BarRow(name, [Bar(value, colour, style, interval, text=format_measure(measure, value))])
            for name, value, interval, colour, style in rows
        ],
        axis=make_measure_axis(measure, is_whole=True),
        description="; ".join(
            f"{name}: {format_measure(measure, value)}" for name, value, *_ in rows
        ),
    )
    shown = [
        (name, format_exact(measure, value), format_interval(measure, interval) or "–")
        for name, value, interval, _, _ in rows
    ]
    return figure_block(chart, (get_measure_name(measure), "value", "95 % interval"), shown)


def make_budget_section(view: RunView) -> Section | None:
    """Return the budget that is left after each release; None for a run without noise."""
    if view.guarantee is None:
        return None
    plan = view.point_plan
    total = plan.total_loss
    scope = f"(neighbours: {total.scope.relation}; against {total.scope.adversary})"
    lead = (
        f"The budget of one {total.scope.unit} that is left after each release. Prices are added, "
        f"as in a participant's ledger {scope}."
        if len(plan.charges) > 1
        else f"The budget of one {total.scope.unit} is spent in one release, as in a "
        f"participant's ledger {scope}."
    )
    rows = [
        (
            release.name,
            f"{release.count:,}",
            release.event.mechanism,
            format_epsilon(release.event.epsilon),
            format_epsilon(release.event.delta),
        )
        for release in plan.releases
    ]
    spent = make_table(("release", "count", "mechanism", "epsilon each", "delta each"), rows)
    body: list[Markup] = [_make_summary(plan), spent]
    if len(plan.charges) > 1:
        body.insert(1, _draw_burn_down(view, plan))
    return Section("budget", "Privacy budget", lead, join(body))


def _make_summary(plan: Plan) -> Markup:
    total = plan.total_loss
    n = format_count(len(plan.charges), "release")
    together = "in total " if len(plan.charges) > 1 else ""
    return make_paragraph(
        f"{n}; {together}epsilon {format_epsilon(total.epsilon)}, delta "
        f"{format_epsilon(total.delta)} ({total.how})."
    )


def _draw_burn_down(view: RunView, plan: Plan) -> Markup:
    """Draw the budget as steps, or one point for each kind if there are many releases."""
    prices = [event.epsilon for event in plan.charges]
    ends, at = [], 0
    for release in plan.releases:
        at += release.count
        ends.append(at)
    spent = list(accumulate(prices, initial=0.0))
    places = list(range(len(spent))) if len(spent) <= 60 else [0, *ends]
    points = [(float(i), max(0.0, spent[-1] - spent[i])) for i in places]
    scope = plan.total_loss.scope
    chart = draw_curves(
        "Budget left after each release",
        [Curve("", points, view.colour, is_step=len(spent) <= 60)],
        x=Axis(
            "releases made",
            low=0.0,
            high=float(len(prices)),
            ticks=tuple(map(float, range(len(spent)))) if len(spent) <= 9 else None,
        ),
        y=Axis(f"epsilon left per {scope.unit} ({scope.relation})", low=0.0),
        description="; ".join(
            f"after {i:g}: {format_epsilon(max(left, 0.0))}" for i, left in points
        ),
    )
    rows = [
        (
            release.name,
            f"{end:,}",
            format_epsilon(spent[end]),
            format_epsilon(max(0.0, spent[-1] - spent[end])),
        )
        for release, end in zip(plan.releases, ends, strict=True)
    ]
    return figure_block(chart, ("after all of", "releases made", "spent", "left"), rows)
