"""How the budget of one unit is spent: release after release of the plan, priced from the study alone."""

from __future__ import annotations

from itertools import accumulate

from shoal.names import counted
from shoal.privacy.rounding import show
from shoal.report.charts import Axis, Line, lines
from shoal.report.layout import Section, paragraph, table
from shoal.report.layout import figure as figure_block
from shoal.report.markup import Markup, join
from shoal.report.views import RunView
from shoal.study.plan import Plan


def budget(view: RunView) -> Section | None:
    """The budget as it burns down, by phases; nothing where nothing is perturbed."""
    if view.guarantee is None:
        return None
    plan = view.plan_of_point
    total = plan.everything
    scope = f"(neighbours: {total.scope.relation}; against {total.scope.adversary})"
    lead = (
        f"What one {total.scope.unit} has left of the study's whole price after each release, by plain addition, "
        f"which is how a participant's ledger counts {scope}."
        if len(plan.charges) > 1
        else f"The whole price of one {total.scope.unit} is spent in one release, as a participant's ledger counts it {scope}."
    )
    rows = [
        (
            release.name,
            f"{release.count:,}",
            release.event.mechanism,
            show(release.event.epsilon),
            show(release.event.delta),
        )
        for release in plan.releases
    ]
    spent = table(("release", "how often", "mechanism", "epsilon each", "delta each"), rows)
    body: list[Markup] = [_summary(plan), spent]
    if len(plan.charges) > 1:
        body.insert(1, _burn_down(view, plan))
    return Section("budget", "Where the budget goes", lead, join(body))


def _summary(plan: Plan) -> Markup:
    total = plan.everything
    n = counted(len(plan.charges), "release")
    together = "together " if len(plan.charges) > 1 else ""
    return paragraph(f"{n}; {together}epsilon {show(total.epsilon)}, delta {show(total.delta)} ({total.how}).")


def _burn_down(view: RunView, plan: Plan) -> Markup:
    """Steps down to nothing; one point for each kind of release where there are very many."""
    prices = [event.epsilon for event in plan.charges]
    ends, at = [], 0
    for release in plan.releases:
        at += release.count
        ends.append(at)
    spent = list(accumulate(prices, initial=0.0))
    places = list(range(len(spent))) if len(spent) <= 60 else [0, *ends]
    points = [(float(i), max(0.0, spent[-1] - spent[i])) for i in places]
    scope = plan.everything.scope
    chart = lines(
        "Budget left after each release",
        [Line("", points, view.colour, is_step=len(spent) <= 60)],
        x=Axis("releases made", low=0.0, high=float(len(prices)), ticks=tuple(map(float, range(len(spent)))) if len(spent) <= 9 else None),
        y=Axis(f"epsilon left per {scope.unit} ({scope.relation})", low=0.0),
        description="; ".join(f"after {i:g}: {show(max(left, 0.0))}" for i, left in points),
    )
    rows = [
        (release.name, f"{end:,}", show(spent[end]), show(max(0.0, spent[-1] - spent[end])))
        for release, end in zip(plan.releases, ends, strict=True)
    ]
    return figure_block(chart, ("after all of", "releases made", "spent", "left"), rows)
