"""Learned tables, weights, trees; the model card; how to reproduce a run.

`shoal.report.page` calls these functions for runs, and `shoal.report.sections.result` for results
of coordinators. An estimate is shown with its error wherever one is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoal.data.schema import Numeric
from shoal.models import read_model
from shoal.models.weights import list_largest_weights
from shoal.protocols.sdq.model import DecisionTree
from shoal.report.charts import Axis, Bar, BarRow, LegendKey, draw_bars
from shoal.report.charts.axes import INK
from shoal.report.documents import (
    ComparisonDocument,
    FeatureHistogram,
    ModelWeight,
    RunDocument,
    SafeText,
    ScoreMean,
)
from shoal.report.formatting import (
    compute_interval,
    format_exact,
    format_guarantee,
    format_interval,
    format_number,
    get_class_colour,
    get_measure_name,
)
from shoal.report.html import (
    Content,
    Markup,
    Section,
    join,
    make_bullets,
    make_figure_grid,
    make_paragraph,
    make_terms,
    tag,
    truncate,
)
from shoal.report.html import make_figure as figure_block
from shoal.report.sections.protocols import describe_model_kind, learns_weights
from shoal.report.sections.summary import list_baselines
from shoal.report.views import RunView
from shoal.study.spec import Study
from shoal.text import clean_text, format_count

_MAX_FEATURES, _MAX_CELLS, _MAX_CLASSES = 12, 24, 6
_MAX_WEIGHTS = 20
_MAX_NODES = 40
_Z_95 = 1.96
"""Standard errors to each side of a 95 % interval."""


def make_histograms_section(view: RunView) -> Section | None:
    """Return the estimated tables of each feature and the label."""
    histograms = view.point.details.histograms
    if not histograms:
        return None
    has_truth = any(histogram.true is not None for histogram in histograms)
    has_error = any(histogram.error is not None for histogram in histograms)
    lead = "Each bar is the estimated share of all rows in a cell with a class. " + (
        "The whisker covers 1.96 standard errors of the noise to each side."
        if has_error
        else "No valid error is known for it."
    )
    lead += (
        " The vertical mark is the true share, which is known only in a simulation."
        if has_truth
        else ""
    )
    rest = len(histograms) - _MAX_FEATURES
    more = (
        make_paragraph(f"{format_count(rest, 'other feature')} in run.json.") if rest > 0 else None
    )
    return Section(
        "histograms",
        "Estimated tables",
        lead,
        join([make_figure_grid(map(_draw_histogram, histograms[:_MAX_FEATURES])), more]),
    )


def _draw_histogram(histogram: FeatureHistogram) -> Markup:
    classes = histogram.classes[:_MAX_CLASSES]
    rows, shown = [], []
    for i, cell in enumerate(histogram.cells):
        row = []
        for j, name in enumerate(histogram.classes):
            value = histogram.estimated[i][j]
            error = None if histogram.error is None else histogram.error[i][j]
            truth = None if histogram.true is None else histogram.true[i][j]
            if j < _MAX_CLASSES:
                row.append(
                    Bar(
                        value,
                        get_class_colour(j),
                        interval=_compute_error_interval(value, error),
                        truth=truth,
                    )
                )
            shown.append(
                (
                    cell,
                    name,
                    _format_share(value),
                    "–" if error is None else _format_share(error),
                    "–" if truth is None else _format_share(truth),
                )
            )
        if i < _MAX_CELLS:
            rows.append(BarRow(truncate(cell, 40), row))
    keys = [
        LegendKey(truncate(name, 24), get_class_colour(j), shape="box")
        for j, name in enumerate(classes)
    ]
    keys += [LegendKey("truth", INK, shape="tick")] if histogram.true is not None else []
    name = truncate(histogram.feature, 60)
    chart = draw_bars(
        f"Shares by {name} and class",
        rows,
        axis=Axis("share of all rows", "share"),
        description=f"{format_count(len(histogram.cells), 'cell')} of {name}, "
        f"{len(histogram.classes)} bars in each; the numbers are in the table below",
        keys=keys,
    )
    hidden = (
        [f"{format_count(len(histogram.cells) - _MAX_CELLS, 'cell')} more"]
        if len(histogram.cells) > _MAX_CELLS
        else []
    )
    hidden += (
        [f"{len(histogram.classes) - _MAX_CLASSES} more classes"]
        if len(histogram.classes) > _MAX_CLASSES
        else []
    )
    caption = name + (f" ({' and '.join(hidden)} in the numbers)" if hidden else "")
    return figure_block(
        chart, ("cell", "class", "estimated", "standard error", "true"), shown, caption
    )


def _compute_error_interval(value: float, error: float | None) -> tuple[float, float] | None:
    return None if error is None else (value - _Z_95 * error, value + _Z_95 * error)


def _format_share(value: float) -> Markup:
    return tag("data", f"{100 * value:.2f} %", value=repr(value))


def make_run_weights_section(view: RunView) -> Section | None:
    """Return the largest weights of a run's model."""
    return make_weights_section(view.point.details.weights, view.colour)


def make_weights_section(weights: Sequence[ModelWeight], colour: str) -> Section | None:
    """Return the largest weights, each with its noise if that is known."""
    if not weights:
        return None
    shown = weights[:_MAX_WEIGHTS]
    classes = {weight.class_ for weight in weights}
    of = (
        f" for class {truncate(next(iter(classes)) or '', 40)}"
        if len(classes) == 1 and classes != {None}
        else ""
    )
    rows = [
        BarRow(
            weight.name + (f" → {weight.class_}" if weight.class_ and not of else ""),
            [
                Bar(
                    weight.value,
                    colour,
                    interval=_compute_error_interval(weight.value, weight.error),
                    text=format_number(weight.value),
                )
            ],
        )
        for weight in shown
    ]
    has_error = any(weight.error is not None for weight in shown)
    chart = draw_bars(
        "The largest weights of the model",
        rows,
        axis=Axis(f"weight{of}"),
        description="; ".join(f"{row.name}: {row.bars[0].text}" for row in rows),
    )
    numbers = [
        (
            weight.name,
            weight.class_ or "–",
            tag("data", format_number(weight.value), value=repr(weight.value)),
            "–" if weight.error is None else format_number(weight.error),
        )
        for weight in weights
    ]
    lead = (
        "A positive weight is evidence for the named class, or for a larger number. The weights "
        "with the largest absolute values are first. "
        + (
            "The whisker covers 1.96 standard errors of the noise to each side; a weight with a "
            "whisker across zero may be noise alone."
            if has_error
            else "No valid error of the weights is known."
        )
    )
    return Section(
        "weights",
        "Weights of the model",
        lead,
        figure_block(chart, ("input", "class", "weight", "standard error"), numbers),
    )


def make_run_tree_section(view: RunView) -> Section | None:
    """Return the tree of a run: a picture if the model is known, else text."""
    if view.run.learned is not None:
        section = make_tree_section(view.run.learned)
        if section is not None:
            return section
    if not view.point.tree:
        return None
    return Section("tree", "The tree", _TREE_LEAD, tag("pre", view.point.tree, tabindex="0"))


_TREE_LEAD = (
    "Read from the root: each box is a feature, each branch a value of it. Counts contain noise "
    "and may be negative. A leaf may name a class that does not have its largest count: variant "
    "plus combines the counts with naive Bayes on larger counts, which has more influence if "
    "there is more noise; variant paper uses the parent node if no count of a leaf is above zero."
)


def make_tree_section(document: Mapping[str, Any]) -> Section | None:
    """Return the tree in a model document; None if the model is not a tree."""
    model = read_model(document)
    if not isinstance(model.protocol_model, DecisionTree):
        return None
    picture = Markup(model.protocol_model.to_svg(max_nodes=_MAX_NODES).strip())
    whole = tag(
        "details",
        tag("summary", "As text"),
        tag("pre", model.protocol_model.to_text(max_depth=6), tabindex="0"),
    )
    return Section(
        "tree",
        "The tree",
        _TREE_LEAD,
        tag("figure", tag("div", picture, class_="tree", tabindex="0"), whole),
    )


def make_model_weights_section(document: Mapping[str, Any], colour: str) -> Section | None:
    """Return the largest weights of the model in a document."""
    return make_weights_section(
        [
            ModelWeight.model_validate(weight.to_dict())
            for weight in list_largest_weights(read_model(document))
        ],
        colour,
    )


_MAX_LISTED_FEATURES = 40
CARD_LEAD = "Read this before you use the model. It also lists uses that are not allowed."


def make_model_card(view: RunView) -> Section:
    """Return the card: the model, its use, training data, measures and limits."""
    return Section("card", "Model card", CARD_LEAD, make_terms(_list_terms(view)))


def _list_terms(view: RunView) -> Iterator[tuple[str, Content]]:
    study, run = view.study, view.run
    yield (
        "What it is",
        f"{describe_model_kind(study)}, learned by {view.protocol}; predicts "
        f"{clean_text(study.label.name)} ({_describe_label(study)}).",
    )
    yield "Intended use", clean_text(study.purpose)
    yield "Contact", clean_text(study.contact)
    yield "Learned from", _describe_training(view)
    yield "Features", _describe_features(study)
    yield "Measures", _format_measures(view)
    yield (
        "Guarantee",
        "none: no noise was added" if view.guarantee is None else format_guarantee(view.guarantee),
    )
    yield "Limits", make_bullets(_list_limits(view))
    yield "Uses not allowed", make_bullets(_list_forbidden_uses(run))


def _describe_label(study: Study) -> str:
    if study.label.values is None:
        low, high = study.label.range or (0.0, 0.0)
        return f"a number from {low:g} to {high:g}"
    return "one of " + truncate(", ".join(clean_text(value) for value in study.label.values), 200)


def _describe_training(view: RunView) -> str:
    run = view.run
    who = view.holders.plural
    people = (
        f"{view.point.people:,} simulated {who}, with "
        f"{format_count(run.rows.asked, 'row')} of one table"
    )
    return (
        f"{people}; {format_count(run.rows.unseen, 'row')} were held out for testing. The "
        f"study declares a size of {view.study.participation.size:,}."
    )


def _describe_features(study: Study) -> str:
    schema = study.schema()
    named = [clean_text(name) for name in (*schema.names, *(text.name for text in schema.texts))]
    rest = (
        f" and {len(named) - _MAX_LISTED_FEATURES} more"
        if len(named) > _MAX_LISTED_FEATURES
        else ""
    )
    ranges = (
        "public ranges and categories"
        if any(isinstance(feature, Numeric) for feature in schema.features)
        else "public categories"
    )
    return f"{', '.join(named[:_MAX_LISTED_FEATURES])}{rest}, with {ranges}."


def _format_measures(view: RunView) -> Markup:
    parts = [_format_measure(view, measure, mean) for measure, mean in view.point.scores.items()]
    of = (
        f"; f1 is for class {view.run.f1_of}"
        if view.run.f1_of is not None and "f1" in view.point.scores
        else ""
    )
    return join(
        [part if i == 0 else join(["; ", part]) for i, part in enumerate(parts)]
        + [f"; all on held-out rows{of}."]
    )


def _format_measure(view: RunView, measure: str, mean: ScoreMean) -> Markup:
    """Format a measure with its interval and the values of the baselines."""
    words = format_interval(measure, compute_interval(measure, mean, view.n_runs))
    baselines = [
        join([", ", name, " ", format_exact(measure, measures[measure])])
        for _, name, _, measures in list_baselines(view.run)
        if measure in measures
    ]
    return join(
        [
            f"{get_measure_name(measure)} ",
            format_exact(measure, mean.value),
            f" ({words})" if words else "",
            *baselines,
        ]
    )


def _list_limits(view: RunView) -> Iterator[str]:
    study = view.study
    yield "It is less reliable for people who are unlike those it was learned from."
    yield (
        "Noise hides what is rare: predictions for a group with few rows are worse than these "
        "measures show."
    )
    if learns_weights(study):
        yield "Weights and scores show correlation in the data, not cause and effect."
    if view.guarantee is not None and view.guarantee.unit == "record":
        yield "Each row of a person is protected separately, not all rows together."
    if view.guarantee is not None and view.guarantee.unit == "weight":
        yield "Epsilon is for one weight of one update, not for the whole update."


def _list_forbidden_uses(run: RunDocument) -> Iterator[str]:
    yield "For a purpose other than the intended use: participants would agree to that use only."
    yield ("For decisions about a person that no human reviews, or for claims about who took part.")
    if run.simulated:
        yield (
            "For publication: this model was simulated. Anyone can compute its noise from the "
            "seed, so it protects no row of the table."
        )


def make_reproduction_section(document: RunDocument | ComparisonDocument) -> Section:
    """Return the command, the digest, the seed and the versions."""
    versions: dict[SafeText, SafeText] = document.versions
    body = make_terms(
        [
            ("Command", tag("code", document.command)),
            ("Study", tag("code", document.digest)),
            ("Seed", f"{document.seed}"),
            ("Runs", f"{document.repeats:,} at each point"),
            ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ]
    )
    lead = "The same command with the same table and versions gives the same numbers."
    return Section("reproduce", "How to reproduce this", lead, body)
