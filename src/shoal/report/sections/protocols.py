"""Text and sections that differ between protocols.

DDML has instances that diverge, secure sums have colluders, and PFDS releases rows. In the report,
only this module compares a protocol's name; other sections read attributes of `StudyProtocol`.
"""

from __future__ import annotations

from shoal.privacy.rounding import format_epsilon
from shoal.report.charts import (
    Axis,
    AxisMark,
    Bar,
    BarRow,
    Curve,
    LegendKey,
    Overlays,
    ReferenceLine,
    UnboundedRegion,
    draw_bars,
    draw_curves,
)
from shoal.report.documents import FeatureMarginal
from shoal.report.formatting import (
    GREY,
    format_exact,
    format_measure,
    format_number,
    get_measure_name,
    make_measure_axis,
)
from shoal.report.html import Markup, Section, join, make_figure_grid, make_paragraph, truncate
from shoal.report.html import make_figure as figure_block
from shoal.report.views import RunView
from shoal.study.spec import Study
from shoal.text import format_count

_MAX_FEATURES, _MAX_CELLS = 12, 24
_MODEL_KINDS = {
    "anonml": "Additive scores of cells",
    "ddml": "A linear model",
    "sdq": "A decision tree",
    "pfds": "Weights learned from released tables",
}


def describe_model_kind(study: Study) -> str:
    """Return the kind of model that a study learns, as the beginning of a sentence."""
    if study.protocol == "sdq" and study.sdq is not None and study.sdq.learner != "tree":
        return "Naive Bayes"
    if study.protocol == "anonml" and study.variant == "paper":
        return "A vote of small classifiers"
    return _MODEL_KINDS[study.protocol]


def learns_weights(study: Study) -> bool:
    """Return whether the model has weights or scores that people may read as causes."""
    return study.protocol != "sdq"


def make_spread_section(view: RunView) -> Section | None:
    """Return the variance between the instances of DDML as updates are merged."""
    spread = view.point.details.spread
    if spread is None:
        return None
    points = [(n, variance) for n, variance in spread.measured]
    chart = draw_curves(
        "Variance between instances",
        [Curve("measured", points, view.colour)],
        x=Axis("updates merged", low=0.0),
        y=Axis("variance between instances", low=0.0),
        description=f"{format_count(len(points), 'measurement')}, the last "
        f"{format_number(points[-1][1])}; expected {format_number(spread.expected)}",
        reference_lines=[
            ReferenceLine(
                f"expected from noise alone: {format_number(spread.expected)}",
                spread.expected,
                "dashed",
                GREY,
            )
        ],
    )
    rows = [(format_number(n), format_number(variance)) for n, variance in points]
    lead = (
        f"There are {format_count(spread.k, 'instance')}, and the noise in each update has "
        f"variance {format_number(spread.sigma_squared)}. The dashed line is the variance between "
        "instances from noise alone: k/2 σ² if updates replace instances (DDML, Theorem 1), less "
        "if they are averaged in (errata D-07). Differences between devices add to it."
    )
    return Section(
        "spread",
        "Spread of the instances",
        lead,
        figure_block(chart, ("updates", "variance"), rows),
    )


def make_exposure_section(view: RunView) -> Section | None:
    """Return the epsilon that remains against each number of colluders."""
    exposures = view.point.details.exposure
    if not exposures:
        return None
    known = [
        (float(exposure.colluders), exposure.epsilon)
        for exposure in exposures
        if exposure.epsilon is not None
    ]
    if not known:
        return None
    claimed = max((exposure.colluders for exposure in exposures if exposure.claimed), default=None)
    beyond = sum(not exposure.claimed for exposure in exposures if exposure.epsilon is not None)
    unbounded = [exposure.colluders for exposure in exposures if exposure.epsilon is None]
    of = view.guarantee
    unit = f"per {of.unit} ({of.relation})" if of is not None else ""
    chart = draw_curves(
        "Epsilon against the number of colluders",
        [
            Curve(
                "guarantee from the noise of the other members", known, view.colour, n_hollow=beyond
            )
        ],
        x=Axis(
            "colluding members",
            low=0.0,
            high=float(max(exposure.colluders for exposure in exposures)),
            ticks=_list_integer_ticks(max(exposure.colluders for exposure in exposures)),
        ),
        y=Axis(f"epsilon {unit}", low=0.0),
        description="; ".join(
            f"{colluders:g} colluders: epsilon {format_epsilon(epsilon)}"
            for colluders, epsilon in known
        ),
        overlays=Overlays(
            marks=[] if claimed is None else [AxisMark(f"claimed up to {claimed}", float(claimed))],
            unbounded=UnboundedRegion("no bound", min(unbounded) - 0.5) if unbounded else None,
        ),
    )
    rows = [
        (
            f"{exposure.colluders:,}",
            "no bound" if exposure.epsilon is None else format_epsilon(exposure.epsilon),
            "yes" if exposure.claimed else "no",
        )
        for exposure in exposures
    ]
    no_bound = (
        make_paragraph(
            f"With {format_count(min(unbounded), 'colluder')} or more, there is no bound on what "
            "they learn."
        )
        if unbounded
        else None
    )
    lead = (
        "Colluding members know their own share of the noise. A filled dot is within the claim of "
        "the study, a hollow dot is beyond it."
    )
    return Section(
        "exposure",
        "If members collude",
        lead,
        join([figure_block(chart, ("colluders", "epsilon", "claimed"), rows), no_bound]),
    )


def _list_integer_ticks(maximum: int) -> tuple[float, ...] | None:
    return tuple(map(float, range(maximum + 1))) if maximum <= 12 else None


def make_released_section(view: RunView) -> Section | None:
    """Return a comparison of released and real rows: shares, and models."""
    details = view.point.details
    if not details.marginals and details.train_on_released is None:
        return None
    body: list[Markup] = []
    if details.train_on_released is not None:
        body.append(
            make_figure_grid(
                _draw_training_comparison(view, measure)
                for measure in details.train_on_released.synthetic
                if measure in details.train_on_released.real
            )
        )
    body.append(
        make_figure_grid(
            _draw_marginal(view, marginal) for marginal in details.marginals[:_MAX_FEATURES]
        )
    )
    rest = len(details.marginals) - _MAX_FEATURES
    if rest > 0:
        body.append(make_paragraph(f"{format_count(rest, 'other feature')} in run.json."))
    lead = (
        "The same learner was trained on released rows and on real rows, and tested on held-out "
        "rows. The charts below compare the share of each cell in released and in real rows; the "
        "real shares are known only in a simulation."
    )
    return Section("released", "Released rows and real rows", lead, join(body))


def _draw_training_comparison(view: RunView, measure: str) -> Markup:
    trained = view.point.details.train_on_released
    assert trained is not None, "only called if there is a comparison"
    rows = [
        ("released rows", trained.synthetic[measure], view.colour, "solid"),
        ("real rows", trained.real[measure], GREY, "dashed"),
    ]
    chart = draw_bars(
        f"{get_measure_name(measure)} by training data",
        [
            BarRow(
                name,
                [
                    Bar(
                        value,
                        colour,
                        "solid" if style == "solid" else "dashed",
                        text=format_measure(measure, value),
                    )
                ],
            )
            for name, value, colour, style in rows
        ],
        axis=make_measure_axis(measure, is_whole=True),
        description="; ".join(
            f"trained on {name}: {format_measure(measure, value)}" for name, value, *_ in rows
        ),
    )
    return figure_block(
        chart,
        ("trained on", get_measure_name(measure)),
        [(name, format_exact(measure, value)) for name, value, *_ in rows],
    )


def _draw_marginal(view: RunView, marginal: FeatureMarginal) -> Markup:
    cells = list(zip(marginal.cells, marginal.released, marginal.true, strict=True))
    name = truncate(marginal.feature, 60)
    chart = draw_bars(
        f"Shares of {name} in released and in real rows",
        [
            BarRow(truncate(cell, 40), [Bar(share, view.colour), Bar(truth, GREY, "dashed")])
            for cell, share, truth in cells[:_MAX_CELLS]
        ],
        axis=Axis("share of rows", "share", low=0.0),
        description=f"{format_count(len(cells), 'cell')} of {name}; the numbers are in the table "
        "below",
        keys=[
            LegendKey("released", view.colour, shape="box"),
            LegendKey("real", GREY, "dashed", "box"),
        ],
    )
    rows = [
        (cell, format_exact("accuracy", share), format_exact("accuracy", truth))
        for cell, share, truth in cells
    ]
    return figure_block(chart, ("cell", "released", "real"), rows, name)
