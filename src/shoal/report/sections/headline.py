"""The headline: how well the private model does, beside the same without privacy and beside guessing."""

from __future__ import annotations

from collections.abc import Iterator

from shoal.names import counted
from shoal.report.charts import Bar, Row, bars
from shoal.report.charts.frame import Look
from shoal.report.colours import GREY
from shoal.report.documents import Run
from shoal.report.figures import (
    exact,
    figure,
    guarantee_words,
    interval,
    interval_words,
    is_falling,
    main_measure,
    measure_axis,
    name_of,
)
from shoal.report.layout import Section, grid, paragraph
from shoal.report.layout import figure as figure_block
from shoal.report.markup import Markup, join, tag
from shoal.report.sections.verdicts import beside_guessing, figures
from shoal.report.views import WHO, RunView

YARDSTICKS: dict[str, tuple[str, Look]] = {
    "id3": ("ID3 without privacy", "dashed"),
    "naive_bayes": ("naive Bayes without privacy", "dashed"),
    "without_privacy": ("without privacy", "dashed"),
    "most_common": ("guessing the most common class", "dotted"),
    "mean_label": ("guessing the mean", "dotted"),
}
"""What a model is held against: its name, and how it is drawn."""
_SHORT = {"most_common": "guessing", "mean_label": "guessing", "id3": "ID3, no privacy", "naive_bayes": "naive Bayes, no privacy"}
_FAR = 2
"""From this factor on, a declared size is far from the number who took part."""
_LOGISTIC = "logistic regression without privacy"


def yardsticks(run: Run) -> Iterator[tuple[str, str, Look, dict[str, float]]]:
    """What a run is held against: key, name, look and measures."""
    for key, (name, look) in YARDSTICKS.items():
        measures = getattr(run, key)
        if measures is not None:
            by = _LOGISTIC if key == "without_privacy" and run.id3 is not None else name
            yield key, by, look, measures


def headline(view: RunView) -> Section:
    """Three bars for each measure, and the same in a sentence."""
    run, point = view.run, view.point
    charts = [_chart(view, measure) for measure in point.scores]
    lead = "A filled bar is private, a dashed one is without privacy, a dotted one is guessing; " + (
        f"the whisker is the 95 % interval of the mean over {run.repeats} runs (Student's t), all tried on the same rows."
        if run.repeats > 1
        else "one run has no interval."
    )
    where = paragraph(f"Of the sweep this is the point {view.point_name}; the others are in the curves below.") if view.point_name else None
    body = join([_sentence(view), where, _warning(view), grid(charts)])
    return Section("headline", "What it predicts", lead, body)


def _sentence(view: RunView) -> Markup:
    run, scores = view.run, view.point.scores
    measure = main_measure(scores)
    guess = run.most_common or run.mean_label or {}
    free = run.without_privacy or {}
    value = exact(measure, scores[measure].value)
    unseen = f"{run.rows.unseen:,} unseen rows"
    if measure == "accuracy":
        told = join(["Predicts ", tag("strong", value), f" of {unseen} rightly"])
    else:
        less = " (less is better)" if is_falling(measure) else ""
        told = join([f"On {unseen} its {name_of(measure)} is ", tag("strong", value), less])
    beside = [
        join([name, " ", exact(measure, found[measure])])
        for name, found in (("guessing", guess), ("without privacy", free))
        if measure in found
    ]
    others = join(["; ", beside[0], *(join([", ", one]) for one in beside[1:])]) if beside else None
    return paragraph(told, others, f". {_guarantee(view)}", class_="told")


def _guarantee(view: RunView) -> str:
    found = view.guarantee
    if found is None:
        return "Without perturbation: nothing would be protected, and there is no epsilon."
    words = guarantee_words(found)
    crowd = view.point.central
    amplified = f" In the crowd: {guarantee_words(crowd)}." if crowd is not None else ""
    return f"{words[0].upper()}{words[1:]}.{amplified}"


def _warning(view: RunView) -> Markup | None:
    """What makes the headline worth little."""
    found = []
    measure = main_measure(view.point.scores)
    guess = view.run.most_common or view.run.mean_label or {}
    if measure in guess:
        mean = view.point.scores[measure]
        verdict = beside_guessing(measure, mean, view.n_runs, guess[measure])
        value, beside = figures(measure, mean.value, guess[measure])
        if verdict == "worse":
            rank = " Decide by rank, if the AUC is well above 0.5, or not at all." if measure == "accuracy" else ""
            found.append(f"It does worse than guessing, which looks at no row ({value} against {beside}).{rank}")
        elif verdict == "unsure":
            why = "its 95 % interval reaches guessing" if view.n_runs > 1 else "one run has no interval"
            found.append(
                f"It does no better than guessing, as far as {counted(view.n_runs, 'run')} can show ({value} against {beside}): {why}. "
                "More runs, more rows or a larger epsilon might tell them apart."
            )
    if view.point.people < view.point.minimum:
        few = (
            f"{view.point.people:,} {WHO[view.run.protocol]} took part, and the study learns nothing from fewer than {view.point.minimum:,}"
        )
        found.append(f"{few}: this is what it would have learned.")
    found += _far_from_declared(view)
    return paragraph(" ".join(found), class_="warning") if found else None


def _far_from_declared(view: RunView) -> list[str]:
    """Said where the study was made for many more, or many fewer; of sdq and pfds a size counts rows."""
    declared = int(view.point.settings.get("size", view.study.participation.size))
    counts_rows = view.run.protocol in ("sdq", "pfds")
    there, who = (view.run.rows.asked, "rows") if counts_rows else (view.point.people, WHO[view.run.protocol])
    if there / _FAR <= declared <= there * _FAR:
        return []
    took = "there are" if counts_rows else "took part"
    told = f"{took} {there:,}" if counts_rows else f"{there:,} {took}"
    return [
        f"The study declares {declared:,} {who}, and {told}: what is asked, and how much noise is expected, follow from the declared size."
    ]


def _chart(view: RunView, measure: str) -> Markup:
    run, point = view.run, view.point
    mean = point.scores[measure]
    reach = interval(measure, mean, view.n_runs)
    rows: list[tuple[str, float, tuple[float, float] | None, str, Look]] = [(view.name, mean.value, reach, view.colour, view.look)]
    if point.at_home is not None and measure in point.at_home.home and measure in point.at_home.own:
        home, own = point.at_home.home[measure], point.at_home.own[measure]
        rows.append((f"home models, {view.name}", home.value, interval(measure, home, view.n_runs), view.colour, view.look))
        rows.append(("own rows alone", own.value, interval(measure, own, view.n_runs), GREY, "dashed"))
    for key, name, look, measures in yardsticks(run):
        if measure in measures:
            rows.append((("logistic, no privacy" if name == _LOGISTIC else _SHORT.get(key, name)), measures[measure], None, GREY, look))
    chart = bars(
        f"{name_of(measure)} of {view.title}",
        [Row(name, [Bar(value, colour, look, found, text=figure(measure, value))]) for name, value, found, colour, look in rows],
        axis=measure_axis(measure, is_whole=True),
        description="; ".join(f"{name}: {figure(measure, value)}" for name, value, *_ in rows),
    )
    shown = [(name, exact(measure, value), interval_words(measure, found) or "–") for name, value, found, _, _ in rows]
    return figure_block(chart, (name_of(measure), "value", "95 % interval"), shown)
