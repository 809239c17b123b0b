"""Whether chances are what they say, and whether the guarantee holds as far as can be measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shoal.privacy.rounding import show, show_allowed
from shoal.report.charts import Axis, Bar, Line, Row, bars, lines
from shoal.report.colours import GREY
from shoal.report.details import Bin
from shoal.report.documents import Audit
from shoal.report.figures import epsilon_axis, exact
from shoal.report.layout import Section, paragraph, terms
from shoal.report.layout import figure as figure_block
from shoal.report.markup import Markup, join
from shoal.report.views import RunView


def calibration(view: RunView) -> Section | None:
    """Predicted chances beside how often they came true."""
    found = view.point.details.calibration
    if found is None:
        return None
    filled = sorted((one for one in found.bins if one.n), key=lambda one: one.predicted)
    if not filled:
        return None
    of = found.of if found.of.startswith("the ") else f"class {found.of}"
    chart = lines(
        "Calibration",
        [
            Line(
                "this model",
                [(one.predicted, one.observed) for one in filled],
                view.colour,
                [_wilson(one) for one in filled],
                is_whiskered=True,
            )
        ],
        x=Axis(f"predicted chance of {of}", "share", low=0.0, high=1.0),
        y=Axis("how often it was so", "share", low=0.0, high=1.0),
        description="; ".join(f"predicted {100 * one.predicted:.0f} %, observed {100 * one.observed:.0f} % of {one.n:,}" for one in filled),
        diagonal="chances that are what they say",
        height=220,
    )
    rows = [
        (
            f"{100 * one.low:.0f} % to {100 * one.high:.0f} %",
            exact("accuracy", one.predicted),
            exact("accuracy", one.observed),
            f"{one.n:,}",
        )
        for one in found.bins
    ]
    lead = (
        "A dot on the dotted line is a chance that came true as often as it said; below it the chance was too high, above it too low; "
        "the whisker is the 95 % interval (Wilson's) by the number of rows of its bin."
    )
    return Section("calibration", "Calibration", lead, figure_block(chart, ("bin", "predicted", "observed", "rows"), rows))


def _wilson(one: Bin) -> tuple[float, float]:
    """The 95 % interval of a share that was observed on so many rows."""
    n, z = one.n, 1.96
    middle = (one.observed + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(one.observed * (1 - one.observed) / n + z * z / (4 * n * n))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def audits(found: Sequence[Audit], colour: str) -> Section | None:
    """Measured lower bounds beside the claims."""
    if not found:
        return None
    lead = (
        "Two neighbouring inputs were run many times, and the bound is what their outputs give away at least: "
        "a bound above the claim would disprove it, and one below it does not prove it."
    )
    return Section("audit", "Measured against the claim", lead, join(_audit(one, colour) for one in found))


def _audit(one: Audit, colour: str) -> Markup:
    is_broken = one.verdict == "broken"
    rows = [
        ("measured, at least", one.bound, "solid", show_allowed(one.bound)),
        ("claimed, at most", one.epsilon, "dashed", show(one.epsilon)),
    ]
    chart = bars(
        "Measured lower bound beside the claim",
        [
            Row(name, [Bar(value, colour if look == "solid" else GREY, "solid" if look == "solid" else "dashed", text=text)])
            for name, value, look, text in rows
        ],
        axis=Axis(epsilon_axis(one), low=0.0),
        description="; ".join(f"{name}: epsilon {text}" for name, _, _, text in rows),
    )
    what = one.title or one.mechanism
    said = "BROKEN: the bound, or what a ledger counts, is above the claim" if is_broken else "consistent: the bound is not above the claim"
    told = terms(
        [
            ("of", what),
            ("verdict", said),
            ("confidence", f"{one.confidence:g}"),
            ("samples", f"{one.samples:,} of each of the inputs"),
            *([("seen in", one.seen_in)] if one.seen_in else []),
            ("speaks about", f"unit {one.unit}, relation {one.relation}, against {one.adversary}"),
        ]
    )
    note = paragraph("This guarantee does not hold as claimed: do not run the study.", class_="warning") if is_broken else None
    return join([note, figure_block(chart, ("", "epsilon"), [(name, text) for name, _, _, text in rows]), told])
