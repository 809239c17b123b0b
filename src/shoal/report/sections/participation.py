"""Who took part: asked, answered, dropped out, refused; by phases."""

from __future__ import annotations

from shoal.report.charts import Axis, Bar, Row, bars
from shoal.report.charts.frame import Look
from shoal.report.colours import GREY
from shoal.report.layout import Section, paragraph, table
from shoal.report.layout import figure as figure_block
from shoal.report.markup import Markup, join
from shoal.report.views import WHO, RunView

_MOST_PHASES = 24


def participation(view: RunView) -> Section | None:
    """How many answered of those who were asked."""
    found = view.point.details.participation
    if found is None:
        return None
    who = WHO[view.run.protocol]
    rows: list[tuple[str, int, Look]] = [
        ("asked", found.asked, "dashed"),
        ("answered", found.answered, "solid"),
        ("dropped out", found.dropped, "dotted"),
    ]
    chart = bars(
        f"{who} asked and answering",
        [Row(name, [Bar(n, view.colour if look == "solid" else GREY, look, text=f"{n:,}")]) for name, n, look in rows],
        axis=Axis(who, low=0.0),
        description="; ".join(f"{name}: {n:,}" for name, n, _ in rows),
    )
    body: list[Markup] = [figure_block(chart, (who, "number"), [(name, f"{n:,}") for name, n, _ in rows])]
    if len(found.phases) > 1:
        shown = [(phase.name, f"{phase.n:,}") for phase in found.phases[:_MOST_PHASES]]
        more = len(found.phases) - _MOST_PHASES
        body += [table(("phase", "answers"), shown), paragraph(f"And {more:,} more phases.") if more > 0 else Markup("")]
    if found.refused:
        reasons = [(reason, f"{n:,}") for reason, n in found.refused.items()]
        body += [paragraph("Refused, by reason:"), table(("reason", "number"), reasons)]
    lead = f"Counts of the first run: the {who} that were asked, that answered, and that dropped out and are missing from what was learned."
    return Section("participation", "Who took part", lead, join(body))
