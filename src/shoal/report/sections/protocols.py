"""What only some protocols have to show: instances that drift apart, colluders, and rows that are released."""

from __future__ import annotations

from shoal.names import counted
from shoal.privacy.rounding import show
from shoal.report.charts import Axis, Bar, Beyond, Key, Level, Line, Place, Row, bars, lines
from shoal.report.colours import GREY
from shoal.report.details import Marginal
from shoal.report.figures import exact, figure, measure_axis, name_of, number
from shoal.report.layout import Section, grid, paragraph
from shoal.report.layout import figure as figure_block
from shoal.report.markup import Markup, cut, join
from shoal.report.views import RunView

_MOST_FEATURES, _MOST_CELLS = 12, 24


def spread(view: RunView) -> Section | None:
    """How far the instances of ddml lie apart, as updates come in."""
    found = view.point.details.spread
    if found is None:
        return None
    points = [(n, variance) for n, variance in found.measured]
    chart = lines(
        "Variance between instances",
        [Line("measured", points, view.colour)],
        x=Axis("updates merged", low=0.0),
        y=Axis("variance between instances", low=0.0),
        description=f"{counted(len(points), 'measurement')}, the last {number(points[-1][1])}; expected {number(found.expected)}",
        levels=[Level(f"expected of noise alone: {number(found.expected)}", found.expected, "dashed", GREY)],
    )
    rows = [(number(n), number(variance)) for n, variance in points]
    lead = (
        f"With {counted(found.k, 'instance')} and noise of variance {number(found.sigma_squared)} in each update, noise alone keeps them "
        "as far apart as the dashed line says (k/2 σ² where updates replace instances, by DDML's Theorem 1; less where they are blended "
        "in, errata D-07); differences between devices come on top."
    )
    return Section("spread", "Spread of the instances", lead, figure_block(chart, ("updates", "variance"), rows))


def exposure(view: RunView) -> Section | None:
    """What colluders face, the more they are."""
    found = view.point.details.exposure
    if not found:
        return None
    known = [(float(one.colluders), one.epsilon) for one in found if one.epsilon is not None]
    if not known:
        return None
    claimed = max((one.colluders for one in found if one.claimed), default=None)
    beyond = sum(not one.claimed for one in found if one.epsilon is not None)
    unbounded = [one.colluders for one in found if one.epsilon is None]
    of = view.guarantee
    unit = f"per {of.unit} ({of.relation})" if of is not None else ""
    chart = lines(
        "Epsilon against the number of colluders",
        [Line("what the noise of the others still guarantees", known, view.colour, hollow=beyond)],
        x=Axis(
            "colluding members", low=0.0, high=float(max(one.colluders for one in found)), ticks=_whole(max(one.colluders for one in found))
        ),
        y=Axis(f"epsilon {unit}", low=0.0),
        description="; ".join(f"{colluders:g} colluders: epsilon {show(epsilon)}" for colluders, epsilon in known),
        beyond=Beyond("no bound", min(unbounded) - 0.5) if unbounded else None,
        places=[] if claimed is None else [Place(f"claimed up to {claimed}", float(claimed))],
    )
    rows = [
        (f"{one.colluders:,}", "no bound" if one.epsilon is None else show(one.epsilon), "yes" if one.claimed else "no") for one in found
    ]
    none = paragraph(f"From {counted(min(unbounded), 'colluder')} on, nothing bounds what they learn.") if unbounded else None
    lead = (
        "Members that work together know their own share of the noise; a filled dot is within what the study claims, an open one beyond it."
    )
    return Section(
        "exposure", "If members work together", lead, join([figure_block(chart, ("colluders", "epsilon", "claimed"), rows), none])
    )


def _whole(most: int) -> tuple[float, ...] | None:
    return tuple(map(float, range(most + 1))) if most <= 12 else None


def released(view: RunView) -> Section | None:
    """Released rows beside the real ones: each feature by itself, and what either teaches."""
    details = view.point.details
    if not details.marginals and details.train_on_released is None:
        return None
    body: list[Markup] = []
    if details.train_on_released is not None:
        body.append(
            grid(_trained(view, measure) for measure in details.train_on_released.synthetic if measure in details.train_on_released.real)
        )
    body.append(grid(_marginal(view, one) for one in details.marginals[:_MOST_FEATURES]))
    rest = len(details.marginals) - _MOST_FEATURES
    if rest > 0:
        body.append(paragraph(f"{counted(rest, 'other feature')} in run.json."))
    lead = (
        "The same learner, trained on released and on real rows and tried on rows set aside; "
        "and the share of each cell in released rows beside the truth, which only a simulation knows."
    )
    return Section("released", "Released rows and real ones", lead, join(body))


def _trained(view: RunView, measure: str) -> Markup:
    trained = view.point.details.train_on_released
    assert trained is not None, "asked for where it is there"
    rows = [("released rows", trained.synthetic[measure], view.colour, "solid"), ("real rows", trained.real[measure], GREY, "dashed")]
    chart = bars(
        f"{name_of(measure)} by what the learner was trained on",
        [
            Row(name, [Bar(value, colour, "solid" if look == "solid" else "dashed", text=figure(measure, value))])
            for name, value, colour, look in rows
        ],
        axis=measure_axis(measure, is_whole=True),
        description="; ".join(f"trained on {name}: {figure(measure, value)}" for name, value, *_ in rows),
    )
    return figure_block(chart, ("trained on", name_of(measure)), [(name, exact(measure, value)) for name, value, *_ in rows])


def _marginal(view: RunView, one: Marginal) -> Markup:
    cells = list(zip(one.cells, one.released, one.true, strict=True))
    name = cut(one.feature, 60)
    chart = bars(
        f"Shares of {name} in released and in real rows",
        [Row(cut(cell, 40), [Bar(share, view.colour), Bar(truth, GREY, "dashed")]) for cell, share, truth in cells[:_MOST_CELLS]],
        axis=Axis("share of rows", "share", low=0.0),
        description=f"{counted(len(cells), 'cell')} of {name}; the numbers are in the table below",
        keys=[Key("released", view.colour, shape="box"), Key("real", GREY, "dashed", "box")],
    )
    rows = [(cell, exact("accuracy", share), exact("accuracy", truth)) for cell, share, truth in cells]
    return figure_block(chart, ("cell", "released", "real"), rows, name)
