"""What was learned: estimated tables with their errors, the largest weights, or the tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.models import read_model
from shoal.models.weights import largest
from shoal.names import counted
from shoal.protocols.sdq.model import Tree
from shoal.report.charts import Axis, Bar, Key, Row, bars
from shoal.report.charts.frame import INK
from shoal.report.colours import colour_of_class
from shoal.report.details import Histogram, Weight
from shoal.report.figures import number
from shoal.report.layout import Section, grid, paragraph
from shoal.report.layout import figure as figure_block
from shoal.report.markup import Markup, cut, join, tag
from shoal.report.views import RunView

_MOST_FEATURES, _MOST_CELLS, _MOST_CLASSES = 12, 24, 6
_MOST_WEIGHTS = 20
_MOST_NODES = 40
_REACH = 1.96
"""Standard errors to each side of an interval that holds 19 times of 20."""


def histograms(view: RunView) -> Section | None:
    """Estimated tables of each feature and the label."""
    found = view.point.details.histograms
    if not found:
        return None
    has_truth = any(one.true is not None for one in found)
    has_error = any(one.error is not None for one in found)
    lead = "Each bar is the estimated share of all rows that fall into a cell with a class"
    lead += "; the whisker reaches 1.96 standard errors of the noise to each side" if has_error else "; no honest error is known for it"
    lead += ", and the upright mark is the truth, which only a simulation knows." if has_truth else "."
    rest = len(found) - _MOST_FEATURES
    more = paragraph(f"{counted(rest, 'other feature')} in run.json.") if rest > 0 else None
    return Section("histograms", "Estimated tables", lead, join([grid(map(_histogram, found[:_MOST_FEATURES])), more]))


def _histogram(one: Histogram) -> Markup:
    classes = one.classes[:_MOST_CLASSES]
    rows, shown = [], []
    for i, cell in enumerate(one.cells):
        row = []
        for j, name in enumerate(one.classes):
            value = one.estimated[i][j]
            error = None if one.error is None else one.error[i][j]
            truth = None if one.true is None else one.true[i][j]
            if j < _MOST_CLASSES:
                row.append(Bar(value, colour_of_class(j), interval=_reach(value, error), truth=truth))
            shown.append((cell, name, _share(value), "–" if error is None else _share(error), "–" if truth is None else _share(truth)))
        if i < _MOST_CELLS:
            rows.append(Row(cut(cell, 40), row))
    keys = [Key(cut(name, 24), colour_of_class(j), shape="box") for j, name in enumerate(classes)]
    keys += [Key("truth", INK, shape="tick")] if one.true is not None else []
    name = cut(one.feature, 60)
    chart = bars(
        f"Shares by {name} and class",
        rows,
        axis=Axis("share of all rows", "share"),
        description=f"{counted(len(one.cells), 'cell')} of {name}, {len(one.classes)} bars in each; the numbers are in the table below",
        keys=keys,
    )
    hidden = [f"{counted(len(one.cells) - _MOST_CELLS, 'cell')} more"] if len(one.cells) > _MOST_CELLS else []
    hidden += [f"{len(one.classes) - _MOST_CLASSES} more classes"] if len(one.classes) > _MOST_CLASSES else []
    caption = name + (f" ({' and '.join(hidden)} in the numbers)" if hidden else "")
    return figure_block(chart, ("cell", "class", "estimated", "standard error", "true"), shown, caption)


def _reach(value: float, error: float | None) -> tuple[float, float] | None:
    return None if error is None else (value - _REACH * error, value + _REACH * error)


def _share(value: float) -> Markup:
    return tag("data", f"{100 * value:.2f} %", value=repr(value))


def weights_of_run(view: RunView) -> Section | None:
    """The largest weights of a run's model."""
    return weights(view.point.details.weights, view.colour)


def weights(found: Sequence[Weight], colour: str) -> Section | None:
    """The largest weights, with the noise in each where it is known."""
    if not found:
        return None
    shown = found[:_MOST_WEIGHTS]
    classes = {one.class_ for one in found}
    of = f" for class {cut(next(iter(classes)) or '', 40)}" if len(classes) == 1 and classes != {None} else ""
    rows = [
        Row(
            one.name + (f" → {one.class_}" if one.class_ and not of else ""),
            [Bar(one.value, colour, interval=_reach(one.value, one.error), text=number(one.value))],
        )
        for one in shown
    ]
    has_error = any(one.error is not None for one in shown)
    chart = bars(
        "The largest weights of the model",
        rows,
        axis=Axis(f"weight{of}"),
        description="; ".join(f"{row.name}: {row.bars[0].text}" for row in rows),
    )
    numbers = [
        (
            one.name,
            one.class_ or "–",
            tag("data", number(one.value), value=repr(one.value)),
            "–" if one.error is None else number(one.error),
        )
        for one in found
    ]
    lead = "A weight right of zero speaks for the class that it names, or for a larger number; the largest by size come first" + (
        "; the bar reaches 1.96 standard errors of the noise to each side, so one that crosses zero may be noise alone."
        if has_error
        else ", and no honest error of them is known."
    )
    return Section("weights", "What the model weighs", lead, figure_block(chart, ("input", "class", "weight", "standard error"), numbers))


def tree_of_run(view: RunView) -> Section | None:
    """The tree of a run, as a picture where the model is there, else as text."""
    if view.run.learned is not None:
        found = tree(view.run.learned)
        if found is not None:
            return found
    if not view.point.tree:
        return None
    return Section("tree", "The tree", _TREE, tag("pre", view.point.tree, tabindex="0"))


_TREE = (
    "Read from the root: each box asks for one feature, each branch is an answer; counts have noise in them, so that they may be negative. "
    "A leaf may name a class that its own counts do not favour: variant plus weighs them against what the classes and each feature by "
    "itself say (naive Bayes, from larger counts), the more so the more noise there is; in variant paper, where no count of a leaf is "
    "above zero, the node above it decides."
)


def tree(document: Mapping[str, Any]) -> Section | None:
    """The tree that a document holds; None where its model is none."""
    model = read_model(document)
    if not isinstance(model.learned, Tree):
        return None
    picture = Markup(model.learned.to_svg(max_nodes=_MOST_NODES).strip())
    whole = tag("details", tag("summary", "As text"), tag("pre", model.learned.to_text(max_depth=6), tabindex="0"))
    return Section("tree", "The tree", _TREE, tag("figure", tag("div", picture, class_="tree", tabindex="0"), whole))


def weights_of_model(document: Mapping[str, Any], colour: str) -> Section | None:
    """The largest weights of the model that a document holds."""
    return weights([Weight.model_validate(one.to_dict()) for one in largest(read_model(document))], colour)
